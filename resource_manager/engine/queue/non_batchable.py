"""Things that wait one by one, beside the shapes: gangs, and resizes of slots that exist.

Each belongs to a job and has its place there by arrival number, like a request, and is awake or
asleep like a shape: asleep after a try in vain, awake again when a host that concerns it has grown.
They are tried in rounds too: what wakes while a round goes on is tried in the next one; within one,
those whose jobs come first, and of a job's own the one that has waited longest. Knows numbers and
hosts' names; what such a thing is, whether it fits and what becomes of it is not its business.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from resource_manager.engine.fairness.flows import FlowTree, Standing
from resource_manager.engine.model.scheduling_key import Labels

OrderKey = tuple[Standing, ...]
"""By what jobs are compared, the lesser first; see `fair.choice.turn_of`."""

Rank = tuple[OrderKey, int]
"""The same with an arrival number, for what one job waits with."""


class Kind(StrEnum):
    """What it is that waits."""

    GANG = "GANG"
    RESIZE = "RESIZE"


@dataclass(frozen=True, slots=True)
class NonBatchable:
    """One thing that waits by itself.

    Attributes:
        arrival_number: its place in line; nobody else stands there.
        kind: what it is.
        name: the gang's id, or the allocation id of the slot.
        job_id: whose it is.
        generation: of the slot.
        host_id: the one executor that concerns it; empty: any one that carries `labels`.
        labels: what every executor carries that concerns it.
        asked_for: each set of labels that executors are searched for with.
        count: as how many requests it waits.
    """

    arrival_number: int
    kind: Kind
    name: str
    job_id: str = ""
    generation: int = 0
    host_id: str = ""
    labels: Labels = ()
    asked_for: frozenset[Labels] = frozenset()
    count: int = 1


class NonBatchables:
    """All of them, by arrival number.

    One is in the present round, or open (to be tried in the next one), or asleep; the one that is
    being tried is in neither until it is removed or put to sleep.
    """

    def __init__(
        self, flows: FlowTree | None = None, turn_of: Callable[[str], OrderKey] | None = None
    ) -> None:
        """`flows` is told who waits; `turn_of` says when a job has its turn, None: arrival alone
        decides.
        """
        self._flows = flows
        self._turn_of = turn_of
        self._all: dict[int, NonBatchable] = {}
        self._open: dict[int, None] = {}
        self._round: dict[int, None] = {}
        self._heap: list[Rank] = []  # of the round; some may have left it, or be due later by now
        self._on_host: dict[str, dict[int, None]] = {}  # asleep, by the executor they are about
        # Asleep, by labels; these by the first of them, since there may be very many.
        self._anywhere: dict[Labels, dict[Labels, dict[int, None]]] = {}
        self._asked_for: Counter[Labels] = Counter()
        self._stopped: dict[str, dict[int, None]] = {}  # by group; they sleep as well
        self._stopped_by: dict[int, str] = {}  # the reverse

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, number: int) -> bool:
        return number in self._all

    def get(self, number: int) -> NonBatchable | None:
        """The one at this number, if there is one."""
        return self._all.get(number)

    def all(self) -> list[NonBatchable]:
        """All that wait, in order of arrival."""
        return [self._all[number] for number in sorted(self._all)]

    @property
    def awake(self) -> bool:
        """True if any are to be tried, in this round or the next one."""
        return bool(self._open or self._round)

    @property
    def in_round(self) -> bool:
        """True if any have yet to be tried in the present round."""
        return bool(self._round)

    def is_asked_for(self, labels: Labels) -> bool:
        """True if executors with these labels are searched for."""
        return labels in self._asked_for

    def add(self, item: NonBatchable) -> None:
        """Lets it wait, awake: it is tried in the next round."""
        self._asked_for.update(item.asked_for)
        self._all[item.arrival_number] = item
        self._open[item.arrival_number] = None
        if self._flows is not None:
            self._flows.wait(item.job_id, item.arrival_number, item.count)

    def remove(self, number: int) -> NonBatchable | None:
        """Ends the waiting of the one at this number; None if there is none."""
        item = self._all.pop(number, None)
        if item is not None:
            self._open.pop(number, None)
            self._round.pop(number, None)
            self._unstop(number)
            self._rouse(item)
            if self._flows is not None:
                self._flows.wait_no_more(item.job_id, item.count)
            for labels in item.asked_for:
                self._asked_for[labels] -= 1
                if not self._asked_for[labels]:
                    del self._asked_for[labels]
        return item

    def sleep(self, item: NonBatchable) -> None:
        """It was tried in vain; it sleeps, unless somebody woke it meanwhile."""
        number = item.arrival_number
        if number not in self._all or number in self._open:
            return
        if item.host_id:
            self._on_host.setdefault(item.host_id, {})[number] = None
        else:
            groups = self._anywhere.setdefault(item.labels[:1], {})
            groups.setdefault(item.labels, {})[number] = None

    def stop(self, item: NonBatchable, group_id: str) -> None:
        """The maximum of a group stops it; it sleeps until that is eased, at the latest."""
        number = item.arrival_number
        if number in self._all:
            self._unstop(number)
            self._stopped.setdefault(group_id, {})[number] = None
            self._stopped_by[number] = group_id
        self.sleep(item)

    def ease(self, group_id: str) -> None:
        """Has all those tried again whom the maximum of a group has stopped. (Some at a time would
        never end: who is stopped again would be among the rest.)
        """
        for number in self._stopped.pop(group_id, {}):
            del self._stopped_by[number]
            self.wake(number)

    @property
    def stopped_by(self) -> list[str]:
        """The groups whose maxima stop any."""
        return list(self._stopped)

    def grew(self, host_id: str, labels: Mapping[str, str]) -> None:
        """An executor has more room than it had, or other labels: wakes whom that concerns."""
        if woken := self._on_host.pop(host_id, None):
            self._open.update(woken)
        if not self._anywhere:
            return
        for first in ((), *((label,) for label in labels.items())):
            groups = self._anywhere.get(first, {})
            for wanted in list(groups):
                if all(labels.get(name) == value for name, value in wanted):
                    self._open.update(groups.pop(wanted))
            if not groups:
                self._anywhere.pop(first, None)

    def wake(self, number: int) -> None:
        """Has the one at this number tried in the next round, whatever has grown."""
        item = self._all.get(number)
        if item is not None and number not in self._round:
            self._rouse(item)
            self._open[number] = None

    def begin_round(self) -> None:
        """All that are open have their turn now."""
        self._round.update(self._open)
        self._open.clear()
        self.order()

    def order(self) -> None:
        """Puts those of the round in order anew: time has passed. Until the next time nobody's turn
        may come earlier than it was to come.
        """
        turns: dict[str, OrderKey] = {}  # very many may be of few jobs
        for number in self._round:
            if (job_id := self._all[number].job_id) not in turns:
                turns[job_id] = self._rank(number)[0]
        self._heap = sorted((turns[self._all[number].job_id], number) for number in self._round)

    def until(self, job_id: str = "") -> int | None:
        """Arrival number of the one whose turn it is next in this round, if it is of this job
        (empty: of any one).
        """
        first = self._first()
        if first is None or (job_id and self._all[first[1]].job_id != job_id):
            return None
        return first[1]

    def next_before(self, rank: Rank | None) -> NonBatchable | None:
        """The one whose turn it is, taken out of the round, if it comes before this rank (None: in
        any case).

        Whoever takes it lets it `sleep` or removes it afterwards.
        """
        first = self._first()
        if first is None or (rank is not None and first > rank):
            return None
        heapq.heappop(self._heap)
        del self._round[first[1]]
        return self._all[first[1]]

    def problems(self) -> list[str]:
        """Where one is awake and asleep at once, or neither. Empty: nowhere."""
        groups = list(self._asleep())
        asleep = {number for group in groups for number in group}
        found = []
        for number in self._all:
            where = [number in self._round, number in self._open, number in asleep]
            if where.count(True) != 1:
                found.append(f"single {number} is in the round, open, asleep: {where}")
        known = len(self._round) + len(self._open) + sum(map(len, groups))
        if known != len(self._all):
            found.append(f"{known} singles are to be tried or asleep, {len(self._all)} wait")
        if not self._stopped_by.keys() <= self._all.keys():
            found.append(f"maxima stop {len(self._stopped_by)} singles, of which some are no more")
        return found

    def _first(self) -> Rank | None:
        heap = self._heap
        while heap:
            rank = heap[0]
            if rank[1] not in self._round:
                heapq.heappop(heap)
            elif (now := self._rank(rank[1])) != rank:
                heapq.heapreplace(heap, now)
            else:
                return rank
        return None

    def _rank(self, number: int) -> Rank:
        if self._turn_of is None:
            return (), number
        return self._turn_of(self._all[number].job_id), number

    def _asleep(self) -> Iterator[dict[int, None]]:
        yield from self._on_host.values()
        for groups in self._anywhere.values():
            yield from groups.values()

    def _unstop(self, number: int) -> None:
        if (group_id := self._stopped_by.pop(number, None)) is not None:
            _strike(self._stopped, group_id, number)

    def _rouse(self, item: NonBatchable) -> None:
        """Strikes one from those that sleep."""
        if item.host_id:
            _strike(self._on_host, item.host_id, item.arrival_number)
            return
        first = item.labels[:1]
        if first in self._anywhere:
            _strike(self._anywhere[first], item.labels, item.arrival_number)
            if not self._anywhere[first]:
                del self._anywhere[first]


_Key = TypeVar("_Key")


def _strike(groups: dict[_Key, dict[int, None]], key: _Key, number: int) -> None:
    group = groups.get(key)
    if group is not None:
        group.pop(number, None)
        if not group:
            del groups[key]

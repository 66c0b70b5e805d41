"""Keeps non-batchable items: gangs and resizes of slots, which are tried one at a time. This module
calls them items.

Each item belongs to a job and has an arrival number, like a request. An item that does not fit is
blocked. When a host that could serve the item has more room, the item is unblocked, and the next
pass tries the item again. Within a pass, items are sorted by the order of their jobs in the
fairness tree, then by priority, and then by arrival number (`ItemOrder`).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from resource_manager.engine.fairness.flows import Flow, FlowTree, SortKey
from resource_manager.engine.model.scheduling_key import Labels, number_at, place_of
from resource_manager.engine.queue.scheduling_classes import ALL_JOBS
from resource_manager.engine.queue.starvation import StarvationClocks

OrderKey = tuple[SortKey, ...]
"""The key by which jobs are sorted: the job with the lowest key comes first. See
`fairness.choice.order_key_of`.
"""

Rank = tuple[OrderKey, int]
"""The sort key of an item: the key of its job, followed by the item's place in the job
(`place_of`).
"""


class ItemOrder:
    """The items of one pass, in the order in which they are tried.

    Each job has a heap of its items. Each group that contains a job with items has a heap of its
    children, which are groups and jobs. The key of an entry is corrected only when the entry is at
    the top of its heap. This is sufficient, because a placement can only move the item's job and
    the groups above the job back in the order. After a placement, only one entry of each level is
    corrected. So the cost does not depend on the number of waiting jobs and items.

    Example: group `a` has 1,000 jobs with one gang each, and group `b` has one such job. A gang of
    `a` is placed. The next call of `first` moves `a` behind `b` in the heap of the root. In the
    heap of `a`, the key of one job is now outdated. But the heap of `a` is not read until `a` comes
    first again.

    Args:
        tree: the fairness tree that orders the jobs. If it is None, items are tried in order of
            arrival.
    """

    def __init__(self, tree: FlowTree | None) -> None:
        self._tree = tree
        self._jobs: dict[int, str] = {}  # the id of the job, by the item's arrival number
        # For each job, a heap of places. The place of a removed item stays until it is at the top.
        self._by_job: dict[str, list[int]] = {}
        # For each group, a heap of its children. The key of a child can be outdated.
        self._below: dict[Flow, list[tuple[SortKey, Flow]]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    def add(self, number: int, job_id: str, priority: int = 0) -> None:
        """Adds an item. The caller must call `refresh` before it calls `first`."""
        if not self._jobs:  # the last pass has ended, so drop its outdated places
            self._by_job.clear()
        self._jobs[number] = job_id
        owner = job_id if self._tree is not None else ALL_JOBS
        place = place_of(number, priority) if self._tree is not None else number
        heapq.heappush(self._by_job.setdefault(owner, []), place)

    def discard(self, number: int) -> None:
        """Removes the item with this arrival number, if it is in the pass."""
        self._jobs.pop(number, None)

    def refresh(self) -> None:
        """Sorts the jobs by their current virtual times. The caller must guarantee that no job
        moves forward in the order until the next call of `refresh`.
        """
        tree = self._tree
        if tree is None:
            return
        self._below = {}
        for job_id in list(self._by_job):
            if self._first_of(job_id) is None:
                del self._by_job[job_id]
                continue
            flow = tree.jobs[job_id]
            # Add the groups above the job, up to the first group that was already added for another
            # job.
            while flow.parent is not None:
                known = flow.parent in self._below
                self._below.setdefault(flow.parent, []).append((tree.sort_key(flow), flow))
                if known:
                    break
                flow = flow.parent
        for heap in self._below.values():
            heapq.heapify(heap)

    def first(self) -> Rank | None:
        """Returns the rank of the first item, or None if no item is left."""
        if self._tree is not None:
            return self._first_below(self._tree, self._tree.root)
        place = self._first_of(ALL_JOBS)
        return None if place is None else ((), place)

    def _first_below(self, tree: FlowTree, flow: Flow) -> Rank | None:
        """Returns the rank of the first item of a job, or of all jobs in a group. The rank contains
        only the keys of the levels below `flow`. Returns None if no item is left.
        """
        if flow.children is None:
            place = self._first_of(flow.name)
            return None if place is None else ((), place)
        heap = self._below.get(flow, [])
        while heap:
            known, child = heap[0]
            if (key := tree.sort_key(child)) != known:  # the virtual time has risen
                heapq.heapreplace(heap, (key, child))
            elif (found := self._first_below(tree, child)) is not None:
                return (key, *found[0]), found[1]
            else:
                heapq.heappop(heap)
        return None

    def _first_of(self, job_id: str) -> int | None:
        """Returns the place of the first item of a job, or None if the job has no item."""
        places = self._by_job.get(job_id, [])
        while places and number_at(places[0]) not in self._jobs:
            heapq.heappop(places)
        return places[0] if places else None


class Kind(StrEnum):
    """The two kinds of items."""

    GANG = "GANG"
    RESIZE = "RESIZE"


@dataclass(frozen=True, slots=True)
class NonBatchable:
    """One pending gang or resize.

    Attributes:
        arrival_number: the arrival number, which is unique among requests and items.
        kind: the kind of the item, gang or resize.
        name: the id of the gang, or the allocation id of the slot that must be resized.
        job_id: the id of the item's job.
        generation: the generation of the slot that must be resized, or 0 if the item is a gang.
        host_id: the id of the only executor that can serve the item. If it is empty, any executor
            with `labels` can serve the item.
        labels: the labels that every member of the gang requires.
        required_labels: the sets of labels that the members of the gang require, each set once.
        count: the number of members of the gang; 1 for a resize.
        priority: the priority of the gang's members; 0 for a resize.
    """

    arrival_number: int
    kind: Kind
    name: str
    job_id: str = ""
    generation: int = 0
    host_id: str = ""
    labels: Labels = ()
    required_labels: frozenset[Labels] = frozenset()
    count: int = 1
    priority: int = 0

    @property
    def place(self) -> int:
        """The place of the item in its job; see `place_of`."""
        return place_of(self.arrival_number, self.priority)


class NonBatchables:
    """All pending items, by arrival number.

    Each item is in one of three collections: the current pass, the next pass, or the blocked items.
    The only exception is the item that is being tried. After the attempt, the caller removes or
    blocks this item.

    Attributes:
        starvation: the starvation clocks of all pending requests and items.
        in_pass: the items that the current pass has not tried yet.
    """

    def __init__(self, flows: FlowTree | None = None, *, fair: bool = True) -> None:
        """Makes an empty collection.

        Args:
            flows: the fairness tree, which counts pending items. If it is None, items are tried in
                order of arrival and are not counted.
            fair: whether the fairness tree orders the items. If it is False, items are tried in
                order of arrival, but the tree still counts them.
        """
        self.starvation = StarvationClocks(flows)
        self._flows = flows
        self._all: dict[int, NonBatchable] = {}
        self._by_job: dict[str, dict[int, NonBatchable]] = {}
        self._for_next_pass: dict[int, None] = {}
        self.in_pass = ItemOrder(flows if fair else None)
        # Blocked items that only one executor can serve, by id of the executor.
        self._on_host: dict[str, dict[int, None]] = {}
        # All other blocked items. The first key is the first of their labels, and the second key is
        # the set of all their labels. There can be many different sets of labels: the first key
        # reduces the number of sets that `grew` compares.
        self._anywhere: dict[Labels, dict[Labels, dict[int, None]]] = {}
        self._required: Counter[Labels] = Counter()
        # Items that a quota blocks, by group. These items are also in `_on_host` or `_anywhere`.
        self._quota_blocked: dict[str, dict[int, None]] = {}
        self._blocked_by: dict[int, str] = {}  # for each item, the group whose quota blocks it

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, number: int) -> bool:
        return number in self._all

    def get(self, number: int) -> NonBatchable | None:
        """Returns the item with this arrival number, or None if there is no such item."""
        return self._all.get(number)

    def all(self) -> list[NonBatchable]:
        """Returns all items in order of arrival."""
        return [self._all[number] for number in sorted(self._all)]

    def numbers(self) -> list[int]:
        """Returns the arrival numbers of all items, in no order."""
        return list(self._all)

    def of_job(self, job_id: str) -> list[NonBatchable]:
        """Returns the items of a job."""
        return list(self._by_job.get(job_id, {}).values())

    @property
    def unblocked(self) -> bool:
        """True if an item is in the current pass or the next pass."""
        return bool(self._for_next_pass or self.in_pass)

    def is_required(self, labels: Labels) -> bool:
        """Returns whether an item requires executors with these labels."""
        return labels in self._required

    def add(self, item: NonBatchable) -> None:
        """Adds an item. The next pass tries it."""
        self._required.update(item.required_labels)
        self._all[item.arrival_number] = item
        self._by_job.setdefault(item.job_id, {})[item.arrival_number] = item
        self.starvation.start(item.arrival_number)
        self._for_next_pass[item.arrival_number] = None
        if self._flows is not None:
            self._flows.wait(item.job_id, item.arrival_number, item.count)

    def remove(self, number: int) -> NonBatchable | None:
        """Removes and returns the item with this arrival number. Returns None if there is no such
        item.
        """
        item = self._all.pop(number, None)
        if item is not None:
            _discard(self._by_job, item.job_id, number)
            self.starvation.stop(number)
            self._for_next_pass.pop(number, None)
            self.in_pass.discard(number)
            self._end_quota_block(number)
            self._take_from_blocked(item)
            if self._flows is not None:
                self._flows.remove_waiting(item.job_id, item.count)
            for labels in item.required_labels:
                self._required[labels] -= 1
                if not self._required[labels]:
                    del self._required[labels]
        return item

    def block(self, item: NonBatchable) -> None:
        """Blocks an item that does not fit, unless the item was unblocked while it was tried."""
        number = item.arrival_number
        if number not in self._all or number in self._for_next_pass:
            return
        if item.host_id:
            self._on_host.setdefault(item.host_id, {})[number] = None
        else:
            groups = self._anywhere.setdefault(item.labels[:1], {})
            groups.setdefault(item.labels, {})[number] = None

    def block_by_quota(self, item: NonBatchable, group_id: str) -> None:
        """Blocks an item because of the quota of a group."""
        number = item.arrival_number
        if number in self._all:
            # The quota of another group possibly blocked the item before.
            self._end_quota_block(number)
            self._quota_blocked.setdefault(group_id, {})[number] = None
            self._blocked_by[number] = group_id
        self.block(item)

    def unblock_by_quota(self, group_id: str) -> None:
        """Unblocks all items that the quota of a group blocked. There is no limit for the number of
        items: with a limit, a caller that repeats the call would possibly never finish, because
        items that are blocked again would be added to the remaining items.
        """
        for number in self._quota_blocked.pop(group_id, {}):
            del self._blocked_by[number]
            self.unblock(number)

    @property
    def blocked_by(self) -> list[str]:
        """The groups whose quotas block at least one item."""
        return list(self._quota_blocked)

    def grew(self, host_id: str, labels: Mapping[str, str]) -> None:
        """Unblocks the items that an executor can possibly serve now. The caller calls this method
        when an executor has more room or other labels.
        """
        if unblocked_here := self._on_host.pop(host_id, None):
            self._for_next_pass.update(unblocked_here)
        if not self._anywhere:
            return
        # Compare only the sets of labels that begin with a label of this host, and the empty set.
        for first in ((), *((label,) for label in labels.items())):
            groups = self._anywhere.get(first, {})
            for wanted in list(groups):
                if all(labels.get(name) == value for name, value in wanted):
                    self._for_next_pass.update(groups.pop(wanted))
            if not groups:
                self._anywhere.pop(first, None)

    def unblock(self, number: int) -> None:
        """Puts an item into the next pass, unless it is in the current pass."""
        item = self._all.get(number)
        if item is not None and number not in self.in_pass:
            self._take_from_blocked(item)
            self._for_next_pass[number] = None

    def begin_pass(self) -> None:
        """Begins the next pass."""
        for number in self._for_next_pass:
            item = self._all[number]
            self.in_pass.add(number, item.job_id, item.priority)
        self._for_next_pass.clear()
        self.order()

    def order(self) -> None:
        """Sorts the items of this pass by the current order of their jobs. The caller must
        guarantee that no item moves forward in the order until the next call of `order`, because
        `ItemOrder` depends on this.
        """
        self.in_pass.refresh()

    def until(self, job_id: str = "") -> int | None:
        """Returns the place of the next item of this pass. If `job_id` is given and the next item
        belongs to another job, returns None.
        """
        first = self.in_pass.first()
        if first is None or (job_id and self._all[number_at(first[1])].job_id != job_id):
            return None
        return first[1]

    def next_before(self, rank: Rank | None) -> NonBatchable | None:
        """If the next item of this pass comes before `rank`, removes the item from the pass and
        returns it. If `rank` is None, the next item is always returned. The caller must call
        `remove` or `block` for the returned item.
        """
        first = self.in_pass.first()
        if first is None or (rank is not None and first > rank):
            return None
        number = number_at(first[1])
        self.in_pass.discard(number)
        return self._all[number]

    def problems(self) -> list[str]:
        """Returns a sentence for each inconsistency. The list is empty if there is no
        inconsistency.
        """
        groups = list(self._blocked_items())
        blocked = {number for group in groups for number in group}
        found = []
        for number in self._all:
            where = [number in self.in_pass, number in self._for_next_pass, number in blocked]
            if where.count(True) != 1:
                found.append(
                    f"item {number} is in the pass, in the next pass, blocked: {where};"
                    " expected one"
                )
        known = len(self.in_pass) + len(self._for_next_pass) + sum(map(len, groups))
        if known != len(self._all):
            found.append(
                f"the lists of the queue have {known} items, but {len(self._all)} are pending"
            )
        if not self._blocked_by.keys() <= self._all.keys():
            unknown = sorted(self._blocked_by.keys() - self._all.keys())
            found.append(f"quotas block the items {unknown}, which do not exist")
        return found

    def _blocked_items(self) -> Iterator[dict[int, None]]:
        yield from self._on_host.values()
        for groups in self._anywhere.values():
            yield from groups.values()

    def _end_quota_block(self, number: int) -> None:
        if (group_id := self._blocked_by.pop(number, None)) is not None:
            _discard(self._quota_blocked, group_id, number)

    def _take_from_blocked(self, item: NonBatchable) -> None:
        """Removes an item from the collections of blocked items."""
        if item.host_id:
            _discard(self._on_host, item.host_id, item.arrival_number)
            return
        first = item.labels[:1]
        if first in self._anywhere:
            _discard(self._anywhere[first], item.labels, item.arrival_number)
            if not self._anywhere[first]:
                del self._anywhere[first]


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def _discard(groups: dict[_Key, dict[int, _Item]], key: _Key, number: int) -> None:
    group = groups.get(key)
    if group is not None:
        group.pop(number, None)
        if not group:
            del groups[key]

"""Room for members of a gang, on one executor after the other, while it is found out whether there
is room for all of them.

What is taken is taken in the index of all hosts, so that searches pass by hosts that are full, and
is put back there to the unit when the search is over, whatever it found: whoever places the members
books them, and `PlacementPass.follow` takes that in. `prefix` asks about other columns than those
of what is free: what hosts could give when empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from resource_manager.engine.hosts.host import KNOWN, SCORE, Host
from resource_manager.engine.model.scheduling_key import (
    CPU_COLUMNS,
    DEFAULT_SLOTS,
    NODE_CPU_MILLI,
    PIN_NODE_CPUS,
    SLOTS,
    Labels,
    in_grains,
    need_of,
)
from resource_manager.engine.placement.gang_exact import Trials, as_if_empty
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.index import CapacityIndex, Need
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.rank import Proportions, candidates_compared
from resource_manager.engine.queue.gangs import MemberRequest

LISTED_MAX = 256
"""Hosts of one label that are gone through one by one, rather than by an index of their own."""

_SCALE = 1 << 60

_OF_ONE_NODE = (PIN_NODE_CPUS, NODE_CPU_MILLI)
"""Columns that say what the NUMA node has that has most: nothing can be taken off them."""


@dataclass(frozen=True, slots=True)
class Share:
    """So many members, of the wish with this number, on one executor."""

    wish: int
    host_id: str
    count: int


@dataclass(slots=True, eq=False)
class Ask:
    """Something to find a host for, `count` times.

    Attributes:
        number: of the wish, for `Share`.
        pooled: columns and amounts on a host with one memory pool, in the index's units.
        separate: the same on a host with a pool per memory part.
        defaults: so many default slots instead; 0: none.
        labels: what the host must carry.
        barred: hosts that must not be chosen.
        at_least: columns of which a host needs so much however many it takes: of the NUMA node that
            has most.
        wishes: what takes it, once each so many, for hosts of which amounts do not say all; none:
            amounts are all that is meant.
    """

    number: int
    count: int
    pooled: dict[str, int]
    separate: dict[str, int]
    defaults: int
    labels: Labels
    barred: frozenset[str] = frozenset()
    at_least: dict[str, int] = field(default_factory=dict)
    wishes: tuple[tuple[MemberRequest, int], ...] = ()

    @property
    def unsized(self) -> list[tuple[MemberRequest, int]]:
        """Those of the wishes that book best-effort cpu, and as much as the host says."""
        return [each for each in self.wishes if each[0].profile is None and each[0].best_effort]

    def need(self, host: Host) -> dict[str, int]:
        """What it takes on a host, in columns; empty: the host cannot serve it."""
        if self.unsized:
            return self._with_unsized(host)
        if not self.defaults:
            return self.separate if host.separate_pools else self.pooled
        if not host.default_need:
            return {}
        need = {name: amount * self.defaults for name, amount in host.default_need.items()}
        need[SLOTS] = self.defaults
        return need

    def _with_unsized(self, host: Host) -> dict[str, int]:
        need = dict(self.separate if host.separate_pools else self.pooled)
        for name, amount in host.default_need.items() if self.defaults else ():
            need[name] = need.get(name, 0) + amount * self.defaults
        need[SLOTS] = need.get(SLOTS, 0) + self.defaults
        for wish, count in self.unsized:
            for name, amount in in_grains(host.booking_for(wish)).items():
                need[name] = need.get(name, 0) + amount * count
        return need

    def searched(self) -> list[Need]:
        """What a host must cover, by kind of host."""
        if self.defaults:
            return [{DEFAULT_SLOTS: self.defaults, **self.at_least}]
        pooled, separate = {**self.pooled, **self.at_least}, {**self.separate, **self.at_least}
        return [pooled] if pooled == separate else [pooled, separate]


class Room:
    """Room on all hosts, as a pass has left it. Nobody else may change the indexes before
    `put_back`.

    Attributes:
        shares: what has been taken.
        compared: hosts with room that are compared for one member.
        partly: as many as possible are wanted, also if those are not all.
        any_will_do: which hosts are found does not matter, only whether there are any.
        exactly: amounts do not say of everybody and everywhere whether there is room.
    """

    def __init__(self, every: Hosts, prefix: str = "", *, may_build: bool = False) -> None:
        self.every = every
        self.main = every.indexes.main
        self.shares: list[Share] = []
        self.compared = candidates_compared(every.settings.pack_candidates, every.in_use)
        self.spreads = every.settings.strategy == "spread" and not prefix
        self.any_will_do = bool(prefix)
        self.partly = False
        self._prefix = prefix
        self._may_build = may_build
        self._proportions: Proportions | None = None
        self._journal: list[tuple[int, str, int]] = []
        self._trials = Trials(as_if_empty, alike=True) if prefix else Trials()
        self.needs_topology = bool(every.indexes.aligning)

    def ask(self, number: int, wish: MemberRequest) -> Ask:
        """What the members of one wish ask for."""
        barred = frozenset[str]()
        if not self._prefix:
            hosts = self.every
            refusing = [n for n in hosts.refusing if n in hosts and hosts[n].refuses(wish)]
            barred = wish.elsewhere.union(refusing)
        self.needs_topology = self.needs_topology or wish.topology_constrained
        pooled, at_least = _apart(need_of(wish.profile, wish.cpus, separate_pools=False))
        separate, _ = _apart(need_of(wish.profile, wish.cpus, separate_pools=True))
        return Ask(
            number,
            wish.count,
            pooled,
            separate,
            0 if wish.profile or wish.best_effort else 1,
            wish.labels,
            barred,
            at_least,
            ((wish, 1),),
        )

    def host(self, host_id: str) -> Host:
        """The books of a host."""
        return self.every[host_id]

    def fit(self, ask: Ask, host_id: str) -> int:
        """How many times a host has room, whatever its labels."""
        need = ask.need(self.every[host_id])
        if not need:
            return 0
        columns, prefix, at = self.main.columns, self._prefix, self.main.position[host_id]
        most = ask.count
        for name, amount in need.items():
            column = columns.get(prefix + name)
            if column is None:
                return 0
            fit = column[0][at] // amount
            if fit < most:  # noqa: PLR1730 -- as in `placement_pass.py`
                most = fit
        if self.needs_topology and most > 0 and ask.wishes:
            return self._exact_fit(ask, host_id, most)
        return max(0, most)

    def _exact_fit(self, ask: Ask, host_id: str, most: int) -> int:
        host = self.every[host_id]
        if len(ask.wishes) == 1 and ask.wishes[0][1] == 1:
            return self._trials.fit(ask.wishes[0][0], host, most)
        return int(self._trials.fits_all(ask.wishes, host))

    def suits_instead(self, ask: Ask, host_id: str) -> bool:
        """True if a host's cpus and NUMA nodes suit one if nothing were taken."""
        host = self.every[host_id]
        return not self.needs_topology or all(
            self._trials.suits_instead(wish, host) for wish, _ in ask.wishes
        )

    def take(self, ask: Ask, host_id: str, count: int) -> None:
        """Takes room for so many, which must be there."""
        host, at = self.every[host_id], self.main.position[host_id]
        need = ask.need(host)
        for name, amount in need.items():
            if name != SLOTS or host.executor.registration.slots_max:
                self._lower(at, self._prefix + name, amount * count)
        if ask.defaults:
            self._lower(at, self._prefix + DEFAULT_SLOTS, ask.defaults * count)
        if self._proportions is not None:
            self._proportions.free.pop(at, None)
        for wish, each in ask.wishes if self.needs_topology else ():
            self._trials.take(wish, host, each * count)
        self.shares.append(Share(ask.number, host_id, count))

    def columns_of(self, host_id: str) -> dict[str, int]:
        """What a host has left."""
        at, prefix = self.main.position[host_id], self._prefix
        return {
            name[len(prefix) :]: column[0][at]
            for name, column in self.main.columns.items()
            if name.startswith(prefix) and (prefix or "/" not in name)
        }

    def shut(self, host_id: str) -> None:
        """Takes all places that a host has left."""
        at = self.main.position[host_id]
        for name in (self._prefix + SLOTS, self._prefix + DEFAULT_SLOTS):
            if name in self.main.columns:
                self._lower(at, name, self.main.columns[name][0][at])

    def put_back(self) -> None:
        """Nothing is taken any more."""
        for at, name, before in reversed(self._journal):
            self.main.write(at, name, before)
        self._journal.clear()
        self._trials.clear()
        self.shares = []

    def hosts(self, ask: Ask) -> Iterator[str]:
        """Hosts with room for one, in the order in which they should be chosen."""
        index = self._index(ask.labels)
        if ask.labels and index is self.main:
            yield from self._carriers(ask, ask.labels)
            return
        yield from self._found(ask, index)

    def hosts_with(self, ask: Ask, label: tuple[str, str]) -> Iterator[str]:
        """Those of them that carry a label as well."""
        labels = (*(each for each in ask.labels if each != label), label)
        indexes = self.every.indexes
        index = indexes.of((label,))
        if index is self.main and indexes.carrier_count((label,)) > LISTED_MAX:
            index = self._index((label,))
        if index is self.main:
            yield from self._carriers(ask, labels)
            return
        yield from (each for each in self._found(ask, index) if carries(self.host(each), labels))

    def best(self, ask: Ask, hosts: Iterable[str], most: int = 1) -> list[str]:
        """Of the first hosts with room, those that suit best, best first; as many as are compared,
        or `most` if that is more.
        """
        window = list(islice(hosts, max(most, self.compared)))
        if len(window) < 2 or self.spreads or self.any_will_do or self.compared == 1:
            return window[: max(most, self.compared)]
        return sorted(window, key=lambda host_id: -self._affinity(ask, host_id))

    def size(self, ask: Ask) -> int:
        """How large one is: the largest part of what all hosts have of a dimension."""
        sums = self.main.sums
        return max(
            (
                amount * _SCALE // max(1, sums.get(KNOWN + name, 0))
                for need in ask.searched()
                for name, amount in need.items()
                if name not in (SLOTS, DEFAULT_SLOTS, *CPU_COLUMNS)
            ),
            default=0,
        )

    def _affinity(self, ask: Ask, host_id: str) -> int:
        """See `rank.py`."""
        if self._proportions is None:
            self._proportions = Proportions(self.main, self.main)
        proportions, at = self._proportions, self.main.position[host_id]
        host = self.host(host_id)
        weights = proportions.weights
        affinity = 0
        for name, amount in ask.need(host).items():
            weight = weights.get(name, 0)
            affinity += self.main.columns[name][0][at] * amount * weight * weight
        return affinity // (proportions.free[at] or 1)

    def _lower(self, at: int, name: str, amount: int) -> None:
        column = self.main.columns.get(name)
        if column is not None:
            before = column[0][at]
            self._journal.append((at, name, before))
            self.main.write(at, name, before - amount)

    def _index(self, labels: Labels) -> CapacityIndex:
        if self._may_build:
            return self.every.indexes.made_for(labels, self.every.values())
        return self.every.indexes.of(labels)

    def _found(self, ask: Ask, index: CapacityIndex) -> Iterator[str]:
        needs = [self._prefixed(need) for need in ask.searched()]
        positions = index.best_first(needs, SCORE) if self.spreads else index.covering(needs)
        for at in positions:
            host_id = index.ids[at]
            if host_id not in ask.barred and self.fit(ask, host_id):
                yield host_id

    def _carriers(self, ask: Ask, labels: Labels) -> Iterator[str]:
        names = list(self.every.indexes.carriers(labels))
        position = self.main.position
        names.sort(key=position.__getitem__)
        if self.spreads:
            score = self.main.columns.get(SCORE)
            names.sort(key=lambda name: -score[0][position[name]] if score else 0)
        for host_id in names:
            if host_id not in ask.barred and self.fit(ask, host_id):
                yield host_id

    def _prefixed(self, need: Need) -> Need:
        return {self._prefix + name: amount for name, amount in need.items()}


def _apart(need: dict[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """What can be counted off a host for each member, and what is needed of one NUMA node."""
    at_least = {name: need[name] for name in _OF_ONE_NODE if name in need}
    if not at_least:
        return need, at_least
    return {name: amount for name, amount in need.items() if name not in at_least}, at_least

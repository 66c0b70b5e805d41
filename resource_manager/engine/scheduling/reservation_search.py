"""Where to hold capacity for somebody who was passed over for too long: one host, or hosts for all
members of a gang.

Decides by what hosts could give when empty, and among those that could by how little is missing
now: the part of what is needed that is not free, in the dimension where that is largest, then by
how few slots are there that are as large (what one of those gives back is large enough for whoever
waits alike: holding it for one of them would win them nothing), then by id. A gang gets its hosts
one member after another, the largest first, each where least is missing given those before it;
where that finds no way (members that have to be spread, or hosts that are nearly too small), the
search that places gangs says whether there is one at all.

A slot that has outlasted a reservation counts as if it never ended. Where amounts do not say all,
a host has to suit all its members with its cpus and NUMA nodes as well, were those slots alone
there.

Refuses to know who holds what for how long, and who is passed over: `reservations.py` knows.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import islice

from finegrain.resources import Amounts, add
from finegrain.values.states import GangPlacement
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.host import ONLINE, Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.scheduling_key import (
    DEFAULT_SLOTS,
    SLOTS,
    amounts_only,
    in_grains,
)
from resource_manager.engine.placement.gang_exact import Trials
from resource_manager.engine.placement.gang_room import Ask, Room, Share
from resource_manager.engine.placement.gang_search import seek, sum_of, wanted
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.queue.gangs import MemberRequest, Where

MILLION = 1_000_000

LOOKED_AT_MAX = 50_000
"""Hosts that are looked at for one reservation, those for different members apart."""

TIES_LOOKED_AT_MAX = 1_000
"""Hosts where equally little is missing, whose slots are looked at."""

VALUES_TRIED_MAX = 32
"""Values of a label that are tried for a gang, those with most room first."""

Candidate = tuple[int, int, str]
"""A host, the best ones least: what is missing for one, how many slots there are as large, id."""


def where_to_hold(
    hosts: Hosts,
    slots: Slots,
    reservations: Reservations,
    where: Where,
    wishes: Sequence[MemberRequest],
    *,
    taken: Collection[str],
) -> list[Share] | None:
    """Hosts to be kept for as many slots as are wished for; None: no way would ever fit.

    Args:
        state: the books; nothing is changed. The indexes must be fresh.
        where: they go in relation to each other; anywhere for a request by itself.
        wishes: what is asked for, with the hosts that must not be chosen.
        taken: hosts that hold something for others already.
    """
    room = Room(hosts)
    asks = [room.ask(number, wish) for number, wish in enumerate(wishes)]
    field = _Field(room, reservations, taken, LOOKED_AT_MAX // len(asks))
    match where.placement:
        case GangPlacement.SAME_EXECUTOR:
            return _on_one_host(field, asks)
        case GangPlacement.SAME_LABEL:
            found = _within_a_value(field, asks, where.label)
        case GangPlacement.SPREAD:
            found = field.filled(asks, one_each=True)
        case GangPlacement.ANYWHERE:
            found = field.filled(asks)
    if found is None and wanted(asks) > 1:
        away = {name for name, host in hosts.items() if not host.eligible}.union(taken)
        lasting = (slots.get(key) for key in reservations.outlasted_by)
        away.update(slot.executor_id for slot in lasting if slot is not None)
        barred = [ask.barred.union(away) for ask in asks]
        found = seek(hosts, where, wishes, prefix=ONLINE, barred=barred)
    return found


def lack(need: dict[str, int], free: dict[str, int]) -> int:
    """The largest part of a need that is not free, in millionths. Columns of the index."""
    missing = 0
    for name, amount in need.items():
        short = (amount - free.get(name, 0)) * MILLION // amount
        missing = max(missing, short)
    return missing


class _Field:
    """Hosts that could be kept, with what is free on them and what was chosen so far."""

    def __init__(
        self, room: Room, reservations: Reservations, taken: Collection[str], looked_at_max: int
    ) -> None:
        self.room = room
        self._reservations = reservations
        self._taken = taken
        self._most = max(1, looked_at_max)
        self._chosen: dict[str, dict[str, int]] = {}  # needs of members that were given a host
        self._trials = Trials(self._if_others_ended)

    def candidates(self, ask: Ask) -> list[Candidate]:
        """The hosts that could serve one by their size, as far as is looked."""
        index, hosts = self.room.main, self.room.every
        columns = index.columns
        needs = [
            {ONLINE + name: amount for name, amount in need.items()} for need in ask.searched()
        ]
        found: list[tuple[int, Host, dict[str, int]]] = []
        for at in islice(index.covering(needs), self._most):
            host = hosts[index.ids[at]]
            if self._may_be(host, ask):
                # Nothing is held on it, so what the index shows is all that is free.
                need = amounts_only(ask.need(host))
                free = {name: columns[name][0][at] for name in need if name in columns}
                found.append((lack(need, free), host, need))
        return _ranked(found)

    def missing(self, host: Host, ask: Ask) -> int | None:
        """What is missing for one more on this host; None: it would not fit if all else ended, by
        what the host says of itself.
        """
        need = amounts_only(ask.need(host))
        if not need:
            return None
        chosen = self._chosen.get(host.host_id)
        if chosen:
            need = add(need, chosen)
        could = _could_give(host, self._reservations.stays_booked(host))
        free = _free(host)
        if any(could.get(name, 0) < amount for name, amount in need.items()):
            return None
        if not self._trials.fits_all(ask.wishes, host):
            return None
        return lack(need, free)

    def could_serve(self, host_id: str, ask: Ask | None) -> bool:
        """True if one would fit there if all else ended."""
        return ask is not None and self.missing(self.room.host(host_id), ask) is not None

    def choose(self, host: Host, ask: Ask) -> None:
        """One more goes to this host."""
        before = self._chosen.get(host.host_id, {})
        self._chosen[host.host_id] = add(before, amounts_only(ask.need(host)))
        for wish, count in ask.wishes if self.room.needs_topology else ():
            self._trials.take(wish, host, count)

    def filled(
        self,
        asks: Sequence[Ask],
        *,
        one_each: bool = False,
        among: Sequence[list[Candidate]] | None = None,
    ) -> list[Share] | None:
        """Each where least is missing, the largest first; `among` are candidates by ask."""
        self._chosen = {}
        self._trials.clear()
        counts: dict[tuple[int, str], int] = {}
        for ask in sorted(asks, key=self.room.size, reverse=True):
            heap = self.candidates(ask) if among is None else among[ask.number]
            heapq.heapify(heap)
            left = ask.count
            while left and heap:
                _, large, host_id = heapq.heappop(heap)
                host = self.room.host(host_id)
                before = self._chosen.get(host_id)
                if (one_each and before) or self.missing(host, ask) is None:
                    continue
                self.choose(host, ask)
                counts[ask.number, host_id] = counts.get((ask.number, host_id), 0) + 1
                left -= 1
                more = None if one_each else self.missing(host, ask)
                if more is not None:
                    heapq.heappush(heap, (more, large, host_id))
            if left:
                return None
        return [Share(number, host_id, count) for (number, host_id), count in counts.items()]

    def most_missing(self) -> int:
        """The most that is missing on any host that was chosen."""
        return max(lack(need, _free(self.room.host(name))) for name, need in self._chosen.items())

    def _if_others_ended(self, host: Host) -> CpuLedger | None:
        """The books of a host's cpus with those slots alone that may never end."""
        if host.cpus is None:
            return None
        books = host.cpus.empty()
        for key in self._reservations.outlasted_by:
            if key in host.cpus.holdings:
                books.add(key, host.cpus.holdings[key])
        return books

    def _may_be(self, host: Host, ask: Ask) -> bool:
        name = host.host_id
        if not host.eligible or name in self._taken or name in ask.barred:
            return False
        return carries(host, ask.labels)


def _on_one_host(field: _Field, asks: Sequence[Ask]) -> list[Share] | None:
    whole = sum_of(asks)
    for _, _, host_id in sorted(field.candidates(whole)) if whole is not None else ():
        if field.could_serve(host_id, whole):
            return [Share(ask.number, host_id, ask.count) for ask in asks]
    return None


def _within_a_value(field: _Field, asks: Sequence[Ask], label: str) -> list[Share] | None:
    """The value of the label with which least is missing."""
    by_value: dict[str, list[list[Candidate]]] = {}
    promise: Counter[str] = Counter()
    for ask in asks:
        for candidate in field.candidates(ask):
            value = field.room.host(candidate[2]).labels.get(label)
            if value is not None:
                by_value.setdefault(value, [[] for _ in asks])[ask.number].append(candidate)
                promise[value] += MILLION - candidate[0]
    best: tuple[int, str, list[Share]] | None = None
    for value in heapq.nlargest(VALUES_TRIED_MAX, sorted(by_value), key=promise.__getitem__):
        found = field.filled(asks, among=by_value[value])
        if found is not None:
            rank = (field.most_missing(), value, found)
            best = rank if best is None else min(best, rank, key=lambda each: each[:2])
    return best[2] if best is not None else None


def _ranked(found: Sequence[tuple[int, Host, dict[str, int]]]) -> list[Candidate]:
    """Of (what is missing, host, need): among those where least is missing slots are looked at."""
    least = min((missing for missing, _, _ in found), default=0)
    ties = [(host, need) for missing, host, need in found if missing == least > 0]
    large = {host.host_id: _as_large(host, need) for host, need in ties[:TIES_LOOKED_AT_MAX]}
    return [(missing, large.get(host.host_id, 0), host.host_id) for missing, host, _ in found]


def _as_large(host: Host, need: dict[str, int]) -> int:
    """Slots on a host that have at least this each."""
    amounts = {name: amount for name, amount in need.items() if name not in (SLOTS, DEFAULT_SLOTS)}
    return sum(
        all(booked.get(name, 0) >= amount for name, amount in amounts.items())
        for booked in (in_grains(slot.booked) for slot in host.slots.values())
    )


def _could_give(host: Host, stays: Amounts) -> dict[str, int]:
    """What a host would have free if all its slots ended but those that have booked what stays, as
    it has said itself; in columns.
    """
    columns = in_grains(add(host.free(), host.booked))
    total = in_grains(host.total)
    booked = in_grains(stays)
    columns = {
        name: max(0, min(amount, total.get(name, 0)) - booked.get(name, 0))
        for name, amount in columns.items()
    }
    columns[SLOTS] = host.executor.registration.slots_max or host.slots_left()
    columns[DEFAULT_SLOTS] = host.default_slots(columns, columns[SLOTS])
    return columns


def _free(host: Host) -> dict[str, int]:
    columns = in_grains(host.free())
    columns[SLOTS] = host.slots_left()
    columns[DEFAULT_SLOTS] = host.default_slots(columns, columns[SLOTS])
    return columns

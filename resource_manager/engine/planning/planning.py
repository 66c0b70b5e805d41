"""What waits is planned on executors that were asked for, and for the rest executors are chosen.

Pure: no state, only numbers in and out, and the same answer to the same question. Wishes are
counted by kind and stand in line in order of arrival. Executors that were asked for and have not
come are rooms, oldest first. What was planned before stays where it was as long as everybody can be
served so; where limits do not allow that, the line decides from scratch who is.

Gangs are planned whole or not at all, also on free room of executors that are there. Which new
executors serve the rest for the least cost, `cover.py` knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity
from resource_manager.engine.planning.batches import Batch, rest_of, rest_of_limits
from resource_manager.engine.planning.classes import fits_somewhere
from resource_manager.engine.planning.cover import cover
from resource_manager.engine.planning.exact import Offer
from resource_manager.engine.planning.filling import fill_rooms
from resource_manager.engine.planning.gang_planning import GangPlanner, GangWish, New
from resource_manager.engine.planning.packing import Counts, Space, Wish
from resource_manager.engine.planning.within_limits import (
    first_in_line,
    most_room,
    served_at_most,
    served_within,
)

LIMIT = "limit/"
"""Prefix of dimensions that stand for what all executors may have together, in exact amounts."""

COST_UNIT = 1_000_000
"""Costs are reckoned in millionths."""

_FEW = 200
_ROUNDS_MAX = 16
_ROUNDS_OF_MANY = 1
"""How often it is tried how many of the line can be served within limits, if they are few, and if
they are many.
"""


_GOOD_ENOUGH = 20
"""Of many, one in so many may be left at first: others are served in their place."""


@dataclass(frozen=True, slots=True)
class Supply:
    """Executors that could be asked for: what one has (in columns of the capacity index), what it
    costs, how many more there may be, and its exact total, for limits.
    """

    capacity: Capacity
    total: Amounts
    cost: float
    most: int = UNBOUNDED


@dataclass(frozen=True, slots=True)
class Backlog:
    """Everything that a plan is made of.

    Attributes:
        wishes: what is asked for, each once per kind.
        line: (kind, how many) in order of arrival.
        gangs: in order of arrival.
        pending: executors that were asked for, oldest first, by name.
        hosts: free room of executors that are there, by name; only gangs are planned on it.
        supplies: what may be asked for.
        limits: what all that is asked for may have together; an absent dimension has no limit.
        kept: what was planned on which pending executor before.
    """

    wishes: Sequence[Wish]
    line: Sequence[tuple[int, int]]
    supplies: Sequence[Supply]
    pending: Mapping[str, Capacity] = field(default_factory=dict)
    gangs: Sequence[GangWish] = ()
    hosts: Mapping[str, Capacity] = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    kept: Mapping[str, Counts] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """Who is planned where.

    Attributes:
        pending: how many of which kind on which pending executor.
        new: executors to ask for.
        left: how many of which kind are planned nowhere.
        gangs: places in `Backlog.gangs` of those that are planned.
        counted_on: executors that are there and that gangs are planned on.
    """

    pending: dict[str, Counts] = field(default_factory=dict)
    new: list[New] = field(default_factory=list)
    left: Counts = field(default_factory=dict)
    gangs: list[int] = field(default_factory=list)
    counted_on: set[str] = field(default_factory=set)


def make_plan(backlog: Backlog) -> Plan:
    """Plans everything that can be planned."""
    if not (backlog.pending or backlog.gangs):
        return _Planning(backlog).in_order()
    planning = _Planning(backlog)
    if planning.is_too_much():
        return planning.in_order()
    try:
        plan = planning.as_before()
    except _TooMuch:
        return _Planning(backlog).in_order()
    if planning.limited and plan.left:
        return _Planning(backlog).in_order()
    return plan


class _TooMuch(Exception):
    """Limits do not allow to serve everybody, and working out whom they do would take long."""


class _Planning:
    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        capacities = [each.capacity for each in backlog.supplies]
        present = [*backlog.pending.values(), *backlog.hosts.values()]
        self._space = Space(backlog.wishes, [*capacities, *present])
        self._rooms = {
            name: self._space.room(capacity) for name, capacity in backlog.pending.items()
        }
        limits = list(backlog.limits)
        self._limits = [UNBOUNDED] * self._space.size + [backlog.limits[name] for name in limits]
        self._bare_offers = [
            Offer(
                (
                    *self._space.vector(each.capacity.amounts),
                    *(each.total.get(name, 0) for name in limits),
                ),
                (),
                max(1, round(each.cost * COST_UNIT)),
                each.most,
            )
            for each in backlog.supplies
        ]
        self._gangs = GangPlanner(
            self._space,
            self._rooms,
            hosts={n: self._space.room(capacity) for n, capacity in backlog.hosts.items()},
            capacities=capacities,
            offers=self._bare_offers,
            limits=self._limits,
        )
        self._left: Counts = {}
        self._usable: list[Capacity] = []  # of what may be asked for for those in line
        self._in_order = False
        self.limited = False  # somebody is left because of limits

    def is_too_much(self) -> bool:
        """True if limits leave somebody for sure; to be asked before anything is planned."""
        _, offers = self._usable_offers()
        room = most_room(offers, self._gangs.limits)
        if room is None:
            return False
        for each in self._rooms.values():
            for at, amount in enumerate(each.left):
                room[at] += amount
        line = [each for each in self._backlog.line if fits_somewhere(each[0], offers)]
        needs = [offer.needs for offer in offers]
        needs += self._space.needs_everywhere([room.capacity for room in self._rooms.values()])
        return served_at_most(line, needs, room) < sum(count for _, count in line)

    def as_before(self) -> Plan:
        """Gangs first, then whoever was planned before, then the others.

        Raises:
            _TooMuch: limits do not allow that, as far as is known without looking much further.
        """
        backlog = self._backlog
        self._gangs.reserve(backlog.gangs, backlog.kept)
        planned = [at for at, gang in enumerate(backlog.gangs) if self._gangs.plan(gang)]
        of_gangs = {kind for gang in backlog.gangs for kind in gang.members}
        wanted: Counts = {}
        for kind, count in backlog.line:
            wanted[kind] = wanted.get(kind, 0) + count
        for name, content in backlog.kept.items():
            room = self._rooms.get(name)
            for kind, count in content.items() if room is not None else ():
                if room is not None and kind not in of_gangs and wanted.get(kind):
                    wanted[kind] -= self._space.take(room, kind, min(count, wanted[kind]))
        rest = []
        for kind, count in reversed(backlog.line):  # those who came first keep what was planned
            here = min(count, wanted[kind])
            wanted[kind] -= here
            if here:
                rest.append((kind, here))
        rest.reverse()
        return self._finish(self._fill(rest), planned)

    def in_order(self) -> Plan:
        """Everybody in order of arrival."""
        self._in_order = True
        planned, rest, at = [], [], 0
        backlog = self._backlog
        for number, gang in enumerate(backlog.gangs):
            rest += self._fill(backlog.line[at : gang.before])
            at = max(at, gang.before)
            if self._gangs.plan(gang):
                planned.append(number)
        rest += self._fill(backlog.line[at:])
        return self._finish(rest, planned)

    def _fill(self, line: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Puts these into rooms, the oldest that has room first; the rest."""
        rooms = [*self._rooms.values(), *(room for _, room in self._gangs.opened)]
        return fill_rooms(self._space, rooms, line)

    def _finish(self, rest: list[tuple[int, int]], planned: list[int]) -> Plan:
        rest = self._fill(rest) if self._gangs.opened else rest
        batches = self._cover(rest)
        plan = Plan(gangs=planned, left=self._left)
        for name, room in self._rooms.items():
            if room.content:
                plan.pending[name] = self._gangs.apart(room.content)
        plan.new = [New(at, self._gangs.apart(room.content)) for at, room in self._gangs.opened]
        for batch in batches:
            plan.new += [New(batch.offer, dict(batch.content)) for _ in range(batch.copies)]
        plan.counted_on = self._gangs.counted_on()
        return plan

    def _cover(self, line: list[tuple[int, int]]) -> list[Batch]:
        """New executors for these, as far as limits allow; the first in line first."""
        limits = self._gangs.limits
        usable, offers = self._usable_offers()
        self._usable = [self._backlog.supplies[at].capacity for at in usable]
        possible = {kind for kind, _ in line if fits_somewhere(kind, offers)}
        impossible = first_in_line([each for each in line if each[0] not in possible], None)
        self._left.update(impossible)
        self.limited = self._fits_some_supply(impossible)
        line = [each for each in line if each[0] in possible]
        batches = self._cover_in_order(line, offers, limits) if line else []
        return [Batch(usable[batch.offer], batch.content, batch.copies) for batch in batches]

    def _usable_offers(self) -> tuple[list[int], list[Offer]]:
        """What one may still be asked for of: places in `Backlog.supplies`, and the offers."""
        rest, limits = self._gangs.offers_left(), self._gangs.limits
        usable = [
            at
            for at, offer in enumerate(rest)
            if offer.most
            and all(a <= b for a, b in zip(offer.total, limits, strict=True) if b < UNBOUNDED)
        ]
        return usable, self._with_needs([rest[at] for at in usable], usable)

    def _cover_in_order(
        self, line: list[tuple[int, int]], offers: list[Offer], limits: Sequence[int]
    ) -> list[Batch]:
        total = sum(count for _, count in line)
        most = served_within(line, offers, limits)
        found = cover(first_in_line(line, most), offers, limits)
        if most == total and not found.left:
            return found.batches
        self.limited = True
        if total > _FEW and not self._in_order:
            raise _TooMuch
        for _ in range(_ROUNDS_MAX if most <= _FEW else _ROUNDS_OF_MANY):
            left = sum(found.left.values())
            if not left or (most > _FEW and left * _GOOD_ENOUGH <= most):
                break
            most = min(most - 1, most - left)
            if most < 1:
                break
            found = cover(first_in_line(line, most), offers, limits)
        return self._with_others(line, found.batches, offers, limits)

    def _with_others(
        self,
        line: list[tuple[int, int]],
        batches: list[Batch],
        offers: list[Offer],
        limits: Sequence[int],
    ) -> list[Batch]:
        """Puts the whole line into what was chosen, in order of arrival where that serves those
        who came first, and the others into what is left and what may still be asked for.
        """
        planned = sum(sum(batch.content.values()) * batch.copies for batch in batches)
        kept = first_in_line(line, planned)
        chosen = [Batch(b.offer, dict(b.content)) for b in batches for _ in range(b.copies)]
        served: Counts = {}
        for batch in chosen:
            for kind, count in batch.content.items():
                served[kind] = served.get(kind, 0) + count
        rooms = [self._space.room(self._usable[b.offer]) for b in chosen]
        if served == kept:  # these are the first in line
            for batch, room in zip(chosen, rooms, strict=True):
                for kind, count in batch.content.items():
                    self._space.take(room, kind, count)
            line = _behind(line, planned)
        rest = fill_rooms(self._space, rooms, line)
        filled = [
            Batch(batch.offer, dict(room.content))
            for batch, room in zip(chosen, rooms, strict=True)
            if room.content
        ]
        more_offers, more_limits = rest_of(filled, offers), rest_of_limits(filled, offers, limits)
        most = served_within(rest, more_offers, more_limits)
        more = cover(first_in_line(rest, most), more_offers, more_limits)
        for kind, count in (*first_in_line(_behind(rest, most), None).items(), *more.left.items()):
            self._left[kind] = self._left.get(kind, 0) + count
        return [*filled, *more.batches]

    def _fits_some_supply(self, kinds: Iterable[int]) -> bool:
        """True if one of these could be served if there were no limits."""
        unlimited = [Offer(offer.total, (), offer.cost) for offer in self._bare_offers]
        offers = self._with_needs(unlimited, list(range(len(unlimited)))) if kinds else []
        return any(fits_somewhere(kind, offers) for kind in kinds)

    def _with_needs(self, offers: list[Offer], supplies: list[int]) -> list[Offer]:
        capacities = [self._backlog.supplies[at].capacity for at in supplies]
        needs = self._space.needs_everywhere(capacities)
        return [
            Offer(offer.total, each, offer.cost, offer.most)
            for offer, each in zip(offers, needs, strict=True)
        ]


def _behind(line: Sequence[tuple[int, int]], first: int) -> list[tuple[int, int]]:
    """The line without the first so many."""
    rest = []
    for kind, count in line:
        here = max(0, count - first)
        first = max(0, first - count)
        if here:
            rest.append((kind, here))
    return rest

"""The cheapest cover, exactly, where that is cheap to find: of equal requests, and of few.

`equal_cover` is the covering knapsack, by dynamic programming over the number served. `small_cover`
is bin packing with bins of several sizes and prices, by search over what is left, each time for all
ways to fill the next bin of which none serves less than another; what is left and how many of each
may still be had is remembered with its answer. Both refuse to know what a request is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.packing import Need

STATES_MAX = 256
"""Different sets of requests left, up to which a cover is searched for exactly."""

VISITS_MAX = 4_000
"""Fills that are looked at before a search is given up."""

_NUMBER_BITS = 24

_EQUAL_MAX = 20_000
"""Equal requests for which a table is made at most; those beyond get the best value for money."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of executor: what it has, what a request of each kind takes of it (None: it cannot
    be there), what it costs, and how many more there may be.
    """

    total: Sequence[int]
    needs: Sequence[Need | None]
    cost: int
    most: int = UNBOUNDED


def room_for(left: Sequence[int], need: Need | None) -> int:
    """How many more fit."""
    if need is None:
        return 0
    return min([left[at] // amount for at, amount in need])


def equal_cover(count: int, served: Sequence[int], offers: Sequence[Offer]) -> list[int] | None:
    """How many of each for so many equal requests at the least cost, then the least number; None if
    not all can be served. `served` is how many one executor of each kind serves.
    """
    usable = [at for at, each in enumerate(served) if each and offers[at].most]
    chosen = [0] * len(offers)
    if sum(served[at] * min(offers[at].most, count) for at in usable) < count:
        return None
    best = min(usable, key=lambda at: (offers[at].cost / served[at], -served[at], at))
    # Among as many others as the best one serves there are some that serve a multiple of that
    # together, so at least as well served by best ones: fewer than that many others are enough.
    table = min(count, max(_EQUAL_MAX // 10, served[best] * max(served[at] for at in usable)))
    table = min(table, _EQUAL_MAX)
    chosen[best] = min(offers[best].most, -(-(count - table) // served[best]))
    count = max(0, count - chosen[best] * served[best])
    bounded = [(at, offers[at].most - chosen[at]) for at in usable]
    rest = _table_cover(count, served, offers, _without_worse(bounded, count, served, offers))
    if rest is None:
        return None
    return [one + more for one, more in zip(chosen, rest, strict=True)]


def _without_worse(
    bounded: list[tuple[int, int]], count: int, served: Sequence[int], offers: Sequence[Offer]
) -> list[tuple[int, int]]:
    """Leaves out what costs as much as another one, which serves no less and is never used up."""
    kept: list[tuple[int, int]] = []
    for at, most in sorted(bounded, key=lambda each: (offers[each[0]].cost, -served[each[0]])):
        if not any(
            served[other] >= min(served[at], count) and bound * served[other] >= count
            for other, bound in kept
        ):
            kept.append((at, most))
    return sorted(kept)


def _table_cover(
    count: int,
    served: Sequence[int],
    offers: Sequence[Offer],
    bounded: list[tuple[int, int]],
) -> list[int] | None:
    """`least[n]` is what serving n costs; executors that are few come in packs of 1, 2, 4 and so
    on, each of which may be taken once.
    """
    never = UNBOUNDED << _NUMBER_BITS
    least = [0] + [never] * count  # cost, and in the lowest bits how many executors
    packs = list(_packs(count, served, bounded))
    how: list[list[int]] = []  # by pack: what was served without it; -1: it was not taken
    for at, size in packs:
        taken = [-1] * (count + 1)
        step, price = (
            served[at] * (size or 1),
            ((offers[at].cost << _NUMBER_BITS) + 1) * (size or 1),
        )
        before = least if size == 0 else least[:]
        for n in range(1, count + 1):
            rest = n - step if n > step else 0
            if (offer := before[rest] + price) < least[n]:
                least[n] = offer
                taken[n] = rest
        how.append(taken)
    if least[count] >= never:
        return None
    return _taken_back(count, how, packs, len(offers))


def _packs(
    count: int, served: Sequence[int], bounded: list[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """(kind of executor, size of a pack); 0: single ones, as many as are wanted."""
    for at, most in bounded:
        if most * served[at] >= count:
            yield at, 0
            continue
        size, left = 1, most
        while left > 0:
            yield at, min(size, left)
            left -= size
            size *= 2


def _taken_back(
    count: int,
    how: list[list[int]],
    packs: list[tuple[int, int]],
    offers: int,
) -> list[int]:
    chosen, pack = [0] * offers, len(packs) - 1
    while count:
        rest = how[pack][count]
        at, size = packs[pack]
        if rest >= 0:
            chosen[at] += size or 1
            count = rest
        if rest < 0 or size:
            pack -= 1
    return chosen


def _without_dominated(offers: Sequence[Offer], limited: bool) -> list[int]:
    """Leaves out executors that cost as much as others that hold all that they hold, and more; with
    limits, what is smaller may be wanted all the same.
    """
    kept: list[int] = []
    order = sorted(range(len(offers)), key=lambda at: (offers[at].cost, -sum(offers[at].total), at))
    for at in order:
        if limited or not any(_covers(offers[other], offers[at]) for other in kept):
            kept.append(at)
    return sorted(kept)


def _covers(one: Offer, other: Offer) -> bool:
    if one.most < UNBOUNDED or any(a < b for a, b in zip(one.total, other.total, strict=True)):
        return False
    return all(
        theirs is None or (ours is not None and set(ours) == set(theirs))
        for ours, theirs in zip(one.needs, other.needs, strict=True)
    )


Fill = tuple[int, ...]
"""How many of each kind go into one executor."""


def small_cover(
    counts: Sequence[int],
    offers: Sequence[Offer],
    limits: Sequence[int],
    visits: int = VISITS_MAX,
) -> list[tuple[int, Fill]] | None:
    """Executors, as (offer, fill), that serve all at the least cost, then the least number; None if
    that is impossible, or too long a search for so many `visits`. `limits` are what all of them may
    have together, by dimension.
    """
    if prod(count + 1 for count in counts) > STATES_MAX:
        return None
    search = _Small(offers, limits, visits)
    try:
        found = search.best(tuple(counts), tuple(offer.most for offer in offers), tuple(limits))
    except _TooLong:
        return None
    return None if found is None else found[1]


class _TooLong(Exception):
    pass


_Answer = tuple[tuple[int, int], list[tuple[int, Fill]]] | None


class _Small:
    def __init__(self, offers: Sequence[Offer], limits: Sequence[int], visits: int) -> None:
        self._offers = offers
        self._limited = any(limit < UNBOUNDED for limit in limits)
        self._bounded = any(offer.most < UNBOUNDED for offer in offers)
        self._known: dict[tuple[object, ...], _Answer] = {}
        self._fills: dict[tuple[int, tuple[int, ...]], list[Fill]] = {}
        self._visits = visits
        self._useful = _without_dominated(offers, self._limited)

    def best(self, left: Fill, most: tuple[int, ...], limits: tuple[int, ...]) -> _Answer:
        if not any(left):
            return (0, 0), []
        key = (left, most if self._bounded else (), limits if self._limited else ())
        if key in self._known:
            return self._known[key]
        answer: _Answer = None
        first = next(kind for kind, count in enumerate(left) if count)
        for at in self._useful:
            offer = self._offers[at]
            if not most[at] or room_for(offer.total, offer.needs[first]) < 1:
                continue
            if self._limited and any(
                amount > limit for amount, limit in zip(offer.total, limits, strict=True)
            ):
                continue
            answer = self._with(at, left, most, limits, answer)
        self._known[key] = answer
        return answer

    def _with(
        self, at: int, left: Fill, most: tuple[int, ...], limits: tuple[int, ...], answer: _Answer
    ) -> _Answer:
        """The better of an answer and the best one that begins with an executor of this kind."""
        offer = self._offers[at]
        if most[at] < UNBOUNDED:
            most = (*most[:at], most[at] - 1, *most[at + 1 :])
        if self._limited:
            limits = tuple(a - b for a, b in zip(limits, offer.total, strict=True))
        for fill in self._fills_of(at, left):
            self._visits -= 1
            if self._visits < 0:
                raise _TooLong
            rest = self.best(tuple(a - b for a, b in zip(left, fill, strict=True)), most, limits)
            if rest is None:
                continue
            price = (rest[0][0] + offer.cost, rest[0][1] + 1)
            if answer is None or price < answer[0]:
                answer = price, [(at, fill), *rest[1]]
        return answer

    def _fills_of(self, at: int, left: Fill) -> list[Fill]:
        key = (at, left)
        if key not in self._fills:
            offer = self._offers[at]
            self._fills[key] = list(_fills(offer, left, list(offer.total), 0, True))
        return self._fills[key]


def _fills(offer: Offer, left: Fill, room: list[int], kind: int, first: bool) -> Iterator[Fill]:
    """All ways to fill one executor, with one of the first kind there is, to which nothing that is
    left could be added.
    """
    if kind == len(left):
        yield ()
        return
    need, count = offer.needs[kind], left[kind]
    most = min(count, room_for(room, need)) if count else 0
    least = 1 if first and count else 0
    for taken in range(most, least - 1, -1):
        if taken and need is not None:
            for at, amount in need:
                room[at] -= amount * taken
        for rest in _fills(offer, left, room, kind + 1, first and not count):
            # What later kinds take is out of the room as long as they are not asked to go on.
            if taken == count or room_for(room, need) < 1:
                yield (taken, *rest)
        if taken and need is not None:
            for at, amount in need:
                room[at] += amount * taken

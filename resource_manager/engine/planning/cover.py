"""Which new executors to ask for: the cheapest set that serves a backlog.

Equal requests, and few, are covered exactly (`exact.py`). Otherwise this is variable-sized vector
bin packing, for which several covers are made and the cheapest one is taken:

- the best value for money first, where a request is worth the least that its share of an executor
  costs anywhere (served per cost alone would prefer small requests to large ones);
- for each kind of executor: as much as possible on that one, the rest as above.

Then the executors that give least for their cost are taken apart again and covered exactly, a few
at a time, as long as that is cheaper. With very many different requests the first part works on
classes of similar ones, and the requests themselves are then put into what was chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.batches import Batch, Cover, rest_of, rest_of_limits, within
from resource_manager.engine.planning.classes import (
    KINDS_MAX,
    classes_of,
    fits_somewhere,
    mean_offers,
    pack,
)
from resource_manager.engine.planning.exact import (
    STATES_MAX,
    VISITS_MAX,
    Offer,
    equal_cover,
    room_for,
    small_cover,
)
from resource_manager.engine.planning.packing import Counts

_VALUE_UNIT = 1 << 20
_IMPROVED_MAX = 12
"""Attempts at covering a few executors' requests for less."""

_STATES_IMPROVED = STATES_MAX // 4
_VISITS_IMPROVED = 250
"""How large these attempts are; see `small_cover`."""


def cover(counts: Mapping[int, int], offers: Sequence[Offer], limits: Sequence[int]) -> Cover:
    """The cheapest way that was found to serve these.

    Args:
        counts: how many of each kind, by kind.
        offers: what can be asked for; `needs` by kind.
        limits: what all that is asked for may have together, by dimension.

    Returns:
        The cover; what fits on no offer is left, and what limits or `most` do not allow.
    """
    offers = [
        Offer(offer.total, offer.needs, offer.cost, offer.most if _allowed(offer, limits) else 0)
        for offer in offers
    ]
    possible = {
        kind: count for kind, count in counts.items() if count and fits_somewhere(kind, offers)
    }
    never = {kind: count for kind, count in counts.items() if count and kind not in possible}
    if not possible:
        return Cover([], never)
    found = _exactly(possible, offers, limits)
    if found is None:
        if len(possible) > KINDS_MAX:
            found = _by_classes(possible, offers, limits)
        else:
            found = _Covering(possible, offers, limits).cheapest()
        _improve(found, offers, limits)
    found.left.update(never)
    return found


def left_quickly(counts: Mapping[int, int], offers: Sequence[Offer], limits: Sequence[int]) -> int:
    """How many of these, each of which fits somewhere, one quick cover leaves."""
    possible = {kind: count for kind, count in counts.items() if fits_somewhere(kind, offers)}
    left = sum(counts.values()) - sum(possible.values())
    if possible:
        left += sum(_Covering(possible, offers, limits).by_value(None).left.values())
    return left


def _allowed(offer: Offer, limits: Sequence[int]) -> bool:
    return all(
        amount <= limit or limit >= UNBOUNDED
        for amount, limit in zip(offer.total, limits, strict=True)
    )


def _by_classes(counts: Counts, offers: Sequence[Offer], limits: Sequence[int]) -> Cover:
    classes = classes_of(counts, offers)
    means = mean_offers(classes, offers)
    members = {number: len(each.members) for number, each in enumerate(classes)}
    chosen = cover(members, means, limits)
    shares: dict[int, Counts] = {}
    for batch in chosen.batches:
        share = shares.setdefault(batch.offer, {})
        for number, count in batch.content.items():
            share[number] = share.get(number, 0) + count * batch.copies
    packed, left = pack(classes, shares, offers, limits)
    made = Cover([Batch(at, fill) for at, fill in packed], left)
    if not left or not packed:
        return made if packed else _one_by_one(counts, offers, limits)
    rest = rest_of(made.batches, offers)
    more = cover(left, rest, rest_of_limits(made.batches, offers, limits))
    return Cover([*made.batches, *more.batches], more.left)


def _one_by_one(counts: Counts, offers: Sequence[Offer], limits: Sequence[int]) -> Cover:
    """Where no class could be served although requests could: some of them at a time."""
    made = Cover([], dict(counts))
    kinds = list(counts)
    for first in range(0, len(kinds), KINDS_MAX):
        some = {kind: counts[kind] for kind in kinds[first : first + KINDS_MAX]}
        rest = rest_of(made.batches, offers)
        found = cover(some, rest, rest_of_limits(made.batches, offers, limits))
        made.batches += found.batches
        for kind in some:
            del made.left[kind]
        made.left.update(found.left)
    return made


def _exactly(
    counts: Counts, offers: Sequence[Offer], limits: Sequence[int], visits: int = VISITS_MAX
) -> Cover | None:
    kinds = list(counts)
    if len(kinds) == 1:
        kind = kinds[0]
        served = [room_for(offer.total, offer.needs[kind]) for offer in offers]
        chosen = equal_cover(counts[kind], served, offers)
        if chosen is None:
            return None
        cover_ = _of_equal(kind, counts[kind], served, chosen)
        return cover_ if within(cover_.batches, offers, limits) else None
    if prod(counts[kind] + 1 for kind in kinds[:STATES_MAX]) > STATES_MAX:
        return None
    compact = [
        Offer(offer.total, [offer.needs[kind] for kind in kinds], offer.cost, offer.most)
        for offer in offers
    ]
    found = small_cover([counts[kind] for kind in kinds], compact, limits, visits)
    if found is None:
        return None
    return Cover(
        [
            Batch(at, {kind: n for kind, n in zip(kinds, fill, strict=True) if n})
            for at, fill in found
        ]
    )


def _of_equal(kind: int, count: int, served: list[int], chosen: list[int]) -> Cover:
    """Fills the executors that were chosen one after the other."""
    batches = []
    for at, number in enumerate(chosen):
        whole = min(number, count // served[at]) if served[at] else 0
        if whole:
            batches.append(Batch(at, {kind: served[at]}, whole))
            count -= whole * served[at]
        if number > whole and count:
            batches.append(Batch(at, {kind: count}))
            count = 0
    return Cover(batches)


class _Covering:
    """Covers of one backlog, made in several ways."""

    def __init__(self, counts: Counts, offers: Sequence[Offer], limits: Sequence[int]) -> None:
        self._counts = counts
        self._offers = offers
        self._limits = limits
        self._limited = [at for at, limit in enumerate(limits) if limit < UNBOUNDED]
        self._worth = {kind: self._worth_of(kind) for kind in counts}
        # What is worth most comes first: it finds room least easily.
        self._order = sorted(counts, key=lambda kind: (-self._worth[kind], kind))
        self._fitting = [
            [kind for kind in self._order if room_for(offer.total, offer.needs[kind]) >= 1]
            for offer in offers
        ]

    def cheapest(self) -> Cover:
        """The best of several."""
        best = self.by_value(None)
        rank = self._rank(best)
        for at in self._worth_trying():
            other = self.by_value(at)
            if (other_rank := self._rank(other)) < rank:
                best, rank = other, other_rank
        return best

    def _rank(self, made: Cover) -> tuple[int, int, int]:
        left = sum(self._worth[kind] * count for kind, count in made.left.items())
        return (left, *made.price(self._offers))

    def _worth_trying(self) -> list[int]:
        return [at for at, offer in enumerate(self._offers) if offer.most and self._fitting[at]]

    def _worth_of(self, kind: int) -> int:
        """The least that its share of an executor costs anywhere."""
        return min(
            max([amount * _VALUE_UNIT // offer.total[at] for at, amount in need]) * offer.cost
            for offer in self._offers
            if (need := offer.needs[kind]) is not None and room_for(offer.total, need) >= 1
        )

    def by_value(self, first: int | None) -> Cover:
        """Fills of one kind of executor as long as there are any, then the best value for money."""
        made = Cover([], dict(self._counts))
        most = [offer.most for offer in self._offers]
        limits = list(self._limits)
        fills: dict[int, Counts] = {}
        while made.left:
            if first is not None and (fill := self._fill(first, made.left, most, limits)):
                chosen = first
            else:
                first = None
                self._renew(fills, made.left, most, limits)
                if not fills:
                    break
                chosen = max(fills, key=lambda at: (self._value_of(at, fills[at]), -at))
                fill = fills[chosen]
            copies = self._copies(chosen, fill, made.left, most, limits)
            made.batches.append(Batch(chosen, dict(fill), copies))
            for kind, count in fill.items():
                made.left[kind] -= count * copies
                if not made.left[kind]:
                    del made.left[kind]
            if most[chosen] < UNBOUNDED:
                most[chosen] -= copies
            for at in self._limited:
                limits[at] -= self._offers[chosen].total[at] * copies
        return made

    def _renew(
        self, fills: dict[int, Counts], left: Counts, most: list[int], limits: list[int]
    ) -> None:
        """Fills that cannot be had any more are made anew; others are still as good."""
        for at in range(len(self._offers)):
            fill = fills.get(at)
            if (
                fill is not None
                and self._allowed(at, most, limits)
                and all(left.get(kind, 0) >= count for kind, count in fill.items())
            ):
                continue
            fills.pop(at, None)
            if new := self._fill(at, left, most, limits):
                fills[at] = new

    def _value_of(self, at: int, fill: Counts) -> float:
        value = sum(self._worth[kind] * count for kind, count in fill.items())
        return value / self._offers[at].cost

    def _allowed(self, at: int, most: list[int], limits: list[int]) -> bool:
        total = self._offers[at].total
        return most[at] > 0 and all(total[each] <= limits[each] for each in self._limited)

    def _fill(self, at: int, left: Counts, most: list[int], limits: list[int]) -> Counts:
        """As much as fits into one executor, what is worth most first."""
        fill: Counts = {}
        if not self._allowed(at, most, limits):
            return fill
        offer = self._offers[at]
        room = list(offer.total)
        for kind in self._fitting[at]:
            if count := left.get(kind):
                need = offer.needs[kind] or ()
                for each, amount in need:
                    if room[each] < amount * count:
                        count = room[each] // amount
                        if not count:
                            break
                if count:
                    fill[kind] = count
                    for each, amount in need:
                        room[each] -= amount * count
        return fill

    def _copies(
        self, at: int, fill: Counts, left: Counts, most: list[int], limits: list[int]
    ) -> int:
        copies = min([left[kind] // count for kind, count in fill.items()])
        total = self._offers[at].total
        allowed = [limits[each] // total[each] for each in self._limited if total[each]]
        return min([copies, most[at], *allowed])


def _improve(made: Cover, offers: Sequence[Offer], limits: Sequence[int]) -> None:
    """Covers the requests of executors that give little for their cost anew, exactly."""
    ranked = sorted(made.batches, key=lambda batch: _filled(batch, offers))
    first = 0
    added: list[Batch] = []
    for _ in range(_IMPROVED_MAX):
        taken = _few(ranked, first)
        if not taken:
            break
        counts: Counts = {}
        for batch, copies in taken:
            batch.copies -= copies
            for kind, count in batch.content.items():
                counts[kind] = counts.get(kind, 0) + count * copies
        kept = [*ranked, *added]
        rest, rest_limits = rest_of(kept, offers), rest_of_limits(kept, offers, limits)
        better = _exactly(counts, rest, rest_limits, _VISITS_IMPROVED)
        before = Cover([Batch(batch.offer, batch.content, copies) for batch, copies in taken])
        if better is not None and better.price(offers) < before.price(offers):
            added += better.batches
        else:
            for batch, copies in taken:
                batch.copies += copies
            first += 1
    made.batches = [batch for batch in [*ranked, *added] if batch.copies]


def _few(ranked: Sequence[Batch], first: int) -> list[tuple[Batch, int]]:
    """Executors from this one on, as long as their requests together are few enough."""
    taken: list[tuple[Batch, int]] = []
    counts: Counts = {}
    for batch in ranked[first : first + STATES_MAX]:
        copies = 0
        while copies < batch.copies:
            merged = dict(counts)
            for kind, count in batch.content.items():
                merged[kind] = merged.get(kind, 0) + count
            if len(merged) > 1 and prod(n + 1 for n in merged.values()) > _STATES_IMPROVED:
                break
            counts = merged
            copies += 1
        if copies:
            taken.append((batch, copies))
        if copies < batch.copies:
            break
    return taken


def _filled(batch: Batch, offers: Sequence[Offer]) -> float:
    """How full the fullest dimension is."""
    offer = offers[batch.offer]
    used = [0] * len(offer.total)
    for kind, count in batch.content.items():
        for at, amount in offer.needs[kind] or ():
            used[at] += amount * count
    return max([amount / total for amount, total in zip(used, offer.total, strict=True) if amount])

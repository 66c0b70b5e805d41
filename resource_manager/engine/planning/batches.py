"""Executors to ask for, counted, and what may still be asked for beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.exact import Offer
from resource_manager.engine.planning.packing import Counts


@dataclass(slots=True)
class Batch:
    """Equal executors to ask for: which kind, what each is to serve, how many."""

    offer: int
    content: Counts
    copies: int = 1


@dataclass(slots=True)
class Cover:
    """Executors to ask for, and what they do not serve."""

    batches: list[Batch] = field(default_factory=list)
    left: Counts = field(default_factory=dict)

    def price(self, offers: Sequence[Offer]) -> tuple[int, int]:
        """Cost, then number."""
        cost = sum(offers[batch.offer].cost * batch.copies for batch in self.batches)
        return cost, sum(batch.copies for batch in self.batches)


def within(batches: Sequence[Batch], offers: Sequence[Offer], limits: Sequence[int]) -> bool:
    """True if these may be asked for."""
    number = [0] * len(offers)
    for batch in batches:
        number[batch.offer] += batch.copies
    if any(count > offer.most for count, offer in zip(number, offers, strict=True)):
        return False
    return all(
        sum(offer.total[at] * count for count, offer in zip(number, offers, strict=True)) <= limit
        for at, limit in enumerate(limits)
        if limit < UNBOUNDED
    )


def rest_of(kept: Sequence[Batch], offers: Sequence[Offer]) -> list[Offer]:
    """The offers, with how many more there may be beside these."""
    number = [0] * len(offers)
    for batch in kept:
        number[batch.offer] += batch.copies
    return [
        Offer(
            offer.total,
            offer.needs,
            offer.cost,
            offer.most - count if offer.most < UNBOUNDED else UNBOUNDED,
        )
        for offer, count in zip(offers, number, strict=True)
    ]


def rest_of_limits(kept: list[Batch], offers: Sequence[Offer], limits: Sequence[int]) -> list[int]:
    rest = list(limits)
    for at, limit in enumerate(limits):
        if limit < UNBOUNDED:
            rest[at] -= sum(offers[batch.offer].total[at] * batch.copies for batch in kept)
    return rest

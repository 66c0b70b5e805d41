"""Executors that may be requested: what one has and costs, and how many are allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from resource_manager.engine.planning.packing import Counts, Need

PRICE_UNIT = 1 << 20
"""Prices are counted in fractions of this."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of executor that may be requested.

    Attributes:
        total: what it has, by dimension.
        needs: what one request of each kind takes of it; None: it cannot be there.
        cost: what it costs.
        counted: what it counts for against each limit.
    """

    total: Sequence[int]
    needs: Sequence[Need | None]
    cost: int
    counted: tuple[int, ...] = ()

    def fits(self, kind: int) -> bool:
        """Returns True if an empty one could serve a request of a kind."""
        need = self.needs[kind]
        if need is None:
            return False
        for dimension, amount in need:  # noqa: SIM110 -- all() would take twice as long
            if self.total[dimension] < amount:
                return False
        return True


def prices(offers: Sequence[Offer]) -> list[int]:
    """Returns the lowest price of any offer for one unit of each dimension."""
    return [
        # Rounded down, so that what is computed from prices is never above the true cost.
        min(
            [each.cost * PRICE_UNIT // total for each in offers if (total := each.total[at])],
            default=0,
        )
        for at in range(len(offers[0].total) if offers else 0)
    ]


@dataclass(slots=True)
class Allowance:
    """How many executors may still be requested.

    Attributes:
        most: of each offer.
        limits: what all of them together may still count for, by limit.
    """

    most: list[int]
    limits: list[int] = field(default_factory=list)

    def copy(self) -> Allowance:
        """Returns a copy that can be changed by itself."""
        return Allowance(self.most[:], self.limits[:])

    def only(self, chosen: Sequence[int]) -> Allowance:
        """Returns a copy that allows no other offers than these."""
        most = [most if at in chosen else 0 for at, most in enumerate(self.most)]
        return Allowance(most, self.limits[:])

    def copies(self, at: int, offer: Offer) -> int:
        """Returns how many of an offer may still be requested."""
        bounds = [
            limit // amount
            for limit, amount in zip(self.limits, offer.counted, strict=True)
            if amount
        ]
        return max(0, min([self.most[at], *bounds]))

    def take(self, at: int, offer: Offer, copies: int) -> None:
        """Subtracts executors that are requested; a negative number gives them back."""
        self.most[at] -= copies
        for each, amount in enumerate(offer.counted):
            self.limits[each] -= amount * copies


@dataclass(slots=True)
class Purchase:
    """Equal executors to request: of which offer, what each serves, how many."""

    offer: int
    content: Counts
    copies: int = 1


@dataclass(slots=True)
class Cover:
    """Executors to request for some requests, and the requests that they do not serve.

    Attributes:
        purchases: the executors.
        left: requests for which no more executors are allowed.
        never: requests that fit on no executor that is allowed.
        worth: what one request of each kind is worth, of those that fit on some executor.
    """

    purchases: list[Purchase] = field(default_factory=list)
    left: Counts = field(default_factory=dict)
    never: Counts = field(default_factory=dict)
    worth: Counts = field(default_factory=dict)

    @property
    def served(self) -> Counts:
        """How many requests of each kind the executors serve."""
        served: Counts = {}
        for each in self.purchases:
            for kind, count in each.content.items():
                served[kind] = served.get(kind, 0) + count * each.copies
        return served

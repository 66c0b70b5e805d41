"""Describes the executors that can be requested: their capacity, their cost, and how many of them
are allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from resource_manager.engine.planning.packing import Counts, Need

PRICE_UNIT = 1 << 20
"""Prices are integers: a price of 1 is this number."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of executor that can be requested.

    Attributes:
        total: the capacity of one executor, by dimension.
        needs: for each kind of request, the amounts that one request takes on an executor of this
            offer, or None if such an executor can never serve the kind.
        cost: the cost of one executor, in millionths.
        counted: for each limit, the amount of the limit that one executor uses up.
    """

    total: Sequence[int]
    needs: Sequence[Need | None]
    cost: int
    counted: tuple[int, ...] = ()

    def fits(self, kind: int) -> bool:
        """Returns whether an empty executor of this offer could serve a request of a kind."""
        need = self.needs[kind]
        if need is None:
            return False
        for dimension, amount in need:  # noqa: SIM110 -- all() would take twice as long
            if self.total[dimension] < amount:
                return False
        return True


def prices(offers: Sequence[Offer]) -> list[int]:
    """Returns, for each dimension, the lowest price of one unit among all offers."""
    return [
        # Round down, because a cost that is computed from prices must never be above the true cost.
        min(
            [each.cost * PRICE_UNIT // total for each in offers if (total := each.total[at])],
            default=0,
        )
        for at in range(len(offers[0].total) if offers else 0)
    ]


@dataclass(slots=True)
class Allowance:
    """The number of executors that are still allowed to be requested.

    Attributes:
        most: the number of executors of each offer that are still allowed.
        limits: the amount of each limit that all further executors together can still use.
    """

    most: list[int]
    limits: list[int] = field(default_factory=list)

    def copy(self) -> Allowance:
        """Returns an independent copy."""
        return Allowance(self.most[:], self.limits[:])

    def only(self, chosen: Sequence[int]) -> Allowance:
        """Returns a copy that allows only the chosen offers."""
        most = [most if at in chosen else 0 for at, most in enumerate(self.most)]
        return Allowance(most, self.limits[:])

    def copies(self, at: int, offer: Offer) -> int:
        """Returns the number of executors of an offer that are still allowed."""
        bounds = [
            limit // amount
            for limit, amount in zip(self.limits, offer.counted, strict=True)
            if amount
        ]
        return max(0, min([self.most[at], *bounds]))

    def take(self, at: int, offer: Offer, copies: int) -> None:
        """Subtracts requested executors from the allowance.

        Args:
            at: the position of the offer.
            offer: the offer at this position.
            copies: the number of executors. A negative number gives executors back.
        """
        self.most[at] -= copies
        for each, amount in enumerate(offer.counted):
            self.limits[each] -= amount * copies


@dataclass(slots=True)
class Purchase:
    """Equal executors to request: the position of their offer, the requests that each executor
    serves, and the number of executors.
    """

    offer: int
    content: Counts
    copies: int = 1


@dataclass(slots=True)
class Cover:
    """The executors to request for some requests, and the requests that these executors do not
    serve.

    Attributes:
        purchases: the executors to request.
        left: the requests for which no more executors are allowed.
        never: the requests that fit on none of the allowed executors.
        worth: the worth (see `cover.py`) of one request, for each kind that fits on an allowed
            executor.
    """

    purchases: list[Purchase] = field(default_factory=list)
    left: Counts = field(default_factory=dict)
    never: Counts = field(default_factory=dict)
    worth: Counts = field(default_factory=dict)

    @property
    def served(self) -> Counts:
        """The number of requests of each kind that the executors serve."""
        served: Counts = {}
        for each in self.purchases:
            for kind, count in each.content.items():
                served[kind] = served.get(kind, 0) + count * each.copies
        return served

"""What slots book, and sums of that which are kept up to date. Knows arithmetic alone."""

from __future__ import annotations

from functools import lru_cache

from finegrain.resources import Amounts, ResourceProfile, booking

_KNOWN_BOOKINGS = 16_384  # kept; clusters use few different profiles


@lru_cache(_KNOWN_BOOKINGS)
def shared_booking(
    profile: ResourceProfile, separate_pools: bool, best_effort: bool = False
) -> dict[str, int]:
    """What a slot books on a host with or without a pool per memory part; one dict for all slots
    that are alike, so nobody may change it.
    """
    return booking(profile, separate_pools=separate_pools, best_effort=best_effort)


def increase(amounts: dict[str, int], more: Amounts) -> None:
    """Adds in place."""
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def decrease(amounts: dict[str, int], less: Amounts) -> None:
    """Takes away in place; what is nothing then, is not named any more."""
    for name, amount in less.items():
        left = amounts[name] - amount
        if left:
            amounts[name] = left
        else:
            del amounts[name]

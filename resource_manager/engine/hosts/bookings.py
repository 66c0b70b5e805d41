"""Computes the amounts that a slot books, and updates sums of amounts in place."""

from __future__ import annotations

from functools import lru_cache

from finegrain.resources import Amounts, ResourceProfile, booking

_KNOWN_BOOKINGS = 16_384  # cached; a cluster has few different profiles


@lru_cache(_KNOWN_BOOKINGS)
def shared_booking(
    profile: ResourceProfile, separate_pools: bool, best_effort: bool = False
) -> dict[str, int]:
    """Returns what a slot books. Equal slots share one dict, so callers must not change it.

    Args:
        profile: of the slot.
        separate_pools: the host has one memory pool per memory part.
        best_effort: it books best-effort cpu.
    """
    return booking(profile, separate_pools=separate_pools, best_effort=best_effort)


def increase(amounts: dict[str, int], more: Amounts) -> None:
    """Adds amounts in place."""
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def decrease(amounts: dict[str, int], less: Amounts) -> None:
    """Subtracts amounts in place; names whose amount becomes 0 are removed."""
    for name, amount in less.items():
        left = amounts[name] - amount
        if left:
            amounts[name] = left
        else:
            # Without zeros, equal sums are equal dicts, which invariants compare.
            del amounts[name]

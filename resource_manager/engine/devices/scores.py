"""How full devices are with a slot, from 0 to 100: the order in which shares are given out.

Source: `resourceAllocationScorer` of Koordinator's deviceshare.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from finegrain.resources import Amounts

EQUAL_WEIGHTS: Mapping[str, int] = {}
"""Every dimension counts the same."""


def device_score(
    asked: Amounts,
    total: Amounts,
    free: Amounts,
    *,
    pack: bool = True,
    weights: Mapping[str, int] = EQUAL_WEIGHTS,
) -> int:
    """Returns how well a device suits a slot; higher is better.

    Args:
        asked: what the slot needs of the device.
        total: what the device has.
        free: what is left of it.
        pack: the fullest device is best, else the emptiest one.
        weights: of the dimensions that count; empty: those that the device has count the same.
    """
    scores = []
    for name, whole in total.items():
        weight = weights.get(name, 0) if weights else 1
        if not weight or not whole:
            continue
        # More than everything can be free where bookings were given back twice.
        taken = min(whole - free.get(name, 0) + asked.get(name, 0), whole)
        if free.get(name, 0) > whole:
            taken = whole
        over = whole - free.get(name, 0) + asked.get(name, 0) > whole
        part = taken if pack else (0 if over else whole - taken)
        scores.append((part * 100 // whole * weight, weight))
    heaviness = sum(weight for _, weight in scores)
    return sum(score for score, _ in scores) // heaviness if heaviness else 0


def total_over(devices: Iterable[Amounts]) -> dict[str, int]:
    """Returns the sums over several devices by dimension."""
    sums: dict[str, int] = {}
    for amounts in devices:
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0) + amount
    return sums

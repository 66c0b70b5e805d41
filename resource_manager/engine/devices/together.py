"""Chooses the whole GPUs of several slots on one host together, for example for the members of a
gang.

The best connected set for all slots is chosen first, then the best division of this set among the
slots. If each slot instead took the set that is best for this slot alone, the sets of the slots
could be far from each other.

Example: NVLink connects GPUs 0 to 3 with each other, and GPUs 4 to 7 with each other. The best
links are between 0 and 3, then 4 and 5, then 1 and 2. Two slots need two GPUs each. If GPUs were
chosen for one slot after the other, the slots would get {0, 3} and {4, 5}. Chosen together, they
get {0, 3} and {1, 2}.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from math import factorial, prod

from finegrain.devices.device import GPU
from finegrain.devices.request import DeviceRequest
from resource_manager.engine.devices.choose import best_partition, suited_devices
from resource_manager.engine.devices.layout import (
    SETS_COMPARED_MAX,
    DeviceLayout,
    Quality,
    bits_of,
    positions_in,
)
from resource_manager.engine.devices.ledger import DeviceLedger

Groups = tuple[int, ...]
"""One set of GPUs for each slot."""

_GROUPS_KNOWN = 4_096


def gpus_together(
    ledger: DeviceLedger, slots: Sequence[Sequence[DeviceRequest]]
) -> list[int | None] | None:
    """Returns, for each slot, the set of GPUs from which the slot may choose. None in place of a
    set means that the slot may choose any GPUs.

    Args:
        ledger: the device ledger of the host.
        slots: the device requests of each slot.

    Returns:
        The sets. The function returns None if the GPUs cannot be chosen together: fewer than two
        slots need whole GPUs, the slots accept different GPUs, or too few GPUs are free.
    """
    wholes = {
        at: request
        for at, requests in enumerate(slots)
        for request in requests
        if request.type == GPU and not request.is_shared and not request.every and not request.near
    }
    if len(wholes) < 2 or len({replace(each, count=1) for each in wholes.values()}) > 1:
        return None
    counts = tuple(each.count for each in wholes.values())
    whole = replace(next(iter(wholes.values())), count=sum(counts))
    suited = suited_devices(ledger, whole)
    if len(suited) < whole.count:
        return None
    groups: Groups
    if ledger.layout.host.partitions:
        # Each slot chooses its own partition within the partition for all slots.
        partition = best_partition(ledger, whole)
        if not partition:
            return None
        groups = (bits_of(partition),) * len(counts)
    else:
        groups = best_groups(ledger.layout, bits_of(suited), counts)
    among = dict(zip(wholes, groups, strict=True))
    return [among.get(at) for at in range(len(slots))]


@lru_cache(_GROUPS_KNOWN)
def best_groups(layout: DeviceLayout, free: int, counts: tuple[int, ...]) -> Groups:
    """Returns disjoint sets of GPUs, one for each count.

    There are three criteria, in this order of importance. First, the union of the sets is as well
    connected as possible. Second, each set is as well connected as possible. Third, the remaining
    GPUs contain sets that are as well connected as possible.

    Args:
        layout: the device layout of the host.
        free: the GPUs that can be chosen; there must be enough for all counts together.
        counts: the number of GPUs of each set.
    """
    # The largest counts come first. Equal counts are adjacent, so that `_divisions` yields no
    # division twice.
    order = sorted(range(len(counts)), key=lambda at: -counts[at])
    sizes = tuple(counts[at] for at in order)
    sets = layout.best_sets(free, sum(counts))
    exact = len(sets) * _division_count(sizes) <= SETS_COMPARED_MAX
    found = min(
        (_best_division(layout, each, sizes, exact=exact) for each in sets),
        key=lambda each: (
            tuple(-value for value in _quality(layout, each)),
            layout.loss(free & ~sum(each)),
            positions_in(sum(each)),
        ),
    )
    by_slot = dict(zip(order, found, strict=True))
    return tuple(by_slot[at] for at in range(len(counts)))


def _best_division(
    layout: DeviceLayout, gpus: int, sizes: tuple[int, ...], *, exact: bool
) -> Groups:
    """Returns the best way to divide a set of GPUs into sets of these sizes."""
    if exact:
        return max(_divisions(gpus, sizes), key=lambda each: _quality(layout, each))
    groups: list[int] = []
    for size in sizes:
        chosen = bits_of(layout.best_set(gpus, size))
        groups.append(chosen)
        gpus &= ~chosen
    return tuple(groups)


def _divisions(gpus: int, sizes: tuple[int, ...], before: int | None = None) -> Iterator[Groups]:
    """Yields all ways to divide a set into sets of these sizes. Of two sets with equal sizes, the
    first set has the lower first GPU.
    """
    if not sizes:
        yield ()
        return
    positions = positions_in(gpus)
    equal_follows = len(sizes) > 1 and sizes[1] == sizes[0]
    for chosen in combinations(positions, sizes[0]):
        if before is not None and chosen[0] < before:
            continue
        taken = bits_of(chosen)
        for others in _divisions(gpus & ~taken, sizes[1:], chosen[0] if equal_follows else None):
            yield (taken, *others)


def _division_count(sizes: tuple[int, ...]) -> int:
    """Returns the number of ways to divide a set into sets of these sizes."""
    equal = prod(factorial(number) for number in Counter(sizes).values())
    return factorial(sum(sizes)) // (prod(map(factorial, sizes)) * equal)


def _quality(layout: DeviceLayout, groups: Groups) -> Quality:
    """Returns the value of the worst pair of GPUs within a set, and the sum of the values of all
    pairs within sets.
    """
    qualities = [layout.quality(each) for each in groups if each.bit_count() > 1]
    worst = min((each[0] for each in qualities), default=0)
    return worst, sum(each[1] for each in qualities)

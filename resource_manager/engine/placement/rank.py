"""Which of the hosts with room is best for a slot. Knows proportions, not requests or queues.

The more of what a host has free lies in what the slot needs most, the better: what is left then
stays in proportion, and less of one dimension is stranded because another ran out. Dimensions are
made comparable by weights: an average host counts as much in each of them. So

    affinity = sum over dimensions of (need * free) / sum over dimensions of free

which is the dot product of R. Grandl et al., "Multi-resource packing for cluster schedulers"
(Tetris, SIGCOMM 2014), divided by the size of what is free, so that an empty host is not better
for being empty. A host that alone has something rare is the last that others are placed on.
Everything is an integer, so that the answer is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from finegrain.resources import Amounts
from resource_manager.engine.hosts.host import KNOWN, UNLIMITED
from resource_manager.engine.model.scheduling_key import (
    CPU_COLUMNS,
    DEFAULT_SLOTS,
    SLOTS,
    in_grains,
)
from resource_manager.engine.placement.index import CapacityIndex

HOSTS_PER_CANDIDATE = 8
"""One more candidate is compared for so many hosts in use: what ranking may leave half empty
stays a small part.
"""

PART_AT_ONCE = 3
"""One of so many parts of an average host is given to equal slots before the next host is looked
at, so that different slots meet on a host and use up different dimensions.
"""

_AVERAGE_HOST = 1 << 36
"""What all that an average host has of one dimension weighs."""

_AFFINITY_SCALE = 29
_FREE_SCALE = 16
"""Bits dropped from what is reckoned with most. The factors then usually have less than 30 bits,
with which Python is quicker; larger ones do no harm.
"""

_NO_DIMENSIONS = frozenset(KNOWN + name for name in (SLOTS, DEFAULT_SLOTS, *CPU_COLUMNS))


def candidates_compared(most: int, hosts_in_use: int) -> int:
    """How many hosts with room are compared for one slot."""
    return min(most, 1 + hosts_in_use // HOSTS_PER_CANDIDATE)


@dataclass(slots=True, eq=False)
class Booking:
    """What one slot takes on a host, in columns of an index."""

    amounts: Amounts
    columns: list[tuple[list[int], int, int]]  # leaves, amount, affinity of one free unit
    weight: int  # of all amounts together
    at_once: int  # slots placed on one host before the next is looked at
    owed: int = 0  # slots placed that the sums of the index still count as free


class _WeighedFree(dict[int, int]):
    """Filled when asked."""

    def __init__(self, columns: Iterable[tuple[list[int], int]]) -> None:
        super().__init__()
        self._columns = list(columns)

    def __missing__(self, position: int) -> int:
        weighed = sum([leaves[position] * weight for leaves, weight in self._columns])
        free = self[position] = weighed >> _FREE_SCALE
        return free


class Proportions:
    """What the dimensions weigh, in `whole`, the index of all hosts, so that it does not depend on
    who has an index of its own; `free` is what the hosts of `index` have left, weighed, by
    position.

    Whoever lowers a leaf of the index corrects `free` or strikes the host from it. `weights` are
    what one unit of each dimension weighs.
    """

    def __init__(self, index: CapacityIndex, whole: CapacityIndex) -> None:
        self.index = index
        self.weights = {
            name[len(KNOWN) :]: _AVERAGE_HOST * len(whole) // total
            for name, total in whole.sums.items()
            if name.startswith(KNOWN) and name not in _NO_DIMENSIONS and total
        }
        self.free = _WeighedFree(
            (index.columns[name][0], weight)
            for name, weight in self.weights.items()
            if name in index.columns
        )
        self._unlimited = index.sums.get(KNOWN + SLOTS) == UNLIMITED * len(index)
        self._bookings: dict[int, Booking] = {}  # by identity of the amounts
        self._keys: list[Amounts] = []  # kept, so that identities stay what they are

    def booking(self, amounts: Amounts) -> Booking:
        """These amounts as columns of the index; they must exist."""
        booking = self._bookings.get(id(amounts))
        if booking is None:
            booking = self._bookings[id(amounts)] = self._resolve(in_grains(amounts))
            self._keys.append(amounts)
        return booking

    def _resolve(self, amounts: Amounts) -> Booking:
        columns, weights = self.index.columns, self.weights
        taken, weight, largest = [], 0, 1
        for name, amount in amounts.items():
            weighed = amount * weights.get(name, 0)
            taken.append(
                (columns[name][0], amount, weighed * weights.get(name, 0) >> _AFFINITY_SCALE)
            )
            weight += weighed
            largest = max(largest, weighed)
        if not self._unlimited or not taken:
            taken.append((columns[SLOTS][0], 1, 0))
        at_once = -(-(_AVERAGE_HOST // largest) // PART_AT_ONCE)
        return Booking(amounts, taken, weight >> _FREE_SCALE, max(1, at_once))

    def settle(self) -> None:
        """Lets the sums of the index follow what was taken."""
        sums = self.index.sums
        for booking in self._bookings.values():
            for name, amount in booking.amounts.items():
                sums[name] -= amount * booking.owed
            if len(booking.columns) > len(booking.amounts):
                sums[SLOTS] -= booking.owed
            booking.owed = 0

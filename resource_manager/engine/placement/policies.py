"""Defines the order of hosts for a slot: which hosts become candidates first, and which candidate
is the best.

Columns of the capacity index divide the hosts into tiers, and each level consists of some tiers.
The hosts of one level are compared with each other. The next level is tried if no host of the
earlier levels has room.

- For a class that needs only amounts, hosts without GPUs come first, and then hosts with GPUs.
  Hosts that align every slot to NUMA nodes come last, because other classes need these hosts more.
- For a class with devices, all hosts with room are ordered by the GPU capacity that a slot would
  strand there (`stranding.py`).
- For a topology-constrained class, hosts that can meet all its preferred policies come first. The
  next level has the hosts that miss one policy, and so on. So preferences are compared over all
  hosts, and not only over the first hosts with room.

Example: a request prefers "SpreadByPCPUs". 1,000 hosts give only whole cores to slots, but host h
does not. The first level needs the column `pin.cores`. The column is above 0 only for h, so the
index finds h at once.

The strategy compares the hosts of one level. Of equal hosts, the host with the lowest id comes
first. All numbers are integers. So the result is the same on every machine.

- "pack": hosts in use come before empty hosts. Among the first hosts with room, the strategy
  compares the free resources with the needs of the slot. It takes the host whose proportions are
  most similar (`Proportions`). So the remaining resources stay in proportion, and less capacity
  becomes stranded. Example: a slot that needs much memory goes to a host with much free memory and
  little free cpu.
- "spread": takes the host whose scarcest dimension has the largest free part.
- "balanced": takes the host where the slot makes the free parts of cpu and memory most equal.
  Example: if a slot needs a larger part of an average host's cpu than of its memory, the best host
  is the host with the largest surplus of cpu.

For "spread" and "balanced", the score is a column of the index (`hosts/scores.py`). So the index
finds the best host without comparing all hosts. The affinity of "pack" depends on both the host and
the slot, so it is computed for a few hosts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, combinations
from typing import NamedTuple

from finegrain.resources import CPU_MILLI, Amounts
from resource_manager.engine.hosts.host import KNOWN, UNLIMITED
from resource_manager.engine.hosts.scores import CPU_SURPLUS, MEMORY, MEMORY_SURPLUS, SCORE
from resource_manager.engine.model.scheduling_key import (
    ALIGNING,
    EMPTY,
    IN_USE,
    SLOTS,
    WITH_GPUS,
    WITHOUT_GPUS,
    in_grains,
)
from resource_manager.engine.model.settings import Strategy
from resource_manager.engine.placement.columns import is_amount, needs_of
from resource_manager.engine.placement.index import CapacityIndex, Need
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

HOSTS_PER_EMPTY_ONE = 64
""""pack" compares one more empty host for each group of this many hosts in use.

A host becomes full in all dimensions only if it has slots of different proportions. If "pack"
compared only one empty host, a host would get different slots only by chance, and 100,000 slots of
`bench.engine` would need 5 % more hosts.
"""

PART_AT_ONCE = 3
"""On one host, equal slots get at most `1 / PART_AT_ONCE` of an average host before the next host
is tried. So slots with different needs share a host, and use different dimensions of the host.
"""

_AVERAGE_HOST = 1 << 36
"""Weight of the total amount of one dimension on an average host."""

_AFFINITY_SCALE = 29
_FREE_SCALE = 16
"""This number of low bits is dropped from the most used numbers. So most factors have less than 30
bits, and Python multiplies numbers of this size faster. Larger factors give correct results, too.
"""


class Policy(NamedTuple):
    """A placement strategy.

    Attributes:
        use_first: True if hosts in use come before empty hosts.
        column: a function that returns the index column which orders the hosts. Its arguments are
            the needs of the slot and the sums of the index of all hosts. None if the affinity
            orders the hosts (`Proportions`).
    """

    use_first: bool
    column: Callable[[Need, Amounts], str] | None


def _larger_surplus(need: Need, cluster: Amounts) -> str:
    """Returns one of the two surplus columns. The column is `CPU_SURPLUS` if the slot needs a
    larger part of an average host's cpu than of its memory, and `MEMORY_SURPLUS` otherwise.
    """
    cpu, memory = need.get(CPU_MILLI, 0), sum(need.get(name, 0) for name in MEMORY)
    has_memory = sum(cluster.get(KNOWN + name, 0) for name in MEMORY)
    # Compare the parts by multiplication instead of division, so that no number is rounded.
    more_cpu = cpu * has_memory >= memory * cluster.get(KNOWN + CPU_MILLI, 0)
    return CPU_SURPLUS if more_cpu else MEMORY_SURPLUS


POLICIES: dict[Strategy, Policy] = {
    "pack": Policy(use_first=True, column=None),
    "spread": Policy(use_first=False, column=lambda *_: SCORE),
    "balanced": Policy(use_first=False, column=_larger_surplus),
}


def empty_compared(most: int, hosts_in_use: int) -> int:
    """Returns the number of hosts, at most `most`, that "pack" compares if empty hosts are among
    them.
    """
    return min(most, 1 + hosts_in_use // HOSTS_PER_EMPTY_ONE)


@dataclass(slots=True, eq=False)
class Booking:
    """The amounts that one slot takes on a host, with the index columns of these amounts."""

    amounts: Amounts
    columns: list[tuple[list[int], int, int]]  # leaves, amount, affinity of one free unit
    names: list[str]  # the names of `columns`
    at_once: int  # largest number of slots on one host before the next host is tried
    owed: int = 0  # number of placed slots that must still be subtracted from the sums of the index


class _WeightedFree(dict[int, int]):
    """The weighted free capacity of hosts, by position. Each value is computed on first access."""

    def __init__(self, columns: Iterable[tuple[list[int], int]]) -> None:
        super().__init__()
        self._columns = list(columns)

    def __missing__(self, position: int) -> int:
        weighted = sum([leaves[position] * weight for leaves, weight in self._columns])
        free = self[position] = weighted >> _FREE_SCALE
        return free


class Proportions:
    """Computes the affinity of slots and hosts:

        sum over dimensions of (need * free) / sum over dimensions of free

    The numerator is the dot product of R. Grandl et al., "Multi-resource packing for cluster
    schedulers" (Tetris, SIGCOMM 2014). This product is divided by the total free capacity. Without
    this division, a host would be better only because it is empty. If a host has a rare resource
    free, slots that do not need this resource use the host last.

    Weights make the dimensions comparable: an average host has the same weight in each dimension.

    Example, in parts of an average host: a slot needs 0.1 of the cpu and 0.3 of the memory. Host A
    has 0.8 of the cpu and 0.4 of the memory free, so its affinity is (0.08 + 0.12) / 1.2 = 0.17.
    Host B has 0.4 of the cpu and 0.8 of the memory free, so its affinity is (0.04 + 0.24) / 1.2 =
    0.23. B is better.

    Attributes:
        index: the index of the hosts.
        weights: the weight of one unit of each dimension, computed from the totals of all hosts.
        free: the weighted free capacity of hosts, by position. Code that lowers a leaf of the index
            must remove the host's entry from `free`.
    """

    def __init__(self, index: CapacityIndex, whole: CapacityIndex) -> None:
        """Computes the weights.

        Args:
            index: the index of the hosts that are compared.
            whole: the index of all hosts. The weights are computed from this index, so they do not
                depend on labels.
        """
        self.index = index
        self.weights = {
            name[len(KNOWN) :]: _AVERAGE_HOST * len(whole) // total
            for name, total in whole.sums.items()
            if name.startswith(KNOWN) and is_amount(name[len(KNOWN) :]) and total
        }
        self.free = _WeightedFree(
            (index.columns[name][0], weight)
            for name, weight in self.weights.items()
            if name in index.columns
        )
        # If no host has a limit of slots, passes need not read or lower the column of slots.
        self._unlimited = index.sums.get(KNOWN + SLOTS) == UNLIMITED * len(index)
        self._bookings: dict[int, Booking] = {}  # by identity of the object with the amounts
        self._keys: list[Amounts] = []  # keeps the objects, so that no identity is used twice

    def booking(self, amounts: Amounts) -> Booking:
        """Returns the booking for some amounts. The index must have a column for each dimension."""
        booking = self._bookings.get(id(amounts))
        if booking is None:
            booking = self._bookings[id(amounts)] = self._resolve(in_grains(amounts))
            self._keys.append(amounts)
        return booking

    def _resolve(self, amounts: Amounts) -> Booking:
        columns, weights = self.index.columns, self.weights
        taken, names, largest = [], list(amounts), 1
        for name, amount in amounts.items():
            weighted = amount * weights.get(name, 0)
            taken.append(
                (columns[name][0], amount, weighted * weights.get(name, 0) >> _AFFINITY_SCALE)
            )
            largest = max(largest, weighted)
        # Without the column of slots, any number of slots that book no amounts would fit on a host.
        if not self._unlimited or not taken:
            taken.append((columns[SLOTS][0], 1, 0))
            names.append(SLOTS)
        # The number of slots that fill the slot's scarcest dimension on an average host, divided by
        # `PART_AT_ONCE` and rounded up.
        at_once = -(-(_AVERAGE_HOST // largest) // PART_AT_ONCE)
        return Booking(amounts, taken, names, max(1, at_once))

    def settle(self) -> None:
        """Subtracts all placed slots from the sums of the index."""
        sums = self.index.sums
        for booking in self._bookings.values():
            for name, (_, amount, _) in zip(booking.names, booking.columns, strict=True):
                sums[name] -= amount * booking.owed
            booking.owed = 0


KNOWN_MAX = 16_384


class Tier(NamedTuple):
    """A subset of the hosts. The index columns of a host show whether the host belongs to the
    subset.

    Attributes:
        columns: index columns with the lowest value that a host must have, in addition to the needs
            of the class.
        in_use: True if the tier has only hosts with slots, False if it has only empty hosts, None
            if it has hosts with and without slots.
        unmet_max: the largest number of preferred policies that a host of the tier can miss; None:
            there is no limit.
        aligning: True if the tier contains only hosts that align every slot to NUMA nodes.
        ranked: True if the host where a slot strands the least GPU capacity comes first
            (`stranding.py`).
    """

    columns: tuple[tuple[str, int], ...] = ()
    in_use: bool | None = None
    unmet_max: int | None = None
    aligning: bool = False
    ranked: bool = False


Level = tuple[Tier, ...]
"""The hosts of these tiers are compared with each other. The tiers are searched in this order."""


def levels(
    scheduling_class: SchedulingClass, *, use_first: bool, aligning: bool, gpus: bool
) -> tuple[Level, ...]:
    """Returns the levels of a scheduling class, in the order in which they are tried.

    Args:
        scheduling_class: the class.
        use_first: True if hosts in use come before empty hosts.
        aligning: True if some hosts align every slot to NUMA nodes.
        gpus: True if some hosts have GPUs.
    """
    if scheduling_class.topology_constrained:
        needs = needs_of(scheduling_class)
        profile = scheduling_class.profile
        if gpus and use_first and profile is not None and profile.devices:
            found = _by_preferences(needs.preferred, needs.never_met, use_first=False)
            return tuple(tuple(tier._replace(ranked=True) for tier in level) for level in found)
        return _by_preferences(needs.preferred, needs.never_met, use_first)
    plain, aligned = _BY_COUNT[use_first]
    first = _APART_FROM_GPUS if gpus and use_first else (plain,)
    return (*first, aligned) if aligning else first


@lru_cache(KNOWN_MAX)
def _by_preferences(
    needs: tuple[tuple[tuple[str, int], ...], ...], never_met: int, use_first: bool
) -> tuple[Level, ...]:
    indexed = [need for need in needs if need]  # the preferences that have columns
    found: list[Level] = []
    for missed in range(len(needs)):
        # The index can search only for preferences that have columns. Each combination of these
        # preferences that a host can meet is one tier. All other preferences are checked together
        # with the cpus of a host.
        some = combinations(indexed, max(0, len(indexed) - missed))
        most = missed + never_met
        found.append(tuple(Tier(tuple(chain(*each)), unmet_max=most) for each in some))
    # The last level accepts any host with room.
    found.append((Tier(),))
    return tuple(map(_use_first, found)) if use_first else tuple(found)


def _use_first(level: Level) -> Level:
    return (
        *(tier._replace(in_use=True, columns=((IN_USE, 1), *tier.columns)) for tier in level),
        *(tier._replace(in_use=False, columns=((EMPTY, 1), *tier.columns)) for tier in level),
    )


_ANY: tuple[Level, ...] = ((Tier(),), (Tier(((ALIGNING, 1),), aligning=True),))
_APART_FROM_GPUS: tuple[Level, ...] = (
    _use_first((Tier(((WITHOUT_GPUS, 1),)),)),
    (Tier(((WITH_GPUS, 1),), ranked=True),),
)
_BY_COUNT = {False: _ANY, True: tuple(map(_use_first, _ANY))}

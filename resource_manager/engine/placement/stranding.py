"""Ranks hosts with GPUs by the GPU capacity that a slot would strand there.

The sellable GPU capacity of a host has two limits. The first limit is the value of the free parts
of its GPUs (`devices/part_values.py`). The second limit is its free cpu and memory, because a GPU
without cpu and memory serves no request. The code estimates the cpu and memory that a GPU needs
from the average over all hosts with GPUs. Some requests need less, so the code uses only a part of
the average (`PARTS`). A slot lowers the sellable capacity. The difference is the capacity that the
slot strands.

Example: an average host has 12 cpus for each GPU. Host A has 2 free GPUs and 8 free cpus. Host B
has 2 free GPUs and 24 free cpus. A slot needs 4 cpus and no GPU. With 0.6 of the average, a GPU
needs 7.2 cpus. So A can sell 1.11 of its GPUs before the slot, and only 0.55 GPUs after the slot. B
can sell both GPUs before and after the slot. So the slot goes to B.

Sources: fragmentation gradient descent (Q. Weng et al., "Beware of Fragmentation", ATC 2023) ranks
hosts by such a difference, too, but measures fragmentation. The idea that the value of a part is
not proportional to its size is from V. Gupta and A. Radovanovic, "Interior-point-based online
stochastic bin packing" (2020).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Final

from finegrain.devices.device import GPU, GPU_MEMORY, WHOLE
from finegrain.devices.request import DeviceRequest
from finegrain.resources import CPU_MILLI
from resource_manager.engine.devices.part_values import DEFAULT_VALUES, WHOLE_VALUE, loss
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.scores import MEMORY
from resource_manager.engine.model.scheduling_key import IN_USE
from resource_manager.engine.placement.gpu_hosts import GpuHosts, Sums
from resource_manager.engine.placement.search import Scope, Search

PARTS: Final = (3, 6)
"""A sellable GPU needs this part of the average cpu and memory per GPU, in tenths. The capacity is
computed for each of the two numbers, and the results are added. The numbers were chosen by
replaying the requests of a production cluster (`docs/measurements.md`).
"""

_CACHED_MAX: Final = 1 << 17

RANKED_MAX: Final = 4_096
"""At most this many hosts with room are compared: the first hosts in order of id."""

Needs = tuple[int, int, tuple[int, ...]]
"""The needs of a slot on a host: cpu in thousandths, memory in grains, and the part of each GPU in
hundredths.
"""

Rank = tuple[int, int, int]
"""Three numbers: the stranded capacity, 0 for a host in use or 1 for an empty host, and the
position of the host. The host with the lowest rank is the best host.
"""


class Stranding:
    """Computes how much GPU capacity slots of one class strand on the hosts of an index."""

    def __init__(self, gpu_hosts: GpuHosts, scope: Scope) -> None:
        self._scope = scope
        self._sums = gpu_hosts.sums
        columns = scope.index.columns
        self._cpu_at = columns[CPU_MILLI][0] if CPU_MILLI in columns else [0] * len(scope.index)
        self._memory_at = [columns[name][0] for name in MEMORY if name in columns]
        # A slot has the same needs on all hosts of one kind.
        self._needs: dict[object, Needs] = {}

    def first(self, position: int) -> int:
        """Returns the capacity that one more slot would strand on a host, even if the host has no
        room for the slot.
        """
        return _first(*self._free(position), self._needs_at(position), self._sums)

    def losses(self, position: int) -> Iterator[int]:
        """Yields the capacity that the next slot would strand on a host, and then the capacity that
        each further slot would strand. The sequence is endless.
        """
        return _losses(*self._free(position), self._needs_at(position), self._sums)

    def _free(self, position: int) -> tuple[tuple[int, ...], int, int]:
        cpus = self._scope.host(position).cpus
        return (
            cpus.devices.gpu_parts() if cpus is not None else (),
            self._cpu_at[position],
            sum([leaves[position] for leaves in self._memory_at]),
        )

    def _needs_at(self, position: int) -> Needs:
        host = self._scope.host(position)
        # Each host defines the amounts of its default slot, so the needs differ between hosts.
        if self._scope.scheduling_class.profile is None:
            return self._needs_on(host)
        layout = host.cpus.devices.layout if host.cpus is not None else None
        kind = layout, host.separate_pools
        needs = self._needs.get(kind)
        if needs is None:
            needs = self._needs[kind] = self._needs_on(host)
        return needs

    def _needs_on(self, host: Host) -> Needs:
        wanted, need = self._scope.scheduling_class, self._scope.need(host)
        requests = wanted.profile.devices if wanted.profile is not None else ()
        parts: list[int] = []
        for request in requests:
            if request.type == GPU:
                parts += [_part(request, host)] * max(request.count, 1)
        memory = sum([need.get(name, 0) for name in MEMORY])
        return need.get(CPU_MILLI, 0), memory, tuple(parts)


class Ranking:
    """The hosts of a level that have room for a class, ordered by the GPU capacity that a slot
    would strand there.

    A heap keeps the order. An entry becomes outdated when its host changes. A changed host gets a
    new entry before the next host is chosen, and the ranking skips outdated entries.
    """

    def __init__(
        self, searches: Sequence[Search], scope: Scope, gpu_hosts: GpuHosts, changed: list[str]
    ) -> None:
        """Ranks the hosts.

        Args:
            searches: the searches of the level.
            scope: the values that all searches of the class share.
            gpu_hosts: the hosts with GPUs, which give the average cpu and memory per GPU.
            changed: the hosts that changed in this pass. The caller can append more hosts later.
        """
        self._scope = scope
        self._stranding = Stranding(gpu_hosts, scope)
        self._changed, self._read = changed, len(changed)
        self._search_of = {
            position: search
            for search in reversed(searches)
            for position in islice(search.with_amounts(), RANKED_MAX)
        }
        columns = scope.index.columns
        self._in_use = columns[IN_USE][0] if IN_USE in columns else [0] * len(scope.index)
        self._heap = [self._rank(position) for position in self._search_of]
        heapq.heapify(self._heap)

    def best(self, besides: Collection[int]) -> int | None:
        """Returns the best host that has room and is not in `besides`. Returns None if there is no
        such host.
        """
        self._catch_up()
        popped = []
        found = None
        while self._heap:
            rank = heapq.heappop(self._heap)
            position = rank[-1]
            if self._rank(position) != rank:
                continue
            if position in besides:
                popped.append(rank)
            # This check sometimes computes cpus and devices, so it is made only for the best host.
            elif self._search_of[position].accepts(position):
                popped.append(rank)
                found = position
                break
        for rank in popped:
            heapq.heappush(self._heap, rank)
        return found

    def share(self, position: int, most: int) -> int:
        """Returns the number of slots, 1 to `most`, for which the best host remains the best
        host.
        """
        others = heapq.nsmallest(2, self._heap)
        next_best = min((rank[0] for rank in others if rank[-1] != position), default=None)
        share = 0
        for stranded in islice(self._stranding.losses(position), most):
            if share and next_best is not None and stranded > next_best:
                break
            share += 1
        return max(share, 1)

    def _catch_up(self) -> None:
        position_of = self._scope.index.position
        for host_id in set(self._changed[self._read :]):
            position = position_of.get(host_id)
            if position in self._search_of:
                heapq.heappush(self._heap, self._rank(position))
        self._read = len(self._changed)

    def _rank(self, position: int) -> Rank:
        return self._stranding.first(position), int(not self._in_use[position]), position


@lru_cache(_CACHED_MAX)
def _first(parts: tuple[int, ...], cpu_milli: int, memory: int, needs: Needs, sums: Sums) -> int:
    return next(_losses(parts, cpu_milli, memory, needs, sums))


def _losses(
    parts: tuple[int, ...], cpu_milli: int, memory: int, needs: Needs, sums: Sums
) -> Iterator[int]:
    """Yields the capacity that each slot of an endless sequence strands on one host.

    Args:
        parts: the free part of each GPU of the host, in hundredths.
        cpu_milli: the free cpu of the host, in thousandths.
        memory: the free memory of the host, in grains.
        needs: the needs of each slot.
        sums: the totals of all hosts with GPUs.
    """
    left = list(parts)
    cpu_needed, memory_needed, parts_needed = needs
    before = _sold(left, cpu_milli, memory, sums)
    while True:
        _take(left, parts_needed)
        cpu_milli -= cpu_needed
        memory -= memory_needed
        after = _sold(left, cpu_milli, memory, sums)
        yield before - after
        before = after


def _sold(parts: list[int], cpu_milli: int, memory: int, sums: Sums) -> int:
    """Returns the sellable GPU capacity of a host, summed over `PARTS`."""
    value = sum([DEFAULT_VALUES[part] for part in parts])
    if not value:
        return 0
    gpus, cpu_milli_whole, memory_whole = sums
    sold = 0
    for tenths in PARTS:
        most = value
        # Use integer arithmetic, so that the rank is the same on every machine.
        if cpu_milli_whole:
            most = min(most, cpu_milli * gpus * WHOLE_VALUE * 10 // (cpu_milli_whole * tenths))
        if memory_whole:
            most = min(most, memory * gpus * WHOLE_VALUE * 10 // (memory_whole * tenths))
        sold += max(most, 0)
    return sold


def _take(left: list[int], parts: tuple[int, ...]) -> None:
    """Takes the parts from different GPUs. Each part is taken from the GPU that loses the least
    value.
    """
    taken: set[int] = set()
    for part in parts:
        others = [at for at in range(len(left)) if at not in taken]
        if not others:
            return
        # A request for memory alone can fit on a GPU whose compute is completely taken. In this
        # case, no GPU has enough, and the free part becomes 0. (This function does not decide
        # whether a host has room.)
        enough = [at for at in others if left[at] >= part]
        best = min(enough, key=partial(_loss_at, left, part)) if enough else max(others)
        left[best] = max(left[best] - part, 0)
        taken.add(best)


def _loss_at(left: Sequence[int], part: int, at: int) -> int:
    return loss(DEFAULT_VALUES, left[at], part)


def _part(request: DeviceRequest, host: Host) -> int:
    """Returns the part of each GPU that a request needs, in hundredths."""
    amounts = dict(request.amounts)
    parts = [amount for name, amount in amounts.items() if name != GPU_MEMORY]
    if GPU_MEMORY in amounts and host.cpus is not None:
        layout = host.cpus.devices.layout
        sizes = [layout.totals[at].get(GPU_MEMORY, 0) for at in layout.of_type.get(GPU, ())]
        if largest := max(sizes, default=0):
            parts.append(-(-amounts[GPU_MEMORY] * WHOLE // largest))
    return min(max(parts, default=WHOLE), WHOLE)

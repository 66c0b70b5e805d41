"""Chooses the cpus of a slot that changes its size: the new cpus of a slot that grows, and the cpus
that a slot gives back when it shrinks.

A slot that grows keeps all its cpus, and gets more cpus close to them. A slot that shrinks gets no
new cpus. After the resize, all cpus of the slot must meet its required policies. The caller checks
amounts other than cpu.

Example: each of the cores 0 to 3 has two threads, n and n + 4. A slot with whole cores has cpus 0
and 4. If the slot grows to 4 cpus, it gets core 1, too, and has cpus 0, 1, 4 and 5. If the slot
then shrinks to 2 cpus, it gives back core 1, and has cpus 0 and 4 again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from finegrain.cpu_policy import BindPolicy, NumaStrategy
from resource_manager.engine.cpus.accumulator import whole_cores_of
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.packed import bits_of
from resource_manager.engine.cpus.take import (
    CpuDemand,
    ExclusiveClaims,
    Short,
    ShortOf,
    Taken,
    holds,
    offers,
    reached,
    take,
    unclaimed_of,
)


def grow(
    layout: CpuLayout,
    current: int,
    available: int,
    claims: ExclusiveClaims,
    request: CpuDemand,
    *,
    same_nodes: bool = False,
) -> Taken | Short:
    """Returns the cpus of `current`, and enough available cpus to reach `request.need`.

    Args:
        layout: the host.
        current: the cpus that the slot has now.
        available: the cpus to choose from. They do not have to include `current`.
        claims: cpus that other slots with an exclusive policy claim.
        request: the policies, and the number of cpus after the resize, including the current cpus.
        same_nodes: True if the slot is bound to its NUMA nodes. New cpus then must come from these
            nodes.

    Raises:
        ValueError: the slot has more cpus than `request.need`.
    """
    # Only the missing cpus are chosen, because the slot keeps the cpus that it has.
    more = request.need - current.bit_count()
    if more < 0:
        raise ValueError(f"a slot with {current.bit_count()} cpus cannot grow to {request.need}")
    free = available & layout.pinnable & ~current
    # The slot's memory stays on the slot's nodes, so new cpus must come from these nodes.
    if same_nodes:
        free &= layout.nodes_touched(current)
    if more > free.bit_count():
        return Short(ShortOf.CPUS, more, free.bit_count())
    unclaimed = unclaimed_of(layout, free, claims, request, more)
    if isinstance(unclaimed, Short):
        return unclaimed
    free, added = unclaimed, 0
    if request.whole_cores:
        # First take the free threads of cores of which the slot already has some threads.
        added = _rest_of_current_cores(layout, current, free, more)
    elif request.bind is BindPolicy.SPREAD_BY_PCPUS:
        # Cores without a cpu of the slot come first. If there are too few such cores, the remaining
        # new cpus can share cores with cpus of the slot.
        apart = free & ~layout.cores_touched(current)
        cores = layout.first_threads(apart)
        if cores.bit_count() >= more:
            free = apart
        elif request.bind_required:
            return Short(ShortOf.CORES, more, cores.bit_count())
        else:
            added = cores
    rest_demand = replace(request, need=more - added.bit_count())
    others = _near(layout, current | added, free & ~added, claims, rest_demand)
    if isinstance(others, Short):
        return others
    cpus = current | added | others
    # The slot's present cpus possibly violate the policy, for example because settings have
    # changed.
    if request.bind_required and not holds(layout, cpus, request.bind):
        return Short(ShortOf.WHOLE_CORES, more, layout.whole(free).bit_count())
    return Taken(cpus, reached(layout, cpus, claims, request.exclusive))


def shrink(
    layout: CpuLayout, current: int, claims: ExclusiveClaims, request: CpuDemand
) -> Taken | Short:
    """Chooses `request.need` of the current cpus. The slot gives back the other cpus.

    The slot gives back whole cores first, then single threads. With SpreadByPCPUs, the slot first
    gives back the second threads of its cores. The slot gives back cpus on the NUMA node where it
    has the fewest cpus, so that it uses fewer nodes. With `DistributeEvenly`, the slot instead
    gives back cpus on the node where it has the most cpus.

    Args:
        layout: the host.
        current: the cpus that the slot has now.
        claims: cpus that other slots with an exclusive policy claim.
        request: the policies, and the number of cpus after the resize.

    Raises:
        ValueError: the slot has fewer cpus than `request.need`.
    """
    surplus = current.bit_count() - request.need
    if surplus < 0:
        raise ValueError(f"a slot with {current.bit_count()} cpus cannot shrink to {request.need}")
    kept = current
    if request.bind is BindPolicy.SPREAD_BY_PCPUS:
        kept = _without_second_threads(layout, current, surplus)
    elif request.whole_cores and request.bind_required:
        # A core is given back as a whole only if the slot has all its threads.
        whole = [core for core in _order_of_return(layout, current, request) if not core & ~current]
        given = whole_cores_of(whole, surplus)
        if given is None:
            return Short(ShortOf.ALIGNMENT, request.need, current.bit_count())
        kept = current & ~given
    else:
        kept = _without_whole_cores(layout, current, surplus, request)
    kept = _without_threads(layout, kept, kept.bit_count() - request.need, request)
    return Taken(kept, reached(layout, kept, claims, request.exclusive))


def _rest_of_current_cores(layout: CpuLayout, current: int, free: int, more: int) -> int:
    """Returns up to `more` free threads of cores of which the slot has some threads. Cores whose
    missing threads are all free come first.
    """
    rests = [
        core & ~current
        for core in layout.core_masks
        if core & current and core & ~current and core & free & ~current
    ]
    added = 0
    # False sorts first, so cores whose missing threads are all free come first.
    for rest in sorted(rests, key=lambda rest: bool(rest & ~free)):
        for cpu in bits_of(rest & free):
            if added.bit_count() < more:
                added |= cpu
    return added


def _near(
    layout: CpuLayout, current: int, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | Short:
    """Returns `request.need` more cpus. They come from the slot's nodes if possible, otherwise from
    the slot's packages if possible, and otherwise from any node.
    """
    if not request.need:
        return 0
    if request.strategy is NumaStrategy.DISTRIBUTE_EVENLY:
        balanced = _balanced_over_nodes(layout, current, free, claims, request)
        if balanced is not None:
            return balanced
    around = 0
    for package in layout.packages:
        if package.mask & current:
            around |= package.mask
    # The scopes are ordered from near to far. On small hosts, scopes can be equal, and the dict
    # removes repetitions.
    scopes = dict.fromkeys((layout.nodes_touched(current), around, layout.cpus))
    for offered in offers(layout, free, claims, request):
        for scope in scopes:
            if (offered & scope).bit_count() >= request.need:
                taken = take(layout, offered & scope, claims, request)
                if isinstance(taken, Taken):
                    return taken.cpus
    # No scope has enough suitable cpus, so distance is ignored.
    taken = take(layout, free, claims, request)
    return taken.cpus if isinstance(taken, Taken) else taken


def _balanced_over_nodes(
    layout: CpuLayout, current: int, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Returns more cpus for the slot, chosen one group at a time, always on the node where the slot
    has the fewest cpus. The result is None if the slot's nodes have too few free cpus.
    """
    group = layout.per_core if request.whole_cores else 1
    if request.need % group:  # whole cores do not add up to this number
        return None
    nodes = [node.mask for node in layout.nodes if node.mask & current]
    one = replace(request, need=group, strategy=NumaStrategy.LEAST_ALLOCATED)
    for offered in offers(layout, free, claims, request):
        added = 0
        while added.bit_count() < request.need:
            left = offered & ~added
            open_nodes = [node for node in nodes if (node & left).bit_count() >= group]
            if not open_nodes:
                break
            least = min(open_nodes, key=lambda node: (node & (current | added)).bit_count())
            taken = take(layout, left & least, claims, one)
            if isinstance(taken, Short):
                # The next set of cpus from `offers` has more cpus, and is possibly enough.
                break
            added |= taken.cpus
        else:
            # The loop ended without `break`, so all groups were added.
            return added
    return None


def _order_of_return(layout: CpuLayout, current: int, request: CpuDemand) -> Iterator[int]:
    """Yields the cores with cpus of the slot, in the order in which they are given back. `shrink`
    describes the order of nodes. On a node, the last core comes first.
    """
    cores_of = {
        at: [core for core in layout.cores_of_node[at] if core & current]
        for at, node in enumerate(layout.nodes)
        if node.mask & current
    }
    left = {at: (layout.nodes[at].mask & current).bit_count() for at in cores_of}
    evenly = request.strategy is NumaStrategy.DISTRIBUTE_EVENLY
    choose: Callable[..., int] = max if evenly else min
    while cores_of:
        # `min` and `max` return the first of equal nodes. The order is reversed, so the result is
        # the last of the equal nodes.
        at = choose(reversed(cores_of), key=left.__getitem__)
        core = cores_of[at].pop()
        left[at] -= (core & current).bit_count()
        if not cores_of[at]:
            del cores_of[at]
        yield core


def _without_second_threads(layout: CpuLayout, current: int, surplus: int) -> int:
    doubled: Sequence[int] = [
        core & current for core in reversed(layout.core_masks) if (core & current).bit_count() > 1
    ]
    kept = current
    while surplus and doubled:
        # Each iteration takes one thread of each core, so that all cores give back evenly.
        for core in doubled[:surplus]:
            kept &= ~_highest(core & kept)
            surplus -= 1
        doubled = [core & kept for core in doubled if (core & kept).bit_count() > 1]
    return kept


def _without_whole_cores(layout: CpuLayout, current: int, surplus: int, request: CpuDemand) -> int:
    for core in list(_order_of_return(layout, current, request)):
        if not core & ~current and core.bit_count() <= surplus:
            current &= ~core
            surplus -= core.bit_count()
    return current


def _without_threads(layout: CpuLayout, current: int, surplus: int, request: CpuDemand) -> int:
    """Gives back single threads. Threads of cores of which the slot lacks a thread come first."""
    cores = list(_order_of_return(layout, current, request))
    # False sorts first, so cores of which the slot lacks a thread come first.
    for core in sorted(cores, key=lambda core: not core & ~current):
        while surplus and core & current:
            current &= ~_highest(core & current)
            surplus -= 1
    return current


def _highest(cpus: int) -> int:
    return 1 << cpus.bit_length() - 1

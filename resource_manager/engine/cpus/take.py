"""Chooses the dedicated cpus of a slot on one host.

The choice depends on the bind policy, the exclusive policy and the NUMA strategy. The bind policy
and the exclusive policy are each preferred or required. Required policies are always met. A slot is
never refused because of a policy that is only preferred.

Cpus are tried in the order of Koordinator's accumulator (`takeCPUs` of its plug-in
nodenumaresource, see `accumulator.py`), with these exceptions:

- If a preferred exclusive policy `NUMANodeLevel` cannot be met, `PCPULevel` is tried instead. If
  this level cannot be met either, the slot gets no exclusive policy.
- `DistributeEvenly` distributes cpus like the kubelet (see `packed.py`). If no even distribution
  exists, cpus are packed. But with the bind policy SpreadByPCPUs, cpus are spread instead.
- If cores have different numbers of threads, `FullPCPUs` searches for cores whose threads add up
  exactly to the need. Cores of one kind are preferred to a mixture of kinds. The kind that contains
  the lowest cpu comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaStrategy
from resource_manager.engine.cpus.accumulator import Accumulator
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.packed import NodeShare, even_shares, take_packed, take_share
from resource_manager.engine.cpus.whole_cores import adds_up, aligned


@dataclass(frozen=True, slots=True)
class ExclusiveClaims:
    """Cpus of slots with an exclusive policy, separately for the two exclusive levels."""

    core_level: int = 0
    node_level: int = 0


@dataclass(frozen=True, slots=True)
class CpuDemand:
    """The number of needed cpus, and the policies for their choice. The policy `DEFAULT` means no
    preference.
    """

    need: int
    bind: BindPolicy = BindPolicy.FULL_PCPUS
    bind_required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    exclusive_required: bool = False
    strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED
    preferred: int = 0  # cpus to try first

    @property
    def whole_cores(self) -> bool:
        """True if the bind policy prefers or requires whole cores."""
        return self.bind is BindPolicy.FULL_PCPUS


@dataclass(frozen=True, slots=True)
class Taken:
    """The chosen cpus, and the exclusive level that the slot reaches with these cpus."""

    cpus: int
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE


class ShortOf(StrEnum):
    """The resource of which there is too little."""

    CPUS = "cpus"
    WHOLE_CORES = "cpus of cores that are completely free"
    CORES = "cores with a free thread"
    UNSHARED_CORES = "cpus of cores that no other slot claims"
    UNSHARED_NODES = "cpus of NUMA nodes that no other slot claims"
    ALIGNMENT = "cpus of whole cores, whose threads do not add up to this number"


@dataclass(frozen=True, slots=True)
class Short:
    """The reason why no cpus can be taken. The slot needs the amount `needed` of the resource `of`,
    but only the amount `suitable` exists.
    """

    of: ShortOf
    needed: int
    suitable: int


def take(
    layout: CpuLayout, available: int, claims: ExclusiveClaims, request: CpuDemand
) -> Taken | Short:
    """Chooses cpus for a slot. Equal arguments always give the same result.

    Args:
        layout: the host.
        available: the cpus to choose from, as bits.
        claims: cpus that slots with an exclusive policy claim.
        request: the number of cpus, and the policies.

    Returns:
        Exactly `request.need` cpus, or the resource of which there is too little.
    """
    # The result has an exclusive level even if the slot needs no cpus.
    if request.need < 1:
        return Taken(0, reached(layout, 0, claims, request.exclusive))
    free = suitable(layout, available, claims, request)
    if isinstance(free, Short):
        return free
    cpus = _preferred_first(layout, free, claims, request)
    if cpus is None:
        return Short(ShortOf.ALIGNMENT, request.need, free.bit_count())
    return Taken(cpus, reached(layout, cpus, claims, request.exclusive))


def suitable(
    layout: CpuLayout, available: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | Short:
    """Returns the available cpus that meet all required policies, or the resource of which there is
    too little.

    Args:
        layout: the host.
        available: the cpus to choose from, as bits.
        claims: cpus that slots with an exclusive policy claim.
        request: the number of cpus, and the policies.
    """
    need = request.need
    free = available & layout.pinnable
    if need > free.bit_count():
        return Short(ShortOf.CPUS, need, free.bit_count())
    unclaimed = unclaimed_of(layout, free, claims, request, need)
    if isinstance(unclaimed, Short):
        return unclaimed
    free = unclaimed
    # A policy that is only preferred affects just the order in which cpus are taken. So only a
    # required policy is checked.
    if request.bind_required:
        short_of = ShortOf.CPUS
        if request.bind is BindPolicy.FULL_PCPUS:
            free = layout.whole(free)
            short_of = ShortOf.WHOLE_CORES
            # The threads of cores with different numbers of threads possibly do not add up to the
            # need. This check avoids a search without result.
            enough = not layout.uniform_cores and need <= free.bit_count()
            if not (adds_up(layout, free, need) if enough else aligned(layout, need)):
                return Short(ShortOf.ALIGNMENT, need, free.bit_count())
        elif request.bind is BindPolicy.SPREAD_BY_PCPUS:
            free = layout.first_threads(free)
            short_of = ShortOf.CORES
        if need > free.bit_count():
            return Short(short_of, need, free.bit_count())
    return free


def unclaimed_of(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand, need: int
) -> int | Short:
    """Returns the free cpus that a required exclusive policy allows, or the resource of which there
    is too little.

    Args:
        layout: the host.
        free: the cpus to choose from, as bits.
        claims: cpus that slots with an exclusive policy claim.
        request: contains the exclusive policy, and whether it is required.
        need: the result must have at least this many cpus.
    """
    if not request.exclusive_required:
        return free
    short_of = ShortOf.CPUS
    if request.exclusive is ExclusivePolicy.PCPU_LEVEL:
        free &= ~layout.cores_touched(claims.core_level)
        short_of = ShortOf.UNSHARED_CORES
    elif request.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        free &= ~layout.nodes_touched(claims.node_level)
        short_of = ShortOf.UNSHARED_NODES
    return free if need <= free.bit_count() else Short(short_of, need, free.bit_count())


def holds(layout: CpuLayout, cpus: int, bind: BindPolicy) -> bool:
    """Returns True if cpus meet a bind policy. Offline cpus are ignored.

    Args:
        layout: the host.
        cpus: cpus, as bits.
        bind: the policy.
    """
    cpus &= layout.cpus
    if bind is BindPolicy.FULL_PCPUS:
        return layout.whole(cpus) == cpus
    if bind is BindPolicy.SPREAD_BY_PCPUS:
        return layout.first_threads(cpus) == cpus
    return True


def reached(
    layout: CpuLayout, cpus: int, claims: ExclusiveClaims, wanted: ExclusivePolicy
) -> ExclusivePolicy:
    """Returns the exclusive level that a slot reaches with these cpus, at most `wanted`.

    Args:
        layout: the host.
        cpus: cpus of a slot, as bits.
        claims: cpus that other slots with an exclusive policy claim.
        wanted: the highest level to return.
    """
    nodes, cores = claims.node_level, claims.core_level
    if wanted is ExclusivePolicy.NUMA_NODE_LEVEL:
        if not layout.nodes_touched(cpus) & nodes:
            return wanted
        # A slot that claims its nodes also claims the cores in them.
        cores |= nodes
    elif wanted is not ExclusivePolicy.PCPU_LEVEL:
        return ExclusivePolicy.NONE
    apart = not layout.cores_touched(cpus) & cores
    return ExclusivePolicy.PCPU_LEVEL if apart else ExclusivePolicy.NONE


def _preferred_first(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Takes as many preferred cpus as possible, then other cpus. If these two steps fail, all cpus
    are taken in one step without a preference. Returns None if this step fails, too.
    """
    preferred = request.preferred & free
    # A part of a core would violate the required bind policy.
    if request.bind_required and request.bind is BindPolicy.FULL_PCPUS:
        preferred = layout.whole(preferred)
    count = min(request.need, preferred.bit_count())
    # First, the preferred cpus and the other cpus are taken separately. Both parts must succeed. A
    # part fails if its whole cores do not add up to the need of the part.
    if preferred:
        first = _of_one_kind(layout, preferred, claims, replace(request, need=count))
        rest = replace(request, need=request.need - count)
        others = _of_one_kind(layout, free & ~preferred, claims, rest)
        if first is not None and others is not None:
            return first | others
    return _of_one_kind(layout, free, claims, request)


def _of_one_kind(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Takes cpus of one kind of cores, unless a mixture meets the preferred policies better."""
    if layout.kinds == 1:
        return _by_strategy(layout, free, claims, request)
    best: tuple[tuple[int, bool], int] | None = None
    # Try each kind, and then the mixture (all cores together).
    for kind in (*layout.cores_of_kind, layout.cpus):
        cpus = _by_strategy(layout, free & kind, claims, request)
        if cpus is not None:
            level = reached(layout, cpus, claims, request.exclusive)
            merit = (_LEVELS.index(level), holds(layout, cpus, request.bind))
            # Only a strictly better result replaces an earlier result, so on a tie the earlier kind
            # is taken.
            if best is None or merit > best[0]:
                best = merit, cpus
    return None if best is None else best[1]


_LEVELS = (ExclusivePolicy.NONE, ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL)


def _by_strategy(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Takes cpus by the NUMA strategy. Returns None in two cases: there are too few cpus, or whole
    cores are required and do not add up to the need.
    """
    if request.need < 1:
        return 0
    if free.bit_count() < request.need:
        return None
    cpus: int | None = None
    if request.strategy is NumaStrategy.DISTRIBUTE_EVENLY:
        cpus = _evenly(layout, free, claims, request)
    # Even shares can split cores, so a required bind policy is checked afterwards.
    if cpus is None or not _keeps_required(layout, cpus, request):
        cpus = _accumulator(layout, free, claims, request).take(request.need, request.whole_cores)
    # If cores have different numbers of threads, the accumulator can split a core. If whole cores
    # are required, search for cores whose threads add up to the need.
    if not _keeps_required(layout, cpus, request):
        return _accumulator(layout, free, claims, request).take_whole_cores_only(request.need)
    return cpus


def _accumulator(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> Accumulator:
    return Accumulator(
        layout,
        free,
        core_claimed=claims.core_level,
        node_claimed=claims.node_level,
        strategy=request.strategy,
        exclusive=request.exclusive,
    )


def _keeps_required(layout: CpuLayout, cpus: int, request: CpuDemand) -> bool:
    return not request.bind_required or holds(layout, cpus, request.bind)


def _evenly(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Takes even shares from as few nodes as possible. If there are no even shares, the cpus are
    packed. Cpus that meet the preferred policies are tried first. The result is None if there are
    no even shares and the bind policy is SpreadByPCPUs.
    """
    group = layout.per_core if request.whole_cores else 1
    offered_sets = list(offers(layout, free, claims, request))
    # Each set contains the set before it, and the last set has all free cpus.
    for offered in offered_sets:
        even = _widest(layout, offered) if request.whole_cores else offered
        shares = even_shares(layout, even, request.need, group)
        if shares is not None:
            taken = 0
            for share in shares:
                taken |= _within_node(layout, even, claims, request, share)
            return taken
    if request.bind is BindPolicy.SPREAD_BY_PCPUS:
        return None
    # A result always exists, because the caller has checked that the last set has enough cpus.
    return next(
        cpus
        for offered in offered_sets
        if (cpus := take_packed(layout, offered, request.need)) is not None
    )


def offers(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> Iterator[int]:
    """Yields sets of free cpus. The first set has only cpus that meet all preferred policies. Each
    later set ignores more of these policies.

    Args:
        layout: the host.
        free: the cpus, as bits.
        claims: cpus that slots with an exclusive policy claim.
        request: contains the preferred policies.
    """
    levels = [0]
    if request.exclusive is ExclusivePolicy.PCPU_LEVEL:
        levels = [layout.cores_touched(claims.core_level), 0]
    elif request.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        on_cores = layout.cores_touched(claims.core_level | claims.node_level)
        levels = [layout.nodes_touched(claims.node_level), on_cores, 0]
    for barred in dict.fromkeys(levels):
        left = free & ~barred
        if request.bind is BindPolicy.FULL_PCPUS:
            yield layout.whole(left)
        elif request.bind is BindPolicy.SPREAD_BY_PCPUS:
            yield layout.first_threads(left)
    # The last sets ignore the bind policy.
    yield from (free & ~barred for barred in dict.fromkeys(levels))


def _widest(layout: CpuLayout, cpus: int) -> int:
    """Returns the cpus of the cores with the most threads. Cores with fewer threads are left out,
    because only cores with equally many threads give equal groups.
    """
    if layout.uniform_cores:
        return cpus
    widest = 0
    for core in layout.core_masks:
        if core.bit_count() == layout.per_core:
            widest |= core
    return cpus & widest


def _within_node(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand, share: NodeShare
) -> int:
    if request.bind is BindPolicy.SPREAD_BY_PCPUS:
        accumulator = _accumulator(layout, free & share.node, claims, request)
        return accumulator.take(share.even + share.more, whole_cores=False)
    return take_share(layout, free, share)

"""Chooses the dedicated cpus of a slot on one host.

The bind policy, the exclusive policy and the NUMA strategy decide. Each of the first two is
preferred or required. A required policy is never relaxed. A slot is never refused because of a
policy that is only preferred.

The order in which cpus are tried is that of Koordinator's accumulator (`takeCPUs` of its plug-in
nodenumaresource, see `accumulator`), except:

- If the exclusive policy `NUMANodeLevel` cannot be met, it falls back to `PCPULevel`, then to none.
- `DistributeEvenly` shares cpus out as the kubelet does (see `distributed`). Where there are no
  even shares it packs, or spreads if that is the bind policy.
- A core is the set of its threads, however many. On hosts with different cores, `FullPCPUs` looks
  for cores whose threads add up exactly. One kind of cores is preferred to a mixture, the kind with
  the lowest cpu first.
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
    """Cpus of slots with an exclusive policy, by the level that they have reached."""

    core_level: int = 0
    node_level: int = 0


@dataclass(frozen=True, slots=True)
class CpuDemand:
    """How many cpus are needed, and by which policies. `DEFAULT` means no preference here."""

    need: int
    bind: BindPolicy = BindPolicy.FULL_PCPUS
    bind_required: bool = False
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE
    exclusive_required: bool = False
    strategy: NumaStrategy = NumaStrategy.LEAST_ALLOCATED
    preferred: int = 0  # cpus to try first

    @property
    def whole_cores(self) -> bool:
        """True if whole cores are wanted."""
        return self.bind is BindPolicy.FULL_PCPUS


@dataclass(frozen=True, slots=True)
class Taken:
    """The chosen cpus, and the exclusive level that they reach."""

    cpus: int
    exclusive: ExclusivePolicy = ExclusivePolicy.NONE


class ShortOf(StrEnum):
    """The resource of which there is too little."""

    CPUS = "cpus"
    WHOLE_CORES = "cpus of cores that are free altogether"
    CORES = "cores with a free thread"
    UNSHARED_CORES = "cpus of cores without a slot that wants its cores to itself"
    UNSHARED_NODES = "cpus of NUMA nodes without a slot that wants its nodes to itself"
    ALIGNMENT = "cpus of whole cores, whose threads do not add up to that"


@dataclass(frozen=True, slots=True)
class Short:
    """The reason why no cpus can be taken: `needed` are needed, and only `suitable` exist. `of`
    names the resource.
    """

    of: ShortOf
    needed: int
    suitable: int


def take(
    layout: CpuLayout, available: int, claims: ExclusiveClaims, request: CpuDemand
) -> Taken | Short:
    """Chooses cpus for a slot. The same input always has the same result.

    Args:
        layout: the host.
        available: the cpus to choose from, as bits.
        claims: cpus that exclusive policies avoid.
        request: what is needed.

    Returns:
        Exactly `request.need` cpus, or what there is too little of.
    """
    # A slot that needs no cpu still reaches an exclusive level, on nothing.
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
    """Returns the available cpus that meet what is required, or what there is too little of.

    Args:
        layout: the host.
        available: the cpus to choose from, as bits.
        claims: cpus that exclusive policies avoid.
        request: what is needed.
    """
    need = request.need
    free = available & layout.pinnable
    if need > free.bit_count():
        return Short(ShortOf.CPUS, need, free.bit_count())
    unclaimed = unclaimed_of(layout, free, claims, request, need)
    if isinstance(unclaimed, Short):
        return unclaimed
    free = unclaimed
    # What is only preferred is left to the order in which cpus are taken.
    if request.bind_required:
        short_of = ShortOf.CPUS
        if request.bind is BindPolicy.FULL_PCPUS:
            free = layout.whole(free)
            short_of = ShortOf.WHOLE_CORES
            # Cores that differ may have enough threads that still do not add up. Checking that here
            # saves the search.
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
    """Returns the free cpus that a required exclusive policy allows, or that there are too few.

    Args:
        layout: the host.
        free: the cpus to choose from, as bits.
        claims: cpus that exclusive policies avoid.
        request: its exclusive policy, and whether that is required.
        need: how many cpus there must be.
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
    """Returns True if cpus are what the bind policy promises where it is required. Offline ones are
    ignored.

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
    """Returns the exclusive level that cpus have, at most the one wanted.

    Args:
        layout: the host.
        cpus: cpus of a slot, as bits.
        claims: cpus that other slots claim.
        wanted: the highest level to return.
    """
    nodes, cores = claims.node_level, claims.core_level
    if wanted is ExclusivePolicy.NUMA_NODE_LEVEL:
        if not layout.nodes_touched(cpus) & nodes:
            return wanted
        # A slot that claims its nodes claims the cores in them, too.
        cores |= nodes
    elif wanted is not ExclusivePolicy.PCPU_LEVEL:
        return ExclusivePolicy.NONE
    apart = not layout.cores_touched(cpus) & cores
    return ExclusivePolicy.PCPU_LEVEL if apart else ExclusivePolicy.NONE


def _preferred_first(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Takes as many of the preferred cpus as possible, then others. If that breaks what is
    required, it takes all at once. None: even that is impossible.
    """
    preferred = request.preferred & free
    # A part of a core would break what is required.
    if request.bind_required and request.bind is BindPolicy.FULL_PCPUS:
        preferred = layout.whole(preferred)
    count = min(request.need, preferred.bit_count())
    # The split is tried first. It may fail where whole cores do not add up in both parts.
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
    """Takes cpus of one kind of cores, unless a mixture meets more of what is preferred."""
    if layout.kinds == 1:
        return _by_strategy(layout, free, claims, request)
    best: tuple[tuple[int, bool], int] | None = None
    # Kind by kind, then all cores together, which is the mixture.
    for kind in (*layout.cores_of_kind, layout.cpus):
        cpus = _by_strategy(layout, free & kind, claims, request)
        if cpus is not None:
            level = reached(layout, cpus, claims, request.exclusive)
            merit = (_LEVELS.index(level), holds(layout, cpus, request.bind))
            # Strictly better: among equals, the earlier kind is taken.
            if best is None or merit > best[0]:
                best = merit, cpus
    return None if best is None else best[1]


_LEVELS = (ExclusivePolicy.NONE, ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL)


def _by_strategy(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> int | None:
    """Takes cpus by the NUMA strategy. None only if there are too few, or if required whole cores
    do not add up.
    """
    if request.need < 1:
        return 0
    if free.bit_count() < request.need:
        return None
    cpus: int | None = None
    if request.strategy is NumaStrategy.DISTRIBUTE_EVENLY:
        cpus = _evenly(layout, free, claims, request)
    # Even shares only prefer whole cores, so a required policy is checked afterwards.
    if cpus is None or not _keeps_required(layout, cpus, request):
        cpus = _accumulator(layout, free, claims, request).take(request.need, request.whole_cores)
    # On hosts with different cores, the accumulator may split one. Then only sums of cores help.
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
    """Takes even shares of as few nodes as possible, else packs; first within what the policies
    prefer. None: there are no even shares, and the bind policy spreads.
    """
    group = layout.per_core if request.whole_cores else 1
    offered_sets = list(offers(layout, free, claims, request))
    # From strict to lenient; the last set has all free cpus.
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
    # Always found: the last set has enough, by the caller.
    return next(
        cpus
        for offered in offered_sets
        if (cpus := take_packed(layout, offered, request.need)) is not None
    )


def offers(
    layout: CpuLayout, free: int, claims: ExclusiveClaims, request: CpuDemand
) -> Iterator[int]:
    """Yields the free cpus, first reduced to all that is preferred, then to less and less of it.

    Args:
        layout: the host.
        free: the cpus, as bits.
        claims: cpus that exclusive policies avoid.
        request: what is preferred.
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
    # At last without the bind policy, which is only preferred here.
    yield from (free & ~barred for barred in dict.fromkeys(levels))


def _widest(layout: CpuLayout, cpus: int) -> int:
    """Returns the cpus of cores with the most threads: only equal cores make even groups."""
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

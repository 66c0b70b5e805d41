"""Chooses the dedicated cpus of a slot, once it is known on which nodes they may be.

This decides which free cpus must be left to the shared pools, and how a slot's cpus are split over
NUMA nodes. `take.py` chooses among the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaStrategy, QosClass
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.numa import split
from resource_manager.engine.cpus.request import CpuBlocker
from resource_manager.engine.cpus.resolve import Resolved
from resource_manager.engine.cpus.take import (
    CpuDemand,
    ExclusiveClaims,
    Short,
    ShortOf,
    Taken,
    holds,
    reached,
    suitable,
    take,
)
from resource_manager.engine.model.host_refusal import HostRefusal

_BLOCKERS: Final = {
    ShortOf.CPUS: CpuBlocker.CPU_NOT_ENOUGH,
    ShortOf.WHOLE_CORES: CpuBlocker.WHOLE_CORES_NOT_ENOUGH,
    ShortOf.CORES: CpuBlocker.DISTINCT_CORES_NOT_ENOUGH,
    ShortOf.UNSHARED_CORES: CpuBlocker.EXCLUSIVE_UNMET,
    ShortOf.UNSHARED_NODES: CpuBlocker.EXCLUSIVE_UNMET,
    # Some number of whole cores fits in principle (checked before); the free ones do not add up.
    ShortOf.ALIGNMENT: CpuBlocker.WHOLE_CORES_NOT_ENOUGH,
}


def candidate_cpus(ledger: CpuLedger, resolved: Resolved) -> int | HostRefusal:
    """Returns the cpus that a slot can choose from, or why there are too few.

    Whatever it chooses of them, required policies hold, and slots in pools keep what they were
    promised.
    """
    found = suitable(
        ledger.layout, ledger.free, exclusive_claims(ledger), demand_of(resolved, resolved.count)
    )
    if isinstance(found, Short):
        return shortage(found, resolved)
    # In this order: what is promised on single nodes must stay, and only then can the last cpus of
    # the pools be found.
    left = _without_promised_cpus(ledger, resolved, found)
    if left.bit_count() < resolved.count:
        return _promised_to_pools(resolved, left)
    return _without_last_pool_cpus(ledger, resolved, left)


def preferred_cpus(ledger: CpuLedger, resolved: Resolved, cpus: int) -> int:
    """Returns those of the cpus that also meet what is only preferred.

    Args:
        ledger: of the host.
        resolved: the slot's policies.
        cpus: the cpus to choose from.
    """
    layout = ledger.layout
    if resolved.exclusive is ExclusivePolicy.PCPU_LEVEL:
        cpus &= ~layout.cores_touched(ledger.claimed_cores)
    elif resolved.exclusive is ExclusivePolicy.NUMA_NODE_LEVEL:
        cpus &= ~layout.nodes_touched(ledger.claimed_nodes)
    if resolved.bind is BindPolicy.FULL_PCPUS:
        return layout.whole(cpus)
    if resolved.bind is BindPolicy.SPREAD_BY_PCPUS:
        return layout.first_threads(cpus)
    return cpus


def pick(ledger: CpuLedger, resolved: Resolved, cpus: int) -> Taken | Short:
    """Takes as many cpus as the slot needs.

    Args:
        ledger: of the host.
        resolved: the slot's policies.
        cpus: the cpus to choose from.

    Returns:
        The cpus, or what there is too little of.
    """
    isolated = cpus & ~ledger.pool_cpus  # first, because nothing else can use them
    return take(
        ledger.layout,
        cpus,
        exclusive_claims(ledger),
        demand_of(resolved, resolved.count, preferred=isolated),
    )


def pick_on(ledger: CpuLedger, resolved: Resolved, cpus: int, nodes: Sequence[int]) -> Taken | None:
    """Takes cpus on several NUMA nodes, split over them as evenly as possible.

    Args:
        ledger: of the host.
        resolved: the slot's policies.
        cpus: the cpus to choose from.
        nodes: positions of the nodes.

    Returns:
        The cpus. None if what is required is impossible there, which counting alone does not tell
        on hosts with different cores.
    """
    layout = ledger.layout
    here = 0
    for at in nodes:
        here |= layout.nodes[at].mask
    here &= cpus
    # DistributeEvenly shares cpus out over nodes by itself, in `take`.
    if len(nodes) > 1 and resolved.strategy is not NumaStrategy.DISTRIBUTE_EVENLY:
        split_up = _pick_split(ledger, resolved, here, nodes)
        if split_up is not None:
            # A split that does not work out is only less even, so all nodes are tried together.
            return split_up
    found = pick(ledger, resolved, here)
    return None if isinstance(found, Short) else found


def _pick_split(
    ledger: CpuLedger, resolved: Resolved, cpus: int, nodes: Sequence[int]
) -> Taken | None:
    layout, claims = ledger.layout, exclusive_claims(ledger)
    isolated = cpus & ~ledger.pool_cpus
    taken = 0
    for at, part in (_cpus_per_node(layout, resolved, cpus, nodes) or {}).items():
        request = demand_of(resolved, part, preferred=isolated)
        found = take(layout, cpus & layout.nodes[at].mask, claims, request)
        if isinstance(found, Short):
            return None
        taken |= found.cpus
    # Parts of required whole cores may not add up to the need.
    if taken.bit_count() != resolved.count:
        return None
    return Taken(taken, reached(layout, taken, claims, resolved.exclusive))


def _cpus_per_node(
    layout: CpuLayout, resolved: Resolved, cpus: int, nodes: Sequence[int]
) -> dict[int, int] | None:
    """Returns how many cpus each node gives: whole cores, if wanted and if there are enough of
    them.
    """
    masks = [(at, layout.nodes[at].mask & cpus) for at in nodes]
    unit = layout.per_core
    # Only equal cores make parts that are multiples of one unit.
    if resolved.bind is BindPolicy.FULL_PCPUS and layout.uniform_cores:
        whole = layout.whole(cpus)
        counts = [(at, (mask & whole).bit_count()) for at, mask in masks]
        if resolved.count % unit == 0 and (parts := split(resolved.count, counts, unit)):
            return parts
    # Not enough whole cores: threads are split instead, where that is allowed.
    return split(resolved.count, [(at, mask.bit_count()) for at, mask in masks])


def exclusive_claims(ledger: CpuLedger) -> ExclusiveClaims:
    """Returns the cpus that exclusive policies avoid."""
    return ExclusiveClaims(ledger.claimed_cores, ledger.claimed_nodes)


def demand_of(resolved: Resolved, need: int, *, preferred: int = 0) -> CpuDemand:
    """Returns the demand for cpus by a slot's policies.

    Args:
        resolved: the slot's policies.
        need: number of cpus.
        preferred: cpus that are taken first.
    """
    return CpuDemand(
        need,
        resolved.bind,
        resolved.bind_required,
        resolved.exclusive,
        resolved.exclusive_required,
        resolved.strategy,
        preferred,
    )


def notes_on(layout: CpuLayout, resolved: Resolved, taken: Taken) -> tuple[str, ...]:
    """Returns a sentence for each preferred policy that could not be met.

    Args:
        layout: the host.
        resolved: the slot's policies.
        taken: the cpus that it gets.
    """
    notes = []
    count = resolved.count
    if resolved.bind_requested and not holds(layout, taken.cpus, resolved.bind):
        if resolved.bind is BindPolicy.FULL_PCPUS:
            single = count - layout.whole(taken.cpus).bit_count()
            notes.append(f"FullPCPUs was preferred: {single} of {count} cpus share a core")
        else:
            cores = layout.first_threads(taken.cpus).bit_count()
            notes.append(f"SpreadByPCPUs was preferred: {count} cpus lie on {cores} cores")
    if taken.exclusive is not resolved.exclusive:
        instead = ""
        if taken.exclusive is not ExclusivePolicy.NONE:
            instead = f", {taken.exclusive} was reached"
        notes.append(f"{resolved.exclusive} was preferred: other slots claim the same{instead}")
    return tuple(notes)


def shortage(lack: Short, resolved: Resolved) -> HostRefusal:
    """Returns the refusal for too few suitable cpus."""
    wanted = ""
    if lack.of in (ShortOf.UNSHARED_CORES, ShortOf.UNSHARED_NODES):
        wanted = f" under {resolved.exclusive}"
    elif lack.of in (ShortOf.WHOLE_CORES, ShortOf.CORES):
        wanted = f" under {resolved.bind}"
    return HostRefusal(
        _BLOCKERS[lack.of],
        f"the slot needs {_cpus(lack.needed)}{wanted}, and the host has {lack.suitable}"
        f" {'' if lack.of is ShortOf.CORES else 'free '}{lack.of}",
        (("asked", lack.needed), ("free", lack.suitable)),
    )


def _without_promised_cpus(ledger: CpuLedger, resolved: Resolved, cpus: int) -> int:
    """Removes cpus that are promised to slots in the pools of single nodes."""
    for at in ledger.layout.cpu_nodes:
        spare = ledger.pool_spare(at, resolved.qos)
        here = cpus & ledger.pool_cpus & ledger.layout.nodes[at].mask
        # The slot may take up to `count` cpus here, and only `spare` may go.
        if spare < min(resolved.count, here.bit_count()):
            cpus &= ~_least_needed(ledger.layout, resolved, here, here.bit_count() - spare)
    return cpus


def _least_needed(layout: CpuLayout, resolved: Resolved, cpus: int, count: int) -> int:
    """Returns `count` or more cpus that the slot needs least: single threads first, so that cores
    stay whole, then the highest cpus. If it takes only whole cores, whole cores are returned.
    """
    whole = layout.whole(cpus)
    back = 0
    while back.bit_count() < count and (left := cpus & ~back):
        highest = 1 << (left & ~whole or left).bit_length() - 1
        # Where only whole cores are taken, a core with one cpu kept back is of no use.
        back |= layout.cores_touched(highest) & left if resolved.needs_whole_cores else highest
    return back


def _promised_to_pools(resolved: Resolved, left: int) -> HostRefusal:
    free = left.bit_count()
    return HostRefusal(
        CpuBlocker.CPU_NOT_ENOUGH,
        f"the slot needs {_cpus(resolved.count)}, and of the host's free ones {free} are"
        " not promised to slots in the pools of single NUMA nodes",
        (("asked", resolved.count), ("free", free)),
    )


def _without_last_pool_cpus(ledger: CpuLedger, resolved: Resolved, cpus: int) -> int | HostRefusal:
    """Leaves at least one cpu to each pool that has slots."""
    pools = [(ledger.shared_count, ledger.shared_cpus, CpuBlocker.SHARED_POOL_EMPTY, QosClass.LS)]
    if resolved.qos is QosClass.LSE:
        pools.append(
            (
                ledger.best_effort_count,
                ledger.best_effort_cpus,
                CpuBlocker.BEST_EFFORT_POOL_EMPTY,
                QosClass.BE,
            )
        )
    for slots, pool, blocker, qos in pools:
        # No slot depends on the pool; or it has cpus that this slot cannot take; or this slot is
        # too small to take all of it.
        if not slots or pool & ~cpus or resolved.count < pool.bit_count():
            continue
        cpus &= ~_least_needed(ledger.layout, resolved, pool, 1)
        if cpus.bit_count() < resolved.count:
            return HostRefusal(
                blocker,
                f"the slot needs {_cpus(resolved.count)}, which would leave no cpu to"
                f" the {qos} slots ({slots}) that share {pool.bit_count()} cpus",
                (("asked", resolved.count), ("free", cpus.bit_count()), ("slots", slots)),
            )
    return cpus


def _cpus(count: int) -> str:
    return f"{count} dedicated cpu{'' if count == 1 else 's'}"

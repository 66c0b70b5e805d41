"""Chooses the dedicated cpus of a slot on given NUMA nodes.

This module decides which free cpus must stay in the shared pools, and how the cpus of a slot are
split over NUMA nodes. `take.py` chooses among the remaining cpus.
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
    # `resolve` has checked that some whole cores of the host have exactly this number of threads.
    # So only free whole cores are missing.
    ShortOf.ALIGNMENT: CpuBlocker.WHOLE_CORES_NOT_ENOUGH,
}


def candidate_cpus(ledger: CpuLedger, resolved: Resolved) -> int | HostRefusal:
    """Returns the cpus from which a slot can choose, or a refusal if there are too few cpus.

    Whichever of these cpus the slot takes, slots in shared pools keep the cpus that they were
    promised. Cpus that a required policy excludes are left out.
    """
    found = suitable(
        ledger.layout, ledger.free, exclusive_claims(ledger), demand_of(resolved, resolved.count)
    )
    if isinstance(found, Short):
        return shortage(found, resolved)
    # The order matters. Cpus that are promised on single nodes must be removed first, because
    # `_without_last_pool_cpus` depends on the remaining cpus.
    left = _without_promised_cpus(ledger, resolved, found)
    if left.bit_count() < resolved.count:
        return _promised_to_pools(resolved, left)
    return _without_last_pool_cpus(ledger, resolved, left)


def preferred_cpus(ledger: CpuLedger, resolved: Resolved, cpus: int) -> int:
    """Returns the cpus in `cpus` that also meet the preferred policies.

    Args:
        ledger: the cpu ledger of the host.
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
        ledger: the cpu ledger of the host.
        resolved: the slot's policies.
        cpus: the cpus to choose from.

    Returns:
        The cpus, or the resource of which there is too little.
    """
    # isolated cpus are taken first, because slots in pools cannot use them
    isolated = cpus & ~ledger.pool_cpus
    return take(
        ledger.layout,
        cpus,
        exclusive_claims(ledger),
        demand_of(resolved, resolved.count, preferred=isolated),
    )


def pick_on(ledger: CpuLedger, resolved: Resolved, cpus: int, nodes: Sequence[int]) -> Taken | None:
    """Takes cpus on several NUMA nodes, as evenly as possible.

    Args:
        ledger: the cpu ledger of the host.
        resolved: the slot's policies.
        cpus: the cpus to choose from.
        nodes: positions of the nodes.

    Returns:
        The cpus. The result is None if the required policies cannot be met on these nodes. If cores
        have different numbers of threads, the result can be None although enough cpus are free.
    """
    layout = ledger.layout
    here = 0
    for at in nodes:
        here |= layout.nodes[at].mask
    here &= cpus
    # With DistributeEvenly, `take` itself distributes the cpus over nodes.
    if len(nodes) > 1 and resolved.strategy is not NumaStrategy.DISTRIBUTE_EVENLY:
        split_up = _pick_split(ledger, resolved, here, nodes)
        if split_up is not None:
            return split_up
    # If the even split fails, all nodes are tried together. This result can be less even.
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
    # If whole cores are required, the sum of the parts can differ from the need.
    if taken.bit_count() != resolved.count:
        return None
    return Taken(taken, reached(layout, taken, claims, resolved.exclusive))


def _cpus_per_node(
    layout: CpuLayout, resolved: Resolved, cpus: int, nodes: Sequence[int]
) -> dict[int, int] | None:
    """Returns how many cpus each node gives. If whole cores are preferred and enough whole cores
    are free, each node gives only whole cores.
    """
    masks = [(at, layout.nodes[at].mask & cpus) for at in nodes]
    unit = layout.per_core
    # Numbers of whole cores are multiples of one unit only if all cores have equally many threads.
    if resolved.bind is BindPolicy.FULL_PCPUS and layout.uniform_cores:
        whole = layout.whole(cpus)
        counts = [(at, (mask & whole).bit_count()) for at, mask in masks]
        if resolved.count % unit == 0 and (parts := split(resolved.count, counts, unit)):
            return parts
    # There are not enough whole cores, so the parts are numbers of single threads. The caller
    # checks whether the policies allow such parts.
    return split(resolved.count, [(at, mask.bit_count()) for at, mask in masks])


def exclusive_claims(ledger: CpuLedger) -> ExclusiveClaims:
    """Returns the cpus that slots with an exclusive policy claim."""
    return ExclusiveClaims(ledger.claimed_cores, ledger.claimed_nodes)


def demand_of(resolved: Resolved, need: int, *, preferred: int = 0) -> CpuDemand:
    """Returns a demand for cpus with a slot's policies.

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
        taken: the cpus that the slot gets.
    """
    notes = []
    count = resolved.count
    if resolved.bind_requested and not holds(layout, taken.cpus, resolved.bind):
        if resolved.bind is BindPolicy.FULL_PCPUS:
            single = count - layout.whole(taken.cpus).bit_count()
            notes.append(
                f"FullPCPUs was preferred: {single} of {count} cpus are not on whole cores"
            )
        else:
            cores = layout.first_threads(taken.cpus).bit_count()
            notes.append(f"SpreadByPCPUs was preferred: {count} cpus are on {cores} cores")
    if taken.exclusive is not resolved.exclusive:
        instead = ""
        if taken.exclusive is not ExclusivePolicy.NONE:
            instead = f", {taken.exclusive} was reached"
        notes.append(
            f"{resolved.exclusive} was preferred: other slots claim the same cores or nodes"
            f"{instead}"
        )
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
        f"the slot needs {_cpus(lack.needed)}{wanted}, but the host has {lack.suitable}"
        f" {'' if lack.of is ShortOf.CORES else 'free '}{lack.of}",
        (("asked", lack.needed), ("free", lack.suitable)),
    )


def _without_promised_cpus(ledger: CpuLedger, resolved: Resolved, cpus: int) -> int:
    """Removes the cpus that are promised to slots in the pools of single nodes."""
    for at in ledger.layout.cpu_nodes:
        spare = ledger.pool_spare(at, resolved.qos)
        here = cpus & ledger.pool_cpus & ledger.layout.nodes[at].mask
        # The slot could take up to `count` cpus of this node, but it may take only `spare` cpus.
        if spare < min(resolved.count, here.bit_count()):
            cpus &= ~_least_needed(ledger.layout, resolved, here, here.bit_count() - spare)
    return cpus


def _least_needed(layout: CpuLayout, resolved: Resolved, cpus: int, count: int) -> int:
    """Returns the cpus that are least useful for the slot: `count` cpus, or a few more. Threads of
    cores that are not whole come first, so that other cores stay whole. The highest cpus come next.
    If the slot takes only whole cores, the result has all cpus of each core.
    """
    whole = layout.whole(cpus)
    back = 0
    while back.bit_count() < count and (left := cpus & ~back):
        highest = 1 << (left & ~whole or left).bit_length() - 1
        # If the slot takes only whole cores, it cannot use a core of which one cpu is kept back.
        back |= layout.cores_touched(highest) & left if resolved.needs_whole_cores else highest
    return back


def _promised_to_pools(resolved: Resolved, left: int) -> HostRefusal:
    free = left.bit_count()
    return HostRefusal(
        CpuBlocker.CPU_NOT_ENOUGH,
        f"the slot needs {_cpus(resolved.count)}, but only {free} free cpus of the host are"
        " not promised to slots in shared pools of single NUMA nodes",
        (("asked", resolved.count), ("free", free)),
    )


def _without_last_pool_cpus(ledger: CpuLedger, resolved: Resolved, cpus: int) -> int | HostRefusal:
    """Removes cpus so that each pool with slots keeps at least one cpu. Refuses if too few cpus are
    left.
    """
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
        # No cpus are removed from a pool in three cases: the pool has no slots, it has cpus that
        # this slot cannot take, or it has more cpus than this slot needs.
        if not slots or pool & ~cpus or resolved.count < pool.bit_count():
            continue
        cpus &= ~_least_needed(ledger.layout, resolved, pool, 1)
        if cpus.bit_count() < resolved.count:
            return HostRefusal(
                blocker,
                f"the slot needs {_cpus(resolved.count)}, which would leave no cpu for"
                f" the {slots} {qos} slots that share {pool.bit_count()} cpus",
                (("asked", resolved.count), ("free", cpus.bit_count()), ("slots", slots)),
            )
    return cpus


def _cpus(count: int) -> str:
    return f"{count} dedicated cpu{'' if count == 1 else 's'}"

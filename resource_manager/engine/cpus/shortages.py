"""Makes refusals about NUMA nodes and shared pools: their texts, and the numbers in the texts."""

from __future__ import annotations

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import BindPolicy, CpuPolicy, NumaPolicy, QosClass
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    GIB,
    MEMORY_BYTES,
    MIB,
)
from finegrain.units import format_cpu
from resource_manager.engine.cpus.hints import Quantities
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.numa import MILLI
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.cpus.resolve import Resolved, ignored_in_pools
from resource_manager.engine.model.host_refusal import HostRefusal


def amount_text(dimension: str, amount: int) -> str:
    """Returns an amount for people, such as "2.5 cpus" or "12Gi memory". Memory is given in whole
    GiB if possible, and in MiB otherwise.
    """
    if dimension in (CPU_MILLI, BEST_EFFORT_CPU_MILLI):
        kind = "best-effort cpu" if dimension == BEST_EFFORT_CPU_MILLI else "cpu"
        return f"{format_cpu(amount)} {kind}{'' if amount == MILLI else 's'}"
    if dimension == MEMORY_BYTES:
        unit, name = (GIB, "Gi") if amount % GIB == 0 else (MIB, "Mi")
        return f"{amount // unit}{name} memory"
    return f"{amount} {dimension.removeprefix(EXTENDED_PREFIX)}"


NO_DEVICES_KNOWN = HostRefusal(
    CpuBlocker.NO_CPU_TOPOLOGY,
    "the request has devices, but the host does not report its cores and NUMA nodes",
)

NO_NEIGHBORS_KNOWN = HostRefusal(
    CpuBlocker.NO_CPU_TOPOLOGY,
    "the request has rules about neighbors, but the host does not report its cores and NUMA nodes",
)


def unaligned(policy: NumaPolicy, needs: Quantities, smallest: int | None) -> HostRefusal:
    """Returns the refusal for a slot if no set of nodes that the policy admits has enough of all
    amounts.

    Args:
        policy: the NUMA policy of the slot.
        needs: the amounts that the slot needs, and the amounts that nodes have.
        smallest: number of nodes that the slot would need on the empty host. It is None if even all
            nodes together would not be enough.
    """
    layout = needs.layout
    free = "; ".join(
        f"{layout.nodes[at].id}: "
        + ", ".join(f"{amount_text(name, needs.of(name, (at,))[0][1])}" for name in needs.need)
        for at in needs.nodes
    )
    on = "one NUMA node"
    if smallest is None:
        on = f"{'one' if policy is NumaPolicy.SINGLE_NUMA_NODE else 'any'} NUMA node even of the"
        on += " empty host"
    elif smallest > 1 and policy is NumaPolicy.SINGLE_NUMA_NODE:
        on = f"one NUMA node (the empty host would need {smallest})"
    elif smallest > 1:
        on = f"{smallest} NUMA nodes, the number that the empty host would need"
    needed_text = ", ".join(amount_text(name, amount) for name, amount in needs.need.items())
    return HostRefusal(
        CpuBlocker.NUMA_UNALIGNED,
        f"{policy} cannot place {needed_text} on {on}; free by node: {free}",
        tuple((f"asked {name}", amount) for name, amount in needs.need.items()),
    )


def not_enough(needs: Quantities, lacking: str) -> HostRefusal:
    """Returns the refusal for a slot if all nodes together have too little of one dimension."""
    blocker = {
        CPU_MILLI: CpuBlocker.NUMA_NOT_ENOUGH_CPU,
        BEST_EFFORT_CPU_MILLI: CpuBlocker.NUMA_NOT_ENOUGH_CPU,
        MEMORY_BYTES: CpuBlocker.NUMA_NOT_ENOUGH_MEMORY,
    }.get(lacking, CpuBlocker.NUMA_NOT_ENOUGH_RESOURCE)
    by_node = {needs.layout.nodes[at].id: has for at, has in needs.of(lacking, needs.nodes)}
    left = ", ".join(f"{node}: {amount_text(lacking, has)}" for node, has in by_node.items())
    free = sum(by_node.values())
    return HostRefusal(
        blocker,
        f"the slot needs {amount_text(lacking, needs.need[lacking])}, but the NUMA nodes have"
        f" {amount_text(lacking, free)} left; by node: {left}",
        (
            ("asked", needs.need[lacking]),
            ("free", free),
            *((f"node {node}", has) for node, has in by_node.items()),
        ),
    )


def no_suitable_pool(ledger: CpuLedger, request: CpuRequest, limit_milli: int) -> HostRefusal:
    """Returns the refusal for a slot if no node's shared pool is large enough for its cpu limit.

    Args:
        ledger: the cpu ledger of the host.
        request: the needs of the slot.
        limit_milli: the cpu limit of the slot, in thousandths.
    """
    sizes = {
        ledger.layout.nodes[at].id: (ledger.shared_cpus & ledger.layout.nodes[at].mask).bit_count()
        for at in ledger.layout.cpu_nodes
    }
    pools = ", ".join(f"{node}: {size} cpus" for node, size in sizes.items())
    return HostRefusal(
        CpuBlocker.BURST_POOL_TOO_SMALL,
        "no NUMA node has a shared pool that is large enough for a cpu limit of"
        f" {amount_text(CPU_MILLI, limit_milli)}"
        f" and has {amount_text(CPU_MILLI, request.cpu_milli)} free; pools by node:"
        f" {pools}",
        (("asked", limit_milli), *((f"node {node}", size) for node, size in sizes.items())),
    )


def empty_pool(ledger: CpuLedger, resolved: Resolved) -> HostRefusal | None:
    """Returns a refusal if the shared pool of the slot's QoS class is empty, and None otherwise."""
    if resolved.qos is QosClass.BE:
        if ledger.best_effort_cpus:
            return None
        return HostRefusal(
            CpuBlocker.BEST_EFFORT_POOL_EMPTY,
            "LSE slots have every cpu of the best-effort pool",
        )
    if ledger.shared_cpus:
        return None
    return HostRefusal(
        CpuBlocker.SHARED_POOL_EMPTY,
        "slots with dedicated cpus have every cpu of the shared pool",
    )


def without_topology(policy: CpuPolicy) -> CpuAssignment | HostRefusal:
    """Returns the assignment on a host that does not report its cores and NUMA nodes. If the
    request requires particular cores or nodes, the result is a refusal. If the request only prefers
    particular cores or nodes, the assignment has a note.
    """
    demanded: list[str] = []
    preferred: list[str] = []
    if policy.qos.is_pinned:
        demanded.append(f"{policy.qos} slots have dedicated cpus")
    if policy.bind is BindPolicy.CONSTRAINED_BURST:
        (demanded if policy.bind_required else preferred).append(policy.bind)
    if policy.numa.aligns:
        required = policy.numa_required and policy.numa is not NumaPolicy.BEST_EFFORT
        (demanded if required else preferred).append(f"NUMA policy {policy.numa}")
    why = "the host does not report its cores and NUMA nodes"
    if demanded:
        what = f"the request requires {demanded[0]}"
        if policy.qos.is_pinned:
            what = demanded[0]
        return HostRefusal(CpuBlocker.NO_CPU_TOPOLOGY, f"{what}, but {why}")
    notes = (f"{each} was preferred: {why}" for each in preferred)
    return CpuAssignment(policy.qos, notes=(*ignored_in_pools(policy), *notes))

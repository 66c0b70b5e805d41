"""Computes the capacity of an executor from the host's topology and the configured options.

The CPUs are those that the kernel allows this process, minus isolated CPUs, minus the reserve. The
memory is the sum over all NUMA nodes, without huge pages. It is limited to the machine's total and
to the control group's limit, and then reduced by the reserve. If a share is configured, the
capacity is exactly this share.

A *reserve* is capacity that is kept for the operating system and for the executor's own processes.
A *share* is an explicit part of a host, if several executors divide the host. No reserve is
deducted from a share.
"""

from dataclasses import dataclass
from typing import Final

from finegrain.capacity import Capacity, NodeCapacity
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import InvalidArgument
from finegrain.resources import GIB, MEMORY_GRAIN_BYTES, MIB, round_down
from finegrain.topology import HostTopology
from finegrain.units import format_cpu
from task_executor.host.node_memory import NodeMemory, node_memory

RESERVE_PERCENT: Final = 5
RESERVE_BYTES_MIN: Final = 256 * MIB
RESERVE_BYTES_MAX: Final = 4 * GIB


@dataclass(frozen=True, slots=True)
class CapacityOptions:
    """The configured options that determine the capacity. None means that an option is not set.

    `reserved_*` are subtracted from the capacity that the host allows, and `share_*` replace it. In
    the configuration the shares are called `cpus` and `memory_bytes`, and errors use these names.
    """

    reserved_cpus: CpuSet | None = None
    reserved_memory_bytes: int | None = None
    share_cpus: CpuSet | None = None
    share_memory_bytes: int | None = None
    use_isolated_cpus: bool = False


def plan_capacity(topology: HostTopology, options: CapacityOptions | None = None) -> Capacity:
    """Returns the executor's capacity.

    Raises:
        InvalidArgument: options contradict each other or the host, or no capacity is left.
    """
    options = options or CapacityOptions()
    warnings: list[str] = []
    cpus = _cpus(topology, options, warnings)
    memory = node_memory(topology, warnings)
    reserved_bytes, total_bytes = _memory(topology, options, memory, warnings)
    # Leave out reserved cpus that this process is not allowed to use, because they do not reduce
    # the capacity.
    reserved_cpus = (options.reserved_cpus or EMPTY) & topology.allowed
    return Capacity(
        cpus=cpus,
        isolated_cpus=cpus & topology.isolated,
        core_count=sum(1 for core in topology.cores if not core.cpus.isdisjoint(cpus)),
        cpu_milli_total=_cpu_milli(topology, cpus, warnings),
        memory_bytes_total=total_bytes,
        nodes=_nodes(topology, cpus, memory, reserved_bytes, total_bytes),
        reserved_cpus=reserved_cpus,
        reserved_memory_bytes=reserved_bytes,
        warnings=tuple(warnings),
    )


def default_reserve_bytes(usable_bytes: int) -> int:
    """Returns the memory reserve if none is configured: 5 %, at least 256 MiB, at most 4 GiB."""
    reserve = usable_bytes * RESERVE_PERCENT // 100
    return min(max(reserve, RESERVE_BYTES_MIN), RESERVE_BYTES_MAX)


def _cpus(topology: HostTopology, options: CapacityOptions, warnings: list[str]) -> CpuSet:
    if not topology.allowed:
        raise InvalidArgument(
            "allowed cpus",
            str(topology.allowed),
            "at least one online CPU in the cpuset of this process: none was found",
        )
    if options.share_cpus is not None:
        return _share(topology, options, options.share_cpus)
    # The code below is for executors without a share.
    if options.reserved_cpus is not None:
        _check_reserve(topology, options.reserved_cpus, warnings)
    cpus = topology.allowed - (options.reserved_cpus or EMPTY)
    isolated = cpus & topology.isolated
    # The kernel does not balance load over isolated cpus. So in a shared pool with isolated cpus,
    # one isolated cpu would be overloaded.
    if isolated and not options.use_isolated_cpus:
        warnings.append(
            f"CPUs {isolated} are isolated from the kernel's load balancing and are not offered"
        )
        cpus -= isolated
    if not cpus:
        raise InvalidArgument(
            "reserved_cpus",
            str(options.reserved_cpus or EMPTY),
            f"a set that leaves at least one of the usable CPUs {topology.allowed}"
            + (f" (isolated: {isolated})" if isolated else ""),
        )
    return cpus


def _share(topology: HostTopology, options: CapacityOptions, share: CpuSet) -> CpuSet:
    def refuse(expected: str) -> InvalidArgument:
        return InvalidArgument("cpus", str(share), expected)

    if options.reserved_cpus:
        raise InvalidArgument(
            "reserved_cpus",
            str(options.reserved_cpus),
            "no reserved_cpus together with cpus: a share is used completely, so leave reserved "
            "CPUs out of cpus",
        )
    if not share:
        raise refuse(f"at least one of the usable CPUs {topology.allowed}")
    if not share <= topology.online:
        raise refuse(f"online CPUs only ({topology.online}): {share - topology.online} are not")
    if not share <= topology.allowed:
        outside = share - topology.allowed
        raise refuse(f"CPUs of this process's cpuset ({topology.allowed}): {outside} are not")
    isolated = share & topology.isolated
    if isolated and not options.use_isolated_cpus:
        raise refuse(f"no CPUs that are isolated from the kernel's load balancing: {isolated}")
    return share


def _check_reserve(topology: HostTopology, reserved: CpuSet, warnings: list[str]) -> None:
    missing = reserved - topology.online - topology.offline
    if missing:
        raise InvalidArgument(
            "reserved_cpus", str(reserved), f"CPUs of this host ({topology.online}), not {missing}"
        )
    without_effect = reserved - topology.allowed
    if without_effect:
        warnings.append(
            f"reserved CPUs {without_effect} are offline, or this process may not use them: "
            "reserving them has no effect"
        )
    # If only a part of a core is reserved, warn but do not fail: possibly the administrator wants
    # this. Name only the first such core, as an example.
    for core in topology.cores:
        if not core.cpus.isdisjoint(reserved) and not (core.cpus & topology.allowed) <= reserved:
            warnings.append(
                f"reserved_cpus {reserved} is only a part of core {core.cpus}: the other threads "
                "of the core are offered to slots, but share the core with reserved CPUs"
            )
            break
    for node in topology.numa_nodes:
        ours = node.cpus & topology.allowed
        # Do not warn on a host with a single node: if all its cpus are reserved, `_cpus` raises an
        # error.
        if ours and ours <= reserved and len(topology.numa_nodes) > 1:
            warnings.append(f"reserved_cpus {reserved} contains all CPUs of NUMA node {node.id}")


def _cpu_milli(topology: HostTopology, cpus: CpuSet, warnings: list[str]) -> int:
    # Each cpu counts as a whole cpu, even if it is only one hardware thread of a core.
    cpu_milli = 1000 * len(cpus)
    quota = topology.limits.cpu_quota_milli
    if quota is None or quota >= cpu_milli:
        return cpu_milli
    warnings.append(
        f"a CPU time quota of {format_cpu(quota)} cores (/{topology.limits.cpu_quota_file}) is "
        f"less than the time of CPUs {cpus}"
    )
    return quota


def _memory(
    topology: HostTopology, options: CapacityOptions, memory: NodeMemory, warnings: list[str]
) -> tuple[int, int]:
    """Returns reserved and total bytes."""
    usable = memory.total_bytes
    limit = topology.limits.memory_limit_bytes
    if limit is not None and (usable is None or limit < usable):
        warnings.append(
            f"a memory limit of {limit} bytes (/{topology.limits.memory_limit_file}) is below the "
            "host's memory"
        )
        usable = limit
    # Deduct no reserve from a share, because the administrator has already left the reserve out of
    # the share.
    if options.share_memory_bytes is not None:
        return 0, _share_memory(options, options.share_memory_bytes, usable)
    if not usable:
        warnings.append(
            "the size of the host's memory is unknown, so no memory is offered; set memory_bytes"
            if usable is None
            else "no memory is left for slots, so none is offered"
        )
        return 0, 0
    reserve = options.reserved_memory_bytes
    if reserve is None:
        reserve = default_reserve_bytes(usable)
        # On a very small host, the minimum reserve would leave little or no memory for slots.
        if reserve * 2 > usable:
            reserve = usable // 2
            warnings.append(
                f"the host has only {usable} bytes of memory, so half of it is reserved"
            )
    if not 0 <= reserve < usable:
        raise InvalidArgument(
            "reserved_memory_bytes", reserve, f"0 or more, and less than the {usable} usable bytes"
        )
    return reserve, round_down(usable - reserve, MEMORY_GRAIN_BYTES)


def _share_memory(options: CapacityOptions, share: int, usable: int | None) -> int:
    if options.reserved_memory_bytes:
        raise InvalidArgument(
            "reserved_memory_bytes",
            options.reserved_memory_bytes,
            "no reserved_memory_bytes together with memory_bytes: a share is used completely",
        )
    if share < MEMORY_GRAIN_BYTES or (usable is not None and share > usable):
        at_most = "" if usable is None else f" and at most the {usable} usable bytes"
        raise InvalidArgument("memory_bytes", share, f"at least 64 KiB{at_most}")
    return round_down(share, MEMORY_GRAIN_BYTES)


def _nodes(
    topology: HostTopology, cpus: CpuSet, memory: NodeMemory, reserved_bytes: int, total_bytes: int
) -> tuple[NodeCapacity, ...]:
    """Returns the CPUs and memory of each node.

    The reserve is divided among the nodes whose memory slots use by default, in proportion to the
    memory of each node.
    """
    # This sum is a divisor below, so it must not be 0.
    together = sum(memory.default_bytes.values()) or 1
    nodes = []
    for node in topology.numa_nodes:
        is_default = node.id in memory.default_bytes
        if is_default:
            own = memory.default_bytes[node.id]
            # Round up the node's part of the reserve. So the sum of all parts is at least the whole
            # reserve. A node never offers more than the executor's total, which a limit can reduce.
            offered = min(own - -(-reserved_bytes * own // together), total_bytes)
        else:
            offered = memory.other_bytes.get(node.id, 0)
        nodes.append(
            NodeCapacity(
                id=node.id,
                cpus=node.cpus & cpus,
                memory_bytes=round_down(max(offered, 0), MEMORY_GRAIN_BYTES),
                default_memory=is_default,
                hugepages=node.hugepages if node.memory_allowed else (),
            )
        )
    return tuple(nodes)

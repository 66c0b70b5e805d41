"""Computes the capacity that this executor registers, once at the start.

The input is the executor's options and the detected host. The result is the totals, the reserves,
the cpus and NUMA nodes, and the default slot profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from finegrain.capacity import Capacity
from finegrain.cpuset import CpuSet
from finegrain.devices.device import FPGA, GPU, NO_DEVICES, RDMA, HostDevices
from finegrain.devices.names import MIG_PREFIX
from finegrain.errors import InvalidArgument
from finegrain.hugepages import page_bytes
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    PORTS,
    Amounts,
    ResourceProfile,
    round_down,
    total_of_devices,
)
from finegrain.topology import HostTopology
from task_executor.engine.cpu_ledger import CpuLedger
from task_executor.engine.default_profile import default_slot, memory_parts, parse_fraction
from task_executor.engine.slot_table import HostShare
from task_executor.host.capacity import CapacityOptions, plan_capacity
from task_executor.host.configured_devices import NOTHING_CONFIGURED, ConfiguredDevices
from task_executor.host.devices import devices_of
from task_executor.host.gpu_partitions import read_partitions
from task_executor.host.kubelet.state import MEMORY, KubeletState
from task_executor.host.network_ports import offered_ports, read_range
from task_executor.host.numa_capacity import (
    NumaCapacity,
    hugepages_of,
    numa_capacity,
    with_counts,
)
from task_executor.options import TaskExecutorOptions
from task_executor.service.host_cpus import host_cpus

DEVICE_OPTIONS = ("auto", "all", "none")

ON_NODE = "@"
"""Separates the name of a countable resource from its NUMA node, as in `licences@0`."""


@dataclass(frozen=True, slots=True)
class HostPlan:
    """The capacity that the executor registers."""

    topology: HostTopology
    share: HostShare
    reserved: Amounts
    default_profile: ResourceProfile
    warnings: tuple[str, ...]
    capacity: Capacity | None = None  # the host's capacity, from which the plan was computed
    nodes: tuple[NumaCapacity, ...] = ()
    time_shared: bool = False  # True if other programs can use the cpus, so no cpu can be dedicated
    devices: HostDevices = NO_DEVICES  # all devices; those without capacity are not offered
    ports: Sequence[int] = ()  # network ports that slots can have

    @property
    def offers_hugepages(self) -> bool:
        """True if slots on this host can request huge pages."""
        return any(page_bytes(name.removeprefix(EXTENDED_PREFIX)) for name in self.share.total)


def plan_host(
    options: TaskExecutorOptions,
    topology: HostTopology,
    configured: ConfiguredDevices = NOTHING_CONFIGURED,
) -> HostPlan:
    """Returns the plan of a host.

    Args:
        options: the executor's options.
        topology: the detected topology of the host.
        configured: the devices of configured types, as `discover` found them.

    Raises:
        InvalidArgument: options contradict each other or the host. The error names the option.
    """
    # Stage 1: the capacity of the host, without the reserve, or limited to this executor's share.
    capacity = plan_capacity(
        topology,
        CapacityOptions(
            reserved_cpus=_cpu_option("reserved_cpus", options.reserved_cpus),
            reserved_memory_bytes=options.reserved_memory_bytes,
            share_cpus=_cpu_option("cpus", options.cpus),
            share_memory_bytes=options.memory_bytes,
        ),
    )
    nodes = with_counts(numa_capacity(capacity), _counts_by_node(options, capacity))
    # Stage 2: the part of this capacity that slots can book, and the default slot profile.
    total = _total(options, topology, capacity, nodes)
    ports = offered_ports(read_range(options.task_ports))
    if ports:
        total[EXTENDED_PREFIX + PORTS] = len(ports)
    devices = _devices(options, topology, configured)
    total |= total_of_devices(devices.devices)
    profile, deprecation = _default_profile(options, capacity, total)
    reserved = {
        CPU_MILLI: 1000 * len(capacity.reserved_cpus),
        MEMORY_BYTES: capacity.reserved_memory_bytes,
    }
    # Stage 3: which cpus can be dedicated to slots. If the executor has less CPU time than cpus, no
    # cpu can be dedicated.
    cpus = host_cpus(options, topology, capacity)
    time_shared = total[CPU_MILLI] < capacity.cpu_milli_total
    warnings = [deprecation] if deprecation else []
    if time_shared:
        warnings.append(
            f"{total[CPU_MILLI]} cpu_milli is a share of the time of cpus {capacity.cpus}, which "
            "other processes may use as well, so no slot gets dedicated cpus or NUMA nodes here; "
            "set cpus of the executor instead"
        )
    return HostPlan(
        topology=topology,
        share=HostShare(
            total=total,
            shared_cpus=CpuLedger(cpus).pools.shared,
            slots_max=_not_negative("slots_max", options.slots_max),
            host_cpus=cpus,
            devices=devices,
        ),
        reserved={name: amount for name, amount in reserved.items() if amount},
        default_profile=profile,
        warnings=(*topology.warnings, *capacity.warnings, *configured.warnings, *warnings),
        capacity=capacity,
        nodes=nodes,
        time_shared=time_shared,
        devices=devices,
        ports=ports,
    )


def _devices(
    options: TaskExecutorOptions, topology: HostTopology, configured: ConfiguredDevices
) -> HostDevices:
    """Returns the host's devices. Devices that are not offered have no capacity."""
    if options.devices not in DEVICE_OPTIONS:
        raise InvalidArgument("devices", options.devices, "one of " + ", ".join(DEVICE_OPTIONS))
    known = (GPU, RDMA, FPGA, *(each.name for each in options.device_types))
    for type_ in options.open_devices:
        if type_ not in known and not type_.startswith(MIG_PREFIX):
            expected = f"{', '.join(known)}, or {MIG_PREFIX}PROFILE"
            raise InvalidArgument("open_devices", type_, expected)
    found = devices_of(topology, configured=configured.devices, fake=bool(options.fake_gpus))
    found = replace(
        found,
        partitions=read_partitions(options.gpu_partitions, found),
        partitions_only=options.gpu_partitions_only,
    )
    # If several executors share a host, offer no devices, because each executor would offer the
    # same devices.
    is_share = bool(options.cpus) and not options.fake_gpus
    if options.devices == "all" or (options.devices == "auto" and not is_share):
        return found
    return replace(found, devices=tuple(replace(each, capacity=()) for each in found.devices))


def beside_kubelet(
    plan: HostPlan, options: TaskExecutorOptions, kubelet: KubeletState | None
) -> HostPlan:
    """Deducts the memory and huge pages that a kubelet of the same host has given to pods.

    Amounts that options set explicitly stay unchanged. The function does not deduct cpus. The
    kubelet's cpus can change while slots run, so the executor reports them as conditions.

    Args:
        plan: the plan of the whole host.
        options: the executor's options.
        kubelet: the state of the kubelet; None: the host has no kubelet.
    """
    if kubelet is None or plan.capacity is None:
        return plan
    on_nodes = _counts_by_node(options, plan.capacity)
    nodes = with_counts(numa_capacity(plan.capacity, kubelet), on_nodes)
    # The huge pages are computed again below, from the pages that the kubelet has not given to
    # pods. Configured counts are unchanged.
    total = {
        name: amount
        for name, amount in plan.share.total.items()
        if not page_bytes(name.removeprefix(EXTENDED_PREFIX)) or _is_configured(options, name)
    }
    total |= _hugepages(options, nodes)
    if options.memory_bytes is None and MEMORY_BYTES in total:
        # The total does not include nodes without `default_memory`. So the memory of these nodes is
        # not deducted.
        given = sum(kubelet.taken_bytes(node.id, MEMORY) for node in nodes if node.default_memory)
        left = round_down(max(total[MEMORY_BYTES] - given, 0), MEMORY_GRAIN_BYTES)
        total[MEMORY_BYTES] = left
    total = {name: amount for name, amount in total.items() if amount}
    return replace(plan, share=replace(plan.share, total=total), nodes=nodes)


def _is_configured(options: TaskExecutorOptions, dimension: str) -> bool:
    return dimension.removeprefix(EXTENDED_PREFIX) in _counts(options)


def _counts(options: TaskExecutorOptions) -> dict[str, int]:
    """Returns the configured amounts by name. Amounts of several NUMA nodes are added up."""
    found: dict[str, int] = {}
    for key, amount in options.extended:
        name = key.partition(ON_NODE)[0]
        if name == PORTS:
            raise InvalidArgument(
                f"extended.{key}", amount, "no ports here: task_ports sets their range"
            )
        found[name] = found.get(name, 0) + _not_negative(f"extended.{key}", amount)
    return found


def _counts_by_node(options: TaskExecutorOptions, capacity: Capacity) -> dict[int, dict[str, int]]:
    """Returns the configured amounts that belong to a NUMA node, by node id and by name."""
    ids = {str(node.id): node.id for node in capacity.nodes}
    anywhere = {key for key, _ in options.extended if ON_NODE not in key}
    found: dict[int, dict[str, int]] = {}
    for key, amount in options.extended:
        name, on_node, node = key.partition(ON_NODE)
        if not on_node:
            continue
        if node not in ids:
            here = ", ".join(ids) or "none"
            raise InvalidArgument(
                "extended", key, f"a NUMA node of this host after {ON_NODE}: {here}"
            )
        if name in anywhere:
            raise InvalidArgument(
                "extended", key, f"{name} with a NUMA node each time, or without one"
            )
        if amount:
            found.setdefault(ids[node], {})[name] = amount
    return found


def _hugepages(options: TaskExecutorOptions, nodes: Iterable[NumaCapacity]) -> dict[str, int]:
    """Returns the huge pages of all nodes, without the page sizes that the configuration sets."""
    found = {EXTENDED_PREFIX + name: count for name, count in hugepages_of(nodes).items()}
    return {name: n for name, n in found.items() if not _is_configured(options, name)}


def _cpu_option(field: str, text: str) -> CpuSet | None:
    return CpuSet.parse(text, field) if text else None


def _not_negative(field: str, value: int) -> int:
    if value < 0:
        raise InvalidArgument(field, value, "0 (no limit) or more")
    return value


def _total(
    options: TaskExecutorOptions,
    topology: HostTopology,
    capacity: Capacity,
    nodes: Iterable[NumaCapacity],
) -> dict[str, int]:
    cpu_milli = _cpu_milli(options, capacity)
    percent = _not_negative("best_effort_percent", options.best_effort_percent)
    # Round down, so that best-effort slots never book more than this percentage.
    best_effort = _best_effort_milli(options, topology, capacity) * percent // 100
    total = {CPU_MILLI: cpu_milli, BEST_EFFORT_CPU_MILLI: best_effort}
    total |= _hugepages(options, nodes)
    if options.memory_pools:
        total |= _pools(options, capacity)
    else:
        total[MEMORY_BYTES] = capacity.memory_bytes_total
    total |= {EXTENDED_PREFIX + name: amount for name, amount in _counts(options).items()}
    return {name: amount for name, amount in total.items() if amount}


def _cpu_milli(options: TaskExecutorOptions, capacity: Capacity) -> int:
    wanted = options.cpu_milli
    if wanted is None:
        return capacity.cpu_milli_total
    if not 0 < wanted <= capacity.cpu_milli_total:
        raise InvalidArgument(
            "cpu_milli", wanted, f"1 to {capacity.cpu_milli_total}, the capacity of the cpus here"
        )
    return wanted


def _best_effort_milli(
    options: TaskExecutorOptions, topology: HostTopology, capacity: Capacity
) -> int:
    """Returns the CPU time that the best-effort pool can give, in thousandths of a core.

    Reserved cpus are part of this pool unless `reserved_cpus_strict` is set. So the total does not
    depend on who reserves cpus: the configuration, or an administrator at runtime.
    """
    if options.cpu_milli is not None:  # the share limits the CPU time on all cpus together
        return options.cpu_milli
    pool = capacity.cpus
    if not options.reserved_cpus_strict:
        pool |= capacity.reserved_cpus
    quota, milli = topology.limits.cpu_quota_milli, 1000 * len(pool)
    # A CPU quota of the executor's own control group limits the best-effort slots as well.
    return milli if quota is None else min(milli, quota)


def _pools(options: TaskExecutorOptions, capacity: Capacity) -> dict[str, int]:
    """Returns the bytes of the separate pool of each memory part.

    Raises:
        InvalidArgument: all pools together exceed the executor's memory, or a name or size is
            invalid.
    """
    pools: dict[str, int] = {}
    for name, amount in options.memory_pools:
        if name not in MEMORY_PARTS:
            raise InvalidArgument("memory_pools", name, "one of " + ", ".join(MEMORY_PARTS))
        pools[name] = round_down(_not_negative(f"memory_pools.{name}", amount), MEMORY_GRAIN_BYTES)
    together = sum(pools.values())
    if together > capacity.memory_bytes_total:
        raise InvalidArgument(
            "memory_pools",
            f"{together} bytes in total",
            f"at most the {capacity.memory_bytes_total} bytes that this executor has",
        )
    return pools


def _default_profile(
    options: TaskExecutorOptions, capacity: Capacity, total: Amounts
) -> tuple[ResourceProfile, str | None]:
    fraction = options.default_slot_fraction
    memory = sum(total.get(name, 0) for name in (MEMORY_BYTES, *MEMORY_PARTS))
    slot = default_slot(
        total[CPU_MILLI],
        memory,
        capacity.core_count,
        default_slot_fraction=None if fraction is None else parse_fraction(fraction),
        number_of_slots=options.number_of_slots,
        default_slot_cpu_milli=options.default_slot_cpu_milli,
        default_slot_memory_bytes=options.default_slot_memory_bytes,
    )
    percent = options.default_slot_managed_percent
    if not 0 <= percent <= 100:
        raise InvalidArgument("default_slot_managed_percent", percent, "0 to 100")
    percents = {"managed": percent, **dict(options.default_slot_memory_percent)}
    parts = memory_parts(slot.memory_bytes, percents)
    if MEMORY_BYTES not in total:
        # The default slot gets the same fraction of each separate pool.
        parts = {
            name: round_down(total[name] * slot.memory_bytes // memory, MEMORY_GRAIN_BYTES)
            for name in MEMORY_PARTS
            if name in total
        }
    profile = ResourceProfile.from_dict({CPU_MILLI: slot.cpu_milli, **parts})
    return profile, slot.deprecation_warning

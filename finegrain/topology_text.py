"""Draws a host as text: packages, NUMA nodes, cores, caches, GPUs, limits and warnings.

The text is only for people. Programs use `to_dict`.
"""

from collections.abc import Iterator
from typing import Final

from finegrain.capacity import Capacity
from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.topology import Core, Gpu, HostTopology, HugePages, NumaNode, PciDevice, PciKind
from finegrain.units import counted

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_CORES_SHOWN_MAX: Final = 16
_WIDTH: Final = 100


def render_topology(topology: HostTopology, capacity: Capacity | None = None) -> str:
    """Returns the host as lines of text, without a newline at the end.

    If a capacity is given, the text marks the cpus that slots cannot use. The marks are: reserved,
    isolated, and "not ours" (outside the cpuset or the share).
    """
    lines = [_headline(topology)]
    if capacity is not None:
        lines += _offered(capacity)
    for index, package in enumerate(topology.packages):
        label = package.physical_package_id
        lines.append(f"package {index}" + (f" (id {label})" if label not in {None, index} else ""))
        for node in _nodes_of(topology, package.cpus):
            lines += [f"  {line}" for line in _node(topology, node, capacity, package.cpus)]
        # Draw cores with an unknown node here, because no node contains them.
        homeless = [
            core for core in topology.cores if core.package == index and core.numa_node is None
        ]
        lines += [f"  {line}" for line in _caches(topology, homeless, capacity)]
    for node in topology.numa_nodes:
        # Nodes without cpus belong to no package. So they come after all packages.
        if not node.cpus:
            lines += _node(topology, node, capacity, EMPTY)
    lines += _kinds(topology)
    lines += device_lines(topology)
    lines += _limits(topology)
    lines += [f"warning: {warning}" for warning in topology.warnings]
    if capacity is not None:
        lines += [f"warning: {warning}" for warning in capacity.warnings]
    return "\n".join(lines)


def bytes_text(amount: int) -> str:
    """Returns an amount of memory for people, with at most one decimal: 1.5 GiB."""
    size, unit = float(amount), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def _headline(topology: HostTopology) -> str:
    parts = [f"{len(topology.online)} CPUs", counted(len(topology.cores), "core")]
    parts.append(counted(len(topology.packages), "package"))
    parts.append(counted(len(topology.numa_nodes), "NUMA node"))
    if topology.memory_total_bytes is not None:
        parts.append(bytes_text(topology.memory_total_bytes))
    if topology.gpus:
        parts.append(counted(len(topology.gpus), "GPU"))
    if topology.offline:
        parts.append(f"offline CPUs {topology.offline}")
    return ", ".join(parts)


def _offered(capacity: Capacity) -> list[str]:
    cpu = f"{capacity.cpu_milli_total} milli on CPUs {capacity.cpus or 'none'}"
    lines = [f"offered to slots: {cpu}, {bytes_text(capacity.memory_bytes_total)}"]
    if capacity.reserved_cpus or capacity.reserved_memory_bytes:
        cpus = f"CPUs {capacity.reserved_cpus}, " if capacity.reserved_cpus else ""
        lines.append(f"reserved: {cpus}{bytes_text(capacity.reserved_memory_bytes)}")
    if capacity.isolated_cpus:
        lines.append(f"only for exclusive slots: isolated CPUs {capacity.isolated_cpus}")
    return lines


def _nodes_of(topology: HostTopology, cpus: CpuSet) -> Iterator[NumaNode]:
    return (node for node in topology.numa_nodes if not node.cpus.isdisjoint(cpus))


def _node(
    topology: HostTopology, node: NumaNode, capacity: Capacity | None, within: CpuSet
) -> list[str]:
    """Returns the lines of one node, with only the cpus that are in `within`."""
    memory = "memory unknown"
    if node.memory_bytes is not None:
        memory = bytes_text(node.memory_bytes) if node.memory_bytes else "no memory"
    if topology.node_memory_grows:
        memory += " so far"
    if node.memory_bytes and not node.memory_allowed:
        memory += " (memory not allowed)"
    lines = [f"NUMA node {node.id}: {memory}{_hugepages(node.hugepages)}"]
    if not node.cpus:
        near = [str(other.id) for other in _nodes_of(topology, node.nearest_cpus)]
        words = f", nearest to node {', '.join(near)}" if near else ""
        return [f"{lines[0]}, no CPUs{words}"]
    cores = [core for core in topology.cores if core.numa_node == node.id and core.cpus <= within]
    return lines + [f"  {line}" for line in _caches(topology, cores, capacity)]


def _caches(topology: HostTopology, cores: list[Core], capacity: Capacity | None) -> list[str]:
    """Returns the cores, grouped by their level 3 caches. Cores without such a cache come last."""
    lines = []
    caches = sorted({core.l3_group for core in cores if core.l3_group is not None})
    loose = [core for core in cores if core.l3_group is None]
    for cache in caches:
        size = topology.l3_groups[cache].size_bytes
        lines.append("L3" + ("" if size is None else f" {bytes_text(size)}"))
        inside = [core for core in cores if core.l3_group == cache]
        lines += [f"  {line}" for line in _cores(topology, inside, capacity)]
    return lines + _cores(topology, loose, capacity)


def _hugepages(all_pages: tuple[HugePages, ...]) -> str:
    return "".join(
        f", {pages.count} huge pages of {bytes_text(pages.page_bytes)}" for pages in all_pages
    )


def _cores(topology: HostTopology, cores: list[Core], capacity: Capacity | None) -> list[str]:
    """Returns the cores with their marks. If there are many cores, cores with equal marks share a
    line.
    """
    if len(cores) <= _CORES_SHOWN_MAX:
        words = [
            f"core {core.cpus}" + _bracket(_core_marks(topology, core, capacity)) for core in cores
        ]
        return _wrapped(words)
    # Hosts can have hundreds of cores. One line per mark keeps the drawing short.
    by_mark: dict[str, list[CpuSet]] = {}
    for core in cores:
        mark = _bracket(_core_marks(topology, core, capacity))
        by_mark.setdefault(mark, []).append(core.cpus)
    return [
        f"{counted(len(cpus), 'core')}: CPUs {union(cpus)}{mark}" for mark, cpus in by_mark.items()
    ]


def _core_marks(topology: HostTopology, core: Core, capacity: Capacity | None) -> list[str]:
    marks = []
    if core.kind is not None:
        marks.append(f"kind {core.kind}")
    reserved = EMPTY if capacity is None else capacity.reserved_cpus
    isolated = core.cpus & topology.isolated
    ours = topology.allowed if capacity is None else capacity.cpus | reserved | isolated
    for name, cpus in (
        ("reserved", core.cpus & reserved),
        ("isolated", isolated),
        ("not allowed", core.cpus - ours),
    ):
        if cpus:
            marks.append(name if cpus == core.cpus else f"{cpus} {name}")
    return marks


def _bracket(marks: list[str]) -> str:
    return f" [{', '.join(marks)}]" if marks else ""


def _wrapped(words: list[str]) -> list[str]:
    """Joins words by three blanks, in lines of limited width."""
    lines: list[str] = []
    for word in words:
        if lines and len(lines[-1]) + len(word) + 3 <= _WIDTH:
            lines[-1] += f"   {word}"
        else:
            lines.append(word)
    return lines


def _kinds(topology: HostTopology) -> list[str]:
    return [
        f"kind {index} ({kind.name}): CPUs {kind.cpus}"
        for index, kind in enumerate(topology.cpu_kinds)
    ]


def device_lines(topology: HostTopology) -> list[str]:
    """Returns lines for GPUs and their links, for other PCI functions, and for the reason why GPUs
    are unknown.
    """
    lines = []
    for gpu in topology.gpus:
        lines += _gpu(gpu)
    for link in topology.gpu_links:
        if link.nvlink_count:
            ends = {gpu.uuid: gpu.index for gpu in topology.gpus}
            through = " through a switch" if link.via_switch else ""
            lines.append(
                f"GPU {ends.get(link.first_uuid)} - GPU {ends.get(link.second_uuid)}: "
                f"{counted(link.nvlink_count, 'NVLink')}{through}"
            )
    # Skip the GPUs that the driver reports, because the lines above show these GPUs with more
    # detail.
    known = {gpu.pci_bus_id for gpu in topology.gpus}
    lines += [
        _pci(device)
        for device in topology.pci_devices
        if device.bus_id not in known and not device.is_virtual_function
    ]
    for fpga in topology.fpgas:
        place = "unknown" if fpga.numa_node is None else str(fpga.numa_node)
        state = f" [not offered: {fpga.problem}]" if fpga.problem else ""
        lines.append(f"FPGA {fpga.minor} {fpga.model or fpga.name}, NUMA node {place}{state}")
    if topology.gpu_absence_reason is not None:
        lines.append(f"no GPUs offered: {topology.gpu_absence_reason}")
    return lines


def _gpu(gpu: Gpu) -> list[str]:
    memory = "memory unknown" if gpu.memory_bytes is None else bytes_text(gpu.memory_bytes)
    place = "NUMA node unknown" if gpu.numa_node is None else f"NUMA node {gpu.numa_node}"
    state = (
        "" if gpu.schedulable_as != "nothing" else f" [not offered: {gpu.problem or gpu.health}]"
    )
    lines = [f"GPU {gpu.index} {gpu.name}, {memory}, {place}, {gpu.uuid}{state}"]
    if gpu.mig_enabled:
        lines[0] += " [MIG: offered by instance only]"
    if gpu.mig_mode_pending:
        lines[0] += " [MIG mode changes at the next reset]"
    lines += [f"  MIG {each.profile or '?'} {each.uuid}" for each in gpu.mig_instances]
    return lines


def _pci(device: PciDevice) -> str:
    place = "NUMA node unknown" if device.numa_node is None else f"NUMA node {device.numa_node}"
    names = "".join(f" {name}" for name in (*device.net, *device.infiniband, *device.drm))
    offered = ", not offered" if device.kind is PciKind.GPU else ""
    return f"PCI {device.bus_id} {device.kind}{names}, {place}{offered}"


def _limits(topology: HostTopology) -> list[str]:
    limits = topology.limits
    lines = []
    if topology.allowed != topology.online:
        lines.append(f"limit: CPUs {topology.allowed} (cpuset {limits.cpuset_path or 'unknown'})")
    if limits.cpu_quota_milli is not None:
        lines.append(f"limit: {limits.cpu_quota_milli} milli (/{limits.cpu_quota_file})")
    if limits.memory_limit_bytes is not None:
        lines.append(
            f"limit: {bytes_text(limits.memory_limit_bytes)} (/{limits.memory_limit_file})"
        )
    return lines

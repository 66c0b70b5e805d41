"""Combines all parts of the detection: ``detect`` reads a machine, or a directory with recorded
files.

``detect`` reads the online CPUs first, and removes offline CPUs from all other data. Allowed CPUs
are the CPUs that are online, in the effective cpuset and in the affinity of this process. The
content of a file never causes an error. A value that cannot be read is unknown, and a contradiction
adds a warning.
"""

from collections.abc import Iterable
from pathlib import Path

from finegrain.cpuset import CpuSet, NodeSet
from finegrain.topology import Core, CpuKind, HostTopology, Limits, NumaNode
from task_executor.host.detection.control_groups import read_affinity, read_limits
from task_executor.host.detection.cores import Layout, read_layout
from task_executor.host.detection.cpus import CpuFacts, read_cpus
from task_executor.host.detection.fpgas import read_fpgas
from task_executor.host.detection.gpus import read_gpus
from task_executor.host.detection.kinds import read_kinds
from task_executor.host.detection.memory import read_hugepages, read_meminfo
from task_executor.host.detection.numa import grown, read_nodes
from task_executor.host.detection.pci import read_pci
from task_executor.host.detection.reader import TreeReader
from task_executor.host.nvml import NvmlSource


def detect(root: Path = Path("/"), nvml: NvmlSource | None = None) -> HostTopology:
    """Returns the topology of the machine whose files are below ``root``.

    Online CPUs, cpusets and huge pages can change at run time. `allowed_cpus` reads the CPUs again.

    Args:
        root: the root of the file system.
        nvml: the source of GPUs. Without it, GPUs are known only as PCI devices.
    """
    reader = TreeReader(root)
    # Read the online cpus first, because offline cpus are removed from all data below.
    cpus = read_cpus(reader)
    limits = read_limits(reader)
    allowed, allowed_nodes = _allowed(reader, cpus, limits)
    meminfo = read_meminfo(reader, "proc/meminfo")
    page_bytes = meminfo.get("Hugepagesize")
    nodes = read_nodes(reader, cpus.online, allowed_nodes, page_bytes)
    # Some nodes have growing memory. Correct their sizes before any other code uses the sizes.
    nodes, node_memory_grows = grown(reader, nodes, meminfo)
    hugepages = read_hugepages(reader, "sys/kernel/mm/hugepages", meminfo, page_bytes)
    memory_total_bytes = meminfo.get("MemTotal")
    # Record whether the kernel reports nodes, before the fallback below adds a node.
    numa_known = bool(nodes)
    if not nodes:
        reader.warn("the kernel does not report NUMA nodes, so the host counts as one node")
        nodes = (NumaNode(0, cpus.online, memory_total_bytes, hugepages),)
    layout = read_layout(reader, cpus.online)
    kinds = read_kinds(reader, cpus.online)
    # Read the devices after the nodes, because devices refer to nodes.
    devices = read_pci(reader, cpus.online, nodes)
    gpus = read_gpus(reader, nvml, devices or (), cpus.online, nodes)
    fpgas = read_fpgas(reader, nodes)
    return HostTopology(
        online=cpus.online,
        online_source=cpus.online_source,
        offline=cpus.offline,
        possible=cpus.possible,
        present=cpus.present,
        allowed=allowed,
        isolated=cpus.isolated,
        nohz_full=cpus.nohz_full,
        cores=_cores(layout, kinds, nodes),
        cores_known=layout.cores_known,
        packages=layout.packages,
        packages_known=layout.packages_known,
        dies=layout.dies,
        clusters=layout.clusters,
        books=layout.books,
        drawers=layout.drawers,
        l3_groups=layout.l3_groups,
        cpu_kinds=kinds,
        numa_nodes=nodes,
        numa_known=numa_known,
        memory_total_bytes=memory_total_bytes,
        node_memory_grows=node_memory_grows,
        hugepages=hugepages,
        limits=limits,
        pci_devices=devices or (),
        pci_known=devices is not None,
        gpus=gpus.gpus,
        gpu_links=gpus.links,
        gpu_absence_reason=gpus.absence_reason,
        fpgas=fpgas,
        warnings=reader.warnings,
    )


def allowed_cpus(root: Path = Path("/")) -> CpuSet:
    """Returns the CPUs that are online and allowed now.

    Callers call this function again before they dedicate CPUs to a slot.
    """
    reader = TreeReader(root)
    return _allowed(reader, read_cpus(reader), read_limits(reader))[0]


def _allowed(reader: TreeReader, cpus: CpuFacts, limits: Limits) -> tuple[CpuSet, NodeSet | None]:
    """Returns the online CPUs and the memory nodes that this process is allowed to use.

    The nodes are None if no limit is known.
    """
    affinity, affinity_nodes = read_affinity(reader)
    allowed = cpus.online
    if limits.cpuset_cpus is not None:
        allowed = allowed & limits.cpuset_cpus
    # If a service manager has restricted the affinity to a part of the cpuset, use only this part.
    if affinity and not allowed <= affinity:
        outside = allowed - affinity
        reader.warn(f"CPUs {outside} are in the cpuset of this process, but outside its affinity")
        allowed = allowed & affinity
    # The nodes of the cpuset have priority. Without a cpuset, use the list of the process.
    nodes = affinity_nodes if limits.cpuset_nodes is None else limits.cpuset_nodes
    return allowed, nodes or None


def _cores(
    layout: Layout, kinds: tuple[CpuKind, ...], nodes: tuple[NumaNode, ...]
) -> tuple[Core, ...]:
    packages = _index(package.cpus for package in layout.packages)
    caches = _index(group.cpus for group in layout.l3_groups)
    kind_of = _index(kind.cpus for kind in kinds)
    node_of = {cpu: node.id for node in nodes for cpu in node.cpus}
    return tuple(
        Core(
            cpus=core.cpus,
            core_id=core.core_id,
            # All threads of a core have the same package, node and cache, so look up the first
            # thread.
            package=packages[core.cpus.min()],
            numa_node=node_of.get(core.cpus.min()),
            l3_group=caches.get(core.cpus.min()),
            kind=kind_of.get(core.cpus.min()),
        )
        for core in layout.cores
    )


def _index(sets: Iterable[CpuSet]) -> dict[int, int]:
    """Returns, for each CPU, the position of the set that contains it."""
    return {cpu: position for position, cpus in enumerate(sets) for cpu in cpus}

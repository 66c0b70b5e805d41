"""Defines the model of a host: the hardware and the limits that detection found.

All classes are immutable. Ids that kernels print (core_id, physical_package_id, node ids) are only
labels, which can repeat, have gaps or be -1. So code must rely on the sets of cpus. A part refers
to another part by its position in a tuple: ``Core.package`` is an index into
``HostTopology.packages``. NUMA nodes are an exception: parts refer to them by id, because their ids
are unique and cpusets use them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from finegrain.cpuset import EMPTY, CpuSet, NodeSet
from finegrain.mapping.json_form import from_json, to_json


class NodeKind(StrEnum):
    """Whether a NUMA node has online cpus and memory."""

    CPU_AND_MEMORY = "cpu+memory"
    CPU_ONLY = "cpu-only"  # its cpus use the memory of another node
    # The node has HBM, CXL, persistent or GPU memory, or all its cpus are offline.
    MEMORY_ONLY = "memory-only"
    EMPTY = "empty"
    CPU_MEMORY_UNKNOWN = "cpu, memory unknown"  # the kernel prints no meminfo for the node
    MEMORY_UNKNOWN = "memory unknown"


class GpuHealth(StrEnum):
    """States of a GPU, which say whether slots can use the GPU."""

    OK = "ok"
    LOST = "lost"  # no longer on the bus: every query fails until the host is reset
    UNKNOWN = "unknown"  # the GPU does not report its memory size, so no slot can use it
    FAULTY = "faulty"  # the driver asks for a repair; `problem` names the repair


class PciKind(StrEnum):
    """The kind of a PCI function, which follows from its class and vendor."""

    GPU = "gpu"
    DISPLAY = "display"
    ACCELERATOR = "accelerator"
    COPROCESSOR = "coprocessor"
    ETHERNET = "ethernet"
    INFINIBAND = "infiniband"
    NETWORK = "network"
    NVME = "nvme"


@dataclass(frozen=True, slots=True)
class Core:
    """One physical core with its online hardware threads. The number of threads can differ between
    cores.
    """

    cpus: CpuSet
    core_id: int | None = None  # label; it can repeat within a package (dies, clusters, s390)
    package: int = 0  # index into HostTopology.packages
    numa_node: int | None = None  # id of the node; None: no node lists these cpus
    l3_group: int | None = None  # index into HostTopology.l3_groups
    kind: int | None = None  # index into HostTopology.cpu_kinds; None if all cores are alike


@dataclass(frozen=True, slots=True)
class Package:
    """One socket, computed from the sibling maps of its cpus."""

    cpus: CpuSet
    physical_package_id: int | None  # label; can be -1, shared or huge


@dataclass(frozen=True, slots=True)
class Die:
    cpus: CpuSet
    die_id: int  # label; it can repeat in another package, and on some hosts within its package


@dataclass(frozen=True, slots=True)
class L3Group:
    """Cpus that share one level 3 cache; independent of packages and NUMA nodes."""

    cpus: CpuSet
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class CpuKind:
    """One kind of core on a hybrid host. Cores of different kinds differ in speed."""

    name: str  # "core" or "atom" if the kernel names the kinds; otherwise the source and the value
    cpus: CpuSet
    value: int | None  # higher is faster; comparable within one host only
    source: str  # the file that distinguishes the kinds, with N for the cpu number


@dataclass(frozen=True, slots=True)
class HugePages:
    """Huge pages of one size, which are reserved and not part of normal memory."""

    page_bytes: int
    count: int

    @property
    def total_bytes(self) -> int:
        return self.page_bytes * self.count


@dataclass(frozen=True, slots=True)
class NumaNode:
    id: int
    cpus: CpuSet  # the online cpus of the node
    memory_bytes: int | None  # MemTotal of the node, with huge pages; None: unknown
    hugepages: tuple[HugePages, ...] = ()
    # Distance to each online node, sorted by id; (): the distances are not known.
    distances: tuple[int, ...] = ()
    memory_allowed: bool = True  # True if the cpuset allows the memory of the node
    nearest_cpus: CpuSet = EMPTY  # for a node without cpus: the cpus nearest to it

    @property
    def kind(self) -> NodeKind:
        if self.memory_bytes is None:
            return NodeKind.CPU_MEMORY_UNKNOWN if self.cpus else NodeKind.MEMORY_UNKNOWN
        if self.cpus:
            return NodeKind.CPU_AND_MEMORY if self.memory_bytes else NodeKind.CPU_ONLY
        return NodeKind.MEMORY_ONLY if self.memory_bytes else NodeKind.EMPTY

    @property
    def hugepages_bytes(self) -> int:
        return sum(pages.total_bytes for pages in self.hugepages)

    @property
    def normal_memory_bytes(self) -> int | None:
        """Memory without huge pages."""
        if self.memory_bytes is None:
            return None
        # The two numbers come from different files of the kernel, so the difference can be
        # negative.
        return max(self.memory_bytes - self.hugepages_bytes, 0)


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A GPU, accelerator, NIC or NVMe function on the PCI bus."""

    bus_id: str  # domain:bus:device.function; the domain can have more than four digits
    kind: PciKind
    pci_class: str
    vendor: str
    device: str
    # id from the device's own file; otherwise the node of its local cpus or of a bridge above
    numa_node: int | None
    reported_numa_node: int | None  # id from the file of the device itself; it can be -1
    local_cpus: CpuSet | None  # cpus from the file of the device itself, without offline cpus
    is_virtual_function: bool  # True for a function of SR-IOV, which is no separate card
    net: tuple[str, ...] = ()
    infiniband: tuple[str, ...] = ()
    drm: tuple[str, ...] = ()
    mic: tuple[str, ...] = ()
    pcie_group: str = ""  # bus id of the switch or root port above the device; empty: unknown
    physical_function: str = ""  # for a virtual function: bus id of its card
    # the reason why slots cannot use the device, such as no active port; empty: no problem is known
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Fpga:
    """A region of an FPGA that can be programmed, of the kernel's class fpga_region."""

    name: str  # name of the region, for example region0
    minor: int  # the number in the name
    pci_bus_id: str | None = None  # None: the FPGA is not on the PCI bus
    numa_node: int | None = None
    model: str = ""  # model of the region's FPGA manager
    problem: str = ""  # the reason why slots cannot use the region; empty: the region works


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU in MIG mode. Programs select it by its UUID."""

    uuid: str
    profile: str | None  # for example 1g.10gb
    memory_bytes: int | None
    multiprocessor_count: int | None
    gpu_instance: int | None = None  # number of the GPU instance on the GPU
    compute_instance: int | None = None  # number of the compute instance in the GPU instance


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that computes on a GPU."""

    pid: int  # id in the host's first PID namespace
    # memory of the GPU that the process uses; None: the driver does not report it
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its driver reports it.

    Identify a GPU by its UUID. Index, minor and bus order can give different numbers to one GPU.
    """

    uuid: str
    index: int
    minor: int | None = None  # the number N of /dev/nvidiaN
    pci_bus_id: str | None = None
    name: str = "unknown"
    memory_bytes: int | None = None  # usable memory; `driver_bytes` are not included
    driver_bytes: int = 0  # memory that the driver and the firmware reserve
    vendor: str = "nvidia"
    pcie_group: str = ""  # see PciDevice; empty: the group of the GPU's PCI device applies
    health: GpuHealth = GpuHealth.OK
    problem: str = ""  # the reason why slots cannot use the GPU, and the repair; it can be empty
    processes: tuple[GpuProcess, ...] = ()  # processes of all users that compute on the GPU now
    mig_enabled: bool = False
    mig_mode_pending: bool = False  # a change of the mode takes effect at the next reset
    mig_instances: tuple[MigInstance, ...] = ()
    cpus: CpuSet | None = None  # online cpus near the GPU, limited to the cpuset
    # NUMA node of these cpus, from the PCI bus; bind cpus to this node
    numa_node: int | None = None
    # NUMA node of the GPU's own memory; never bind cpus to this node
    memory_numa_node: int | None = None

    @property
    def schedulable_as(self) -> str:
        """Returns ``gpu`` (whole or in fractions), ``mig`` (by instance only), or ``nothing``."""
        if self.health is not GpuHealth.OK:
            return "nothing"
        return "mig" if self.mig_enabled else "gpu"


@dataclass(frozen=True, slots=True)
class GpuLink:
    """The connection of two GPUs. The GPU with the lower index comes first."""

    first_uuid: str
    second_uuid: str
    nvlink_count: int  # number of bonded NVLinks, direct or through a switch
    via_switch: bool
    common_ancestor: str | None  # PIX (nearest), PXB, PHB, NODE, SYS; INTERNAL: on one board


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the cgroups above this process. A field is None if there is no limit, or if this
    process cannot see the limit.
    """

    cgroup_version: str | None = None  # one of v1, v2, hybrid and cpuset-fs
    cpuset_path: str | None = None  # path of the cgroup whose cpuset files were read
    cpuset_cpus: CpuSet | None = None  # the set in the file; it can contain offline cpus
    cpuset_nodes: NodeSet | None = None
    cpuset_directory: str | None = None  # directory of the cpuset files, relative to the root
    memory_limit_bytes: int | None = None  # the smallest limit on the path to the root
    memory_limit_file: str | None = None
    cpu_quota_milli: int | None = None  # smallest limit of CPU time, in thousandths of one cpu
    cpu_quota_file: str | None = None


@dataclass(frozen=True, slots=True)
class HostTopology:
    """Everything that detection found on one host."""

    online: CpuSet
    allowed: CpuSet  # online cpus that this process may use
    cores: tuple[Core, ...]  # each online cpu belongs to exactly one core
    numa_nodes: tuple[NumaNode, ...]
    packages: tuple[Package, ...] = ()
    offline: CpuSet = EMPTY  # cpus that exist but are not online
    isolated: CpuSet = EMPTY  # online, but excluded from the kernel's load balancing
    nohz_full: CpuSet = EMPTY
    possible: CpuSet | None = None
    present: CpuSet | None = None
    online_source: str = ""  # source of `online`: a file, or a kind of files
    cores_known: bool = True  # False if the kernel reports no cores; every cpu then counts as one
    packages_known: bool = True  # False if one package of all cpus is assumed
    numa_known: bool = True  # False if one node of all cpus and memory is assumed
    dies: tuple[Die, ...] = ()
    clusters: tuple[CpuSet, ...] = ()
    books: tuple[CpuSet, ...] = ()  # s390 only; for alignment, because a package can be one cpu
    drawers: tuple[CpuSet, ...] = ()
    l3_groups: tuple[L3Group, ...] = ()
    # The fastest kind comes first; empty: the host is not hybrid.
    cpu_kinds: tuple[CpuKind, ...] = ()
    memory_total_bytes: int | None = None  # the MemTotal of the machine
    node_memory_grows: bool = False  # the nodes together have less memory than the machine
    hugepages: tuple[HugePages, ...] = ()  # huge pages of the whole machine
    limits: Limits = Limits()
    pci_devices: tuple[PciDevice, ...] = ()
    pci_known: bool = False  # False if the host has no PCI bus
    gpus: tuple[Gpu, ...] = ()
    gpu_links: tuple[GpuLink, ...] = ()
    # The reason why GPUs are unknown; None: the driver answered.
    gpu_absence_reason: str | None = None
    fpgas: tuple[Fpga, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def allowed_nodes(self) -> NodeSet:
        """Nodes whose memory may be used. Some of these nodes possibly have no allowed cpus."""
        return CpuSet(node.id for node in self.numa_nodes if node.memory_allowed)

    @property
    def whole_cores(self) -> tuple[Core, ...]:
        """Cores whose online threads are all allowed."""
        return tuple(core for core in self.cores if core.cpus <= self.allowed)

    def node(self, node_id: int) -> NumaNode | None:
        """Returns the NUMA node with this id; None: there is no such node."""
        return next((node for node in self.numa_nodes if node.id == node_id), None)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON data. The keys are the field names above. Cpu sets have the kernel's list
        notation.
        """
        encoded: dict[str, Any] = to_json(self)
        return encoded

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "HostTopology":
        """Reads the data of `to_dict`. Ignores unknown keys, and uses defaults for missing keys.

        Raises:
            InvalidArgument: the data has another form. The error names the field.
        """
        return from_json(cls, data)


def printable(text: str) -> str:
    """Returns text from firmware, drivers and files on one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())

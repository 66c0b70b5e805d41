"""The model of a host: derived values, conversion to data and back, and the drawing."""

import json
from typing import Any

import pytest

from finegrain.capacity import Capacity, NodeCapacity
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import InvalidArgument
from finegrain.topology import (
    Core,
    CpuKind,
    Gpu,
    GpuHealth,
    GpuLink,
    HostTopology,
    HugePages,
    L3Group,
    Limits,
    MigInstance,
    NodeKind,
    NumaNode,
    Package,
    PciDevice,
    PciKind,
)
from finegrain.topology_text import bytes_text, render_topology

GIB = 1024**3


def two_sockets(**changes: Any) -> HostTopology:
    """Two packages, each one node, two cores with two threads, one L3."""
    cores = tuple(
        Core(CpuSet.of(2 * i, 2 * i + 1), i % 2, package=i // 2, numa_node=i // 2, l3_group=i // 2)
        for i in range(4)
    )
    halves = (CpuSet.parse("0-3"), CpuSet.parse("4-7"))
    facts: dict[str, Any] = {
        "online": CpuSet.parse("0-7"),
        "allowed": CpuSet.parse("0-6"),
        "cores": cores,
        "numa_nodes": tuple(
            NumaNode(i, cpus, 4 * GIB, distances=(10, 20)) for i, cpus in enumerate(halves)
        ),
        "packages": tuple(Package(cpus, i) for i, cpus in enumerate(halves)),
        "l3_groups": tuple(L3Group(cpus, 32 * 1024**2) for cpus in halves),
        "memory_total_bytes": 8 * GIB,
    }
    return HostTopology(**(facts | changes))


A100 = Gpu("GPU-a", 0, 0, "0000:3b:00.0", "A100", 80 * GIB, numa_node=1)


def test_topology_travels_as_json() -> None:
    host = two_sockets(
        gpus=(A100,),
        gpu_links=(GpuLink("GPU-a", "GPU-b", 12, True, None),),
        cpu_kinds=(CpuKind("core", CpuSet.of(0), None, "sys/devices/cpu_core/cpus"),),
        pci_devices=(
            PciDevice("0000:3b:00.0", PciKind.GPU, "0x030200", "", "", 1, -1, None, False),
        ),
        limits=Limits(cgroup_version="v2", cpuset_cpus=CpuSet.of(1), cpu_quota_milli=2500),
        warnings=("something odd",),
    )
    data = json.loads(json.dumps(host.to_dict()))
    assert data["cores"][1]["cpus"] == "2-3"
    assert data["pci_devices"][0]["kind"] == "gpu"
    assert HostTopology.from_dict(data) == host


def test_a_newer_writer_and_an_older_one_are_understood() -> None:
    data = two_sockets().to_dict()
    data["invented_later"] = 1
    del data["gpus"]
    assert HostTopology.from_dict(data) == two_sockets()


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        pytest.param(("online",), 7, "online", id="number for a set"),
        pytest.param(("online",), "0-x", "online", id="garbled set"),
        pytest.param(("cores",), {}, "cores", id="object for a list"),
        pytest.param(("cores", 1, "package"), "0", r"cores\[1\].package", id="text for a number"),
        pytest.param(("cores", 1, "package"), True, r"cores\[1\].package", id="bool for a number"),
        pytest.param(("numa_nodes", 0), [], r"numa_nodes\[0\]", id="list for an object"),
        pytest.param(("numa_known",), 1, "numa_known", id="number for a bool"),
    ],
)
def test_wrong_data_is_refused_by_the_name_of_the_field(
    path: tuple[Any, ...], value: object, field: str
) -> None:
    data = json.loads(json.dumps(two_sockets().to_dict()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(InvalidArgument, match=f"^{field} is "):
        HostTopology.from_dict(data)


def test_missing_required_field_is_named() -> None:
    data = two_sockets().to_dict()
    del data["allowed"]
    with pytest.raises(InvalidArgument, match=r"^allowed is None"):
        HostTopology.from_dict(data)


def test_unknown_enum_value_lists_the_known_ones() -> None:
    data = two_sockets(gpus=(A100,)).to_dict()
    data["gpus"][0]["health"] = "splendid"
    with pytest.raises(InvalidArgument, match="ok, lost, unknown"):
        HostTopology.from_dict(data)


def test_whole_cores_need_all_their_threads() -> None:
    assert [str(core.cpus) for core in two_sockets().whole_cores] == ["0-1", "2-3", "4-5"]


@pytest.mark.parametrize(
    ("cpus", "memory_bytes", "kind"),
    [
        ("0", 1, NodeKind.CPU_AND_MEMORY),
        ("0", 0, NodeKind.CPU_ONLY),
        ("0", None, NodeKind.CPU_MEMORY_UNKNOWN),
        ("", 1, NodeKind.MEMORY_ONLY),
        ("", 0, NodeKind.EMPTY),
        ("", None, NodeKind.MEMORY_UNKNOWN),
    ],
)
def test_node_kinds(cpus: str, memory_bytes: int | None, kind: NodeKind) -> None:
    assert NumaNode(0, CpuSet.parse(cpus), memory_bytes).kind is kind


def test_huge_pages_are_not_normal_memory() -> None:
    pages = (HugePages(2 * 1024**2, 512), HugePages(GIB, 1))
    node = NumaNode(0, CpuSet.of(0), 4 * GIB, pages)
    assert node.normal_memory_bytes == 2 * GIB
    assert NumaNode(0, CpuSet.of(0), GIB, pages).normal_memory_bytes == 0


@pytest.mark.parametrize(
    ("health", "mig", "want"),
    [
        (GpuHealth.OK, False, "gpu"),
        (GpuHealth.OK, True, "mig"),
        (GpuHealth.LOST, False, "nothing"),
        (GpuHealth.UNKNOWN, True, "nothing"),
    ],
)
def test_what_a_gpu_can_be_scheduled_as(health: GpuHealth, mig: bool, want: str) -> None:
    assert Gpu("GPU-a", 0, health=health, mig_enabled=mig).schedulable_as == want


def test_nodes_and_their_memory_are_found_by_id() -> None:
    host = two_sockets(numa_nodes=(NumaNode(33, CpuSet.of(0), 1, memory_allowed=False),))
    assert host.node(33) is host.numa_nodes[0]
    assert host.node(0) is None
    assert host.allowed_nodes == EMPTY


def test_capacity_travels_as_json() -> None:
    capacity = Capacity(
        CpuSet.parse("1-6"), EMPTY, 4, 6000, GIB, (NodeCapacity(0, CpuSet.of(1), GIB, True),)
    )
    assert Capacity.from_dict(json.loads(json.dumps(capacity.to_dict()))) == capacity


def test_a_host_is_drawn_with_its_reserve_and_limits() -> None:
    host = two_sockets(
        isolated=CpuSet.of(4, 5),
        gpus=(A100,),
        limits=Limits(cpuset_path="/pod", cpu_quota_milli=2500, cpu_quota_file="cpu.max"),
        warnings=("odd firmware",),
    )
    capacity = Capacity(
        CpuSet.parse("2-3,6"),
        EMPTY,
        2,
        2500,
        7 * GIB,
        (),
        CpuSet.parse("0-1"),
        GIB // 2,
        ("tight",),
    )
    assert render_topology(host, capacity).splitlines() == [
        "8 CPUs, 4 cores, 2 packages, 2 NUMA nodes, 8 GiB, 1 GPU",
        "offered to slots: 2500 milli on CPUs 2-3,6, 7 GiB",
        "reserved: CPUs 0-1, 512 MiB",
        "package 0",
        "  NUMA node 0: 4 GiB",
        "    L3 32 MiB",
        "      core 0-1 [reserved]   core 2-3",
        "package 1",
        "  NUMA node 1: 4 GiB",
        "    L3 32 MiB",
        "      core 4-5 [isolated]   core 6-7 [7 not allowed]",
        "GPU 0 A100, 80 GiB, NUMA node 1, GPU-a",
        "limit: CPUs 0-6 (cpuset /pod)",
        "limit: 2500 milli (/cpu.max)",
        "warning: odd firmware",
        "warning: tight",
    ]


def test_odd_parts_are_drawn_too() -> None:
    host = two_sockets(
        cores=tuple(Core(CpuSet.of(cpu), package=0, kind=0) for cpu in range(8)),
        packages=(Package(CpuSet.parse("0-7"), 8442),),
        cpu_kinds=(CpuKind("core", CpuSet.parse("0-7"), None, ""),),
        numa_nodes=(
            NumaNode(2, EMPTY, GIB, (HugePages(2 * 1024**2, 96),), nearest_cpus=CpuSet.of(0)),
        ),
        offline=CpuSet.of(8),
        node_memory_grows=True,
        gpus=(
            Gpu("GPU-b", 3, health=GpuHealth.LOST),
            Gpu("GPU-c", 4, mig_enabled=True, mig_mode_pending=True, mig_instances=(SLICE,)),
        ),
        gpu_links=(GpuLink("GPU-b", "GPU-c", 4, True, "SYS"),),
        gpu_absence_reason="asked for by a test",
        pci_devices=(
            PciDevice(
                "0000:01:00.0", PciKind.ETHERNET, "", "", "", None, -1, None, False, ("eth0",)
            ),
            PciDevice("0000:01:10.0", PciKind.ETHERNET, "", "", "", None, -1, None, True),
        ),
    )
    assert render_topology(host).splitlines() == [
        "8 CPUs, 8 cores, 1 package, 1 NUMA node, 8 GiB, 2 GPUs, offline CPUs 8",
        "package 0 (id 8442)",
        "  core 0 [kind 0]   core 1 [kind 0]   core 2 [kind 0]   core 3 [kind 0]   core 4 [kind 0]",
        "  core 5 [kind 0]   core 6 [kind 0]   core 7 [kind 0, not allowed]",
        "NUMA node 2: 1 GiB so far, 96 huge pages of 2 MiB, no CPUs",
        "kind 0 (core): CPUs 0-7",
        "GPU 3 unknown, memory unknown, NUMA node unknown, GPU-b [not offered: lost]",
        f"GPU 4 unknown, memory unknown, NUMA node unknown, GPU-c {MIG_MARKS}",
        "  MIG 1g.10gb MIG-1",
        "GPU 3 - GPU 4: 4 NVLinks through a switch",
        "PCI 0000:01:00.0 ethernet eth0, NUMA node unknown",
        "no GPUs offered: asked for by a test",
        "limit: CPUs 0-6 (cpuset unknown)",
    ]


MIG_MARKS = "[MIG: offered by instance only] [MIG mode changes at the next reset]"
SLICE = MigInstance("MIG-1", "1g.10gb", 10 * GIB, 14)


def test_many_cores_are_drawn_as_sets() -> None:
    cpus = CpuSet(range(64))
    host = HostTopology(
        online=cpus,
        allowed=cpus - CpuSet.of(3),
        cores=tuple(Core(CpuSet.of(cpu), numa_node=0) for cpu in cpus),
        numa_nodes=(NumaNode(0, cpus, None),),
        packages=(Package(cpus, None),),
    )
    assert "    63 cores: CPUs 0-2,4-63" in render_topology(host).splitlines()
    assert "    1 core: CPUs 3 [not allowed]" in render_topology(host).splitlines()


def test_isolated_cpus_that_are_offered_are_named() -> None:
    capacity = Capacity(CpuSet.parse("0-7"), CpuSet.of(4, 5), 4, 8000, GIB, ())
    lines = render_topology(two_sockets(), capacity).splitlines()
    assert "only for exclusive slots: isolated CPUs 4-5" in lines


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (80 * GIB, "80 GiB"), (2**60, "1024 PiB")],
)
def test_amounts_for_people(amount: int, text: str) -> None:
    assert bytes_text(amount) == text

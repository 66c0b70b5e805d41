"""Which capacity an executor offers, by its host and the administrator's options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from finegrain.capacity import Capacity
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import InvalidArgument
from finegrain.topology import Core, HostTopology, HugePages, Limits, NumaNode
from task_executor.host.capacity import CapacityOptions, default_reserve_bytes, plan_capacity
from task_executor.host.detection import detect

KIB, MIB, GIB = 1024, 1024**2, 1024**3
Tree = Callable[[str], Path]


def host(**changes: Any) -> HostTopology:
    """Returns a host of two nodes with 16 GiB, each with two cores of two threads."""
    facts: dict[str, Any] = {
        "online": CpuSet.parse("0-7"),
        "allowed": CpuSet.parse("0-7"),
        "cores": tuple(Core(CpuSet.of(2 * i, 2 * i + 1), numa_node=i // 2) for i in range(4)),
        "numa_nodes": (node(0, "0-3"), node(1, "4-7")),
        "memory_total_bytes": 32 * GIB,
    }
    return HostTopology(**(facts | changes))


def node(node_id: int, cpus: str, memory_bytes: int | None = 16 * GIB, **facts: Any) -> NumaNode:
    return NumaNode(node_id, CpuSet.parse(cpus), memory_bytes, **facts)


def plan(topology: HostTopology | None = None, **options: Any) -> Capacity:
    return plan_capacity(topology or host(), CapacityOptions(**options))


def node_memory(capacity: Capacity) -> list[int]:
    return [each.memory_bytes for each in capacity.nodes]


def test_without_options_all_but_the_default_memory_reserve_is_offered() -> None:
    capacity = plan_capacity(host())
    assert str(capacity.cpus) == "0-7"
    assert (capacity.cpu_milli_total, capacity.core_count) == (8000, 4)
    assert capacity.reserved_memory_bytes == 32 * GIB * 5 // 100
    assert capacity.memory_bytes_total == (32 * GIB * 95 // 100) // (64 * KIB) * (64 * KIB)
    assert [str(each.cpus) for each in capacity.nodes] == ["0-3", "4-7"]
    assert capacity.warnings == ()


@pytest.mark.parametrize(
    ("usable", "reserve"),
    [
        pytest.param(32 * GIB, 32 * GIB * 5 // 100, id="5 percent"),
        pytest.param(2 * GIB, 256 * MIB, id="at least 256 MiB"),
        pytest.param(1024 * GIB, 4 * GIB, id="at most 4 GiB"),
    ],
)
def test_default_memory_reserve(usable: int, reserve: int) -> None:
    assert default_reserve_bytes(usable) == reserve


def test_memory_is_rounded_down_to_64_kib() -> None:
    capacity = plan(reserved_memory_bytes=1)
    assert capacity.memory_bytes_total == 32 * GIB - 64 * KIB
    assert all(memory % (64 * KIB) == 0 for memory in node_memory(capacity))


def test_reserve_weighs_on_all_nodes() -> None:
    assert node_memory(plan(reserved_memory_bytes=8 * GIB)) == [12 * GIB, 12 * GIB]


def test_explicit_reserve_of_zero_is_respected() -> None:
    assert plan(reserved_memory_bytes=0).memory_bytes_total == 32 * GIB


def test_tiny_hosts_keep_half() -> None:
    tiny = host(numa_nodes=(node(0, "0-7", 300 * MIB),), memory_total_bytes=300 * MIB)
    capacity = plan(tiny)
    assert capacity.memory_bytes_total == 150 * MIB
    assert "half of it is reserved" in capacity.warnings[0]


def test_reserved_cpus_are_taken_off() -> None:
    capacity = plan(reserved_cpus=CpuSet.parse("0-1"))
    assert str(capacity.cpus) == "2-7"
    assert str(capacity.reserved_cpus) == "0-1"
    assert (capacity.cpu_milli_total, capacity.core_count) == (6000, 3)
    assert capacity.warnings == ()


@pytest.mark.parametrize(
    ("reserved", "words"),
    [
        pytest.param("0", "a part of core 0-1", id="half a core"),
        pytest.param("0-3", "all CPUs of NUMA node 0", id="a whole node"),
    ],
)
def test_doubtful_reserves_are_warned_of(reserved: str, words: str) -> None:
    (warning,) = plan(reserved_cpus=CpuSet.parse(reserved)).warnings
    assert words in warning


def test_reserve_of_cpus_that_are_not_ours_anyway() -> None:
    topology = host(allowed=CpuSet.parse("4-7"), offline=CpuSet.of(8))
    capacity = plan(topology, reserved_cpus=CpuSet.of(0, 1, 8))
    assert str(capacity.cpus) == "4-7"
    assert capacity.reserved_cpus == EMPTY
    assert capacity.warnings == (
        (
            "reserved CPUs 0-1,8 are offline, or this process may not use them: "
            "reserving them has no effect"
        ),
    )


def test_isolated_cpus_stay_out_unless_asked_for() -> None:
    topology = host(isolated=CpuSet.parse("6-7"))
    without = plan(topology)
    assert (str(without.cpus), without.isolated_cpus) == ("0-5", EMPTY)
    assert "6-7 are isolated" in without.warnings[0]
    given = plan(topology, use_isolated_cpus=True)
    assert (str(given.cpus), str(given.isolated_cpus)) == ("0-7", "6-7")


def test_shares_are_net() -> None:
    capacity = plan(share_cpus=CpuSet.parse("4-5"), share_memory_bytes=10 * GIB)
    assert (str(capacity.cpus), capacity.cpu_milli_total) == ("4-5", 2000)
    assert capacity.memory_bytes_total == 10 * GIB
    assert capacity.reserved_memory_bytes == 0
    assert node_memory(capacity) == [10 * GIB, 10 * GIB]


def test_cpu_quota_is_time_and_caps_the_sum() -> None:
    capacity = plan(host(limits=Limits(cpu_quota_milli=2500, cpu_quota_file="x/cpu.max")))
    assert (str(capacity.cpus), capacity.cpu_milli_total) == ("0-7", 2500)
    assert "/x/cpu.max" in capacity.warnings[0]
    assert plan(host(limits=Limits(cpu_quota_milli=9000))).cpu_milli_total == 8000


def test_memory_limit_caps_the_sum_but_not_one_node() -> None:
    limits = Limits(memory_limit_bytes=10 * GIB, memory_limit_file="x/memory.max")
    capacity = plan(host(limits=limits), reserved_memory_bytes=0)
    assert capacity.memory_bytes_total == 10 * GIB
    assert node_memory(capacity) == [10 * GIB, 10 * GIB]
    assert "/x/memory.max" in capacity.warnings[0]


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"reserved_cpus": CpuSet.parse("0-7")}, "reserved_cpus", "leaves at least one"),
        ({"reserved_cpus": CpuSet.of(64)}, "reserved_cpus", "not 64"),
        ({"share_cpus": EMPTY}, "cpus", "at least one"),
        ({"share_cpus": CpuSet.of(1, 9)}, "cpus", "9 are not"),
        ({"share_cpus": CpuSet.of(7)}, "cpus", "7 are not"),
        ({"share_cpus": CpuSet.of(6)}, "cpus", "isolated"),
        (
            {"share_cpus": CpuSet.of(1), "reserved_cpus": CpuSet.of(0)},
            "reserved_cpus",
            "together with cpus",
        ),
        (
            {"share_memory_bytes": GIB, "reserved_memory_bytes": GIB},
            "reserved_memory_bytes",
            "together with memory_bytes",
        ),
        ({"share_memory_bytes": 33 * GIB}, "memory_bytes", "at most"),
        ({"share_memory_bytes": 1}, "memory_bytes", "at least 64 KiB"),
        ({"reserved_memory_bytes": 32 * GIB}, "reserved_memory_bytes", "less than"),
        ({"reserved_memory_bytes": -1}, "reserved_memory_bytes", "0 or more"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_contradictions_are_refused_by_name(
    options: dict[str, Any], field: str, words: str
) -> None:
    topology = host(allowed=CpuSet.parse("0-6"), isolated=CpuSet.of(6))
    with pytest.raises(InvalidArgument, match=words) as refusal:
        plan(topology, **options)
    assert refusal.value.field == field


def test_hugepages_are_not_offered_as_memory() -> None:
    pages = (HugePages(GIB, 4),)
    topology = host(numa_nodes=(node(0, "0-3"), node(1, "4-7", hugepages=pages)), hugepages=pages)
    capacity = plan(topology, reserved_memory_bytes=0)
    assert capacity.memory_bytes_total == 28 * GIB
    assert node_memory(capacity) == [16 * GIB, 12 * GIB]
    assert capacity.nodes[1].hugepages == pages


def test_memory_on_other_nodes_than_the_cpus() -> None:
    """The cpuset allows CPUs of node 0 and memory of node 1."""
    topology = host(
        allowed=CpuSet.parse("0-3"),
        numa_nodes=(node(0, "0-3", memory_allowed=False), node(1, "4-7")),
    )
    capacity = plan(topology, reserved_memory_bytes=0)
    assert str(capacity.cpus) == "0-3"
    assert node_memory(capacity) == [0, 16 * GIB]
    assert capacity.memory_bytes_total == 16 * GIB


def test_unknown_memory_offers_none_and_says_so() -> None:
    unknown = host(numa_nodes=(node(0, "0-7", None),), memory_total_bytes=None)
    capacity = plan(unknown)
    assert capacity.memory_bytes_total == 0
    assert "memory_bytes" in capacity.warnings[0]
    assert plan(unknown, share_memory_bytes=GIB).memory_bytes_total == GIB


def test_old_kernels_count_too_much_in_the_nodes() -> None:
    capacity = plan(host(memory_total_bytes=30 * GIB), reserved_memory_bytes=0)
    assert capacity.memory_bytes_total == 30 * GIB
    assert node_memory(capacity) == [15 * GIB, 15 * GIB]


def test_memory_that_grows_with_use_counts_in_full() -> None:
    small = (node(0, "0-3", 6 * GIB), node(1, "4-7", 2 * GIB))
    capacity = plan(host(numa_nodes=small, node_memory_grows=True), reserved_memory_bytes=0)
    assert capacity.memory_bytes_total == 32 * GIB
    assert node_memory(capacity) == [24 * GIB, 8 * GIB]


def test_no_cpu_of_ours_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one online CPU"):
        plan(host(allowed=EMPTY))


def test_persistent_memory_is_no_default(tree: Tree) -> None:
    capacity = plan_capacity(detect(tree("nri-server-snc-4pmem")))
    assert [each.id for each in capacity.nodes if each.default_memory] == [0, 1, 2, 3]
    apart = [each for each in capacity.nodes if not each.default_memory]
    assert [each.id for each in apart] == [4, 5, 6, 7]
    assert all(each.memory_bytes > 100 * GIB for each in apart)
    assert capacity.memory_bytes_total < 135 * GIB
    assert str(capacity.cpus) == "0-3,8-59,64-111"


def test_cpus_without_memory_get_the_nearest_of_nodes_without_cpus(tree: Tree) -> None:
    """Nodes 5, 6, 8 and 9 are the DRAM of four nodes with CPUs; nodes 7 and 10 are persistent
    memory.
    """
    capacity = plan_capacity(detect(tree("fakememinitiators-1np2c_1npp_gi")))
    assert [each.id for each in capacity.nodes if each.default_memory] == [5, 6, 8, 9]


def test_node_without_memory_uses_its_neighbour_not_the_spare_node(tree: Tree) -> None:
    capacity = plan_capacity(detect(tree("qemu-memless-offline")))
    assert [each.id for each in capacity.nodes if each.default_memory] == [0]


def test_only_memory_of_nodes_without_cpus_is_allowed() -> None:
    nodes = (node(0, "0-7", memory_allowed=False), node(1, ""))
    capacity = plan(host(numa_nodes=nodes), reserved_memory_bytes=0)
    assert capacity.memory_bytes_total == 16 * GIB
    assert "nodes without CPUs" in capacity.warnings[0]


@pytest.mark.parametrize(
    ("name", "cpus", "cpu_milli", "memory_mib"),
    [
        ("qemu-v2-nested-limits", "2-5,10-13", 2500, 900 - 256),
        ("qemu-v1-hybrid-slurm", "6-9", 3500, 700 - 256),
        ("16amd64-8n2c-cpusets", "0-3,5-6,12-15", 10000, 31129),
        ("32amd64-4s2n4c-cgroup", "0-5", 6000, 91560),
    ],
)
def test_limited_machines(
    name: str, cpus: str, cpu_milli: int, memory_mib: int, tree: Tree
) -> None:
    capacity = plan_capacity(detect(tree(name)))
    assert (str(capacity.cpus), capacity.cpu_milli_total) == (cpus, cpu_milli)
    assert capacity.memory_bytes_total // MIB == memory_mib

"""Difficult cases that no recorded machine has, as machines of a few files."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from finegrain.topology import HostTopology
from task_executor.host.capacity import plan_capacity
from task_executor.host.detection import allowed_cpus, detect

Machine = Callable[[Mapping[str, str]], Path]
CPU = "sys/devices/system/cpu"
NODE = "sys/devices/system/node"


@pytest.fixture
def look(machine: Machine) -> Callable[[Mapping[str, str]], HostTopology]:
    return lambda files: detect(machine(files))


Look = Callable[[Mapping[str, str]], HostTopology]


def test_without_sysfs_the_cpu_lines_of_proc_stat_count(look: Look) -> None:
    host = look({"proc/stat": "cpu  1 2\ncpu0 1 2\ncpu2 1 2\nintr 7\n"})
    assert (str(host.online), host.online_source) == ("0,2", "proc/stat")
    assert [str(core.cpus) for core in host.cores] == ["0", "2"]
    assert not host.packages_known
    assert [str(package.cpus) for package in host.packages] == ["0,2"]
    assert any("each counts as a core" in warning for warning in host.warnings)


def test_cpu_zero_may_be_offline(look: Look) -> None:
    host = look({f"{CPU}/online": "1-3", f"{CPU}/present": "0-3", f"{CPU}/offline": "0,4-511"})
    assert (str(host.online), str(host.offline)) == ("1-3", "0")


def test_maps_that_name_offline_cpus_are_cut(look: Look) -> None:
    host = look(
        {
            f"{CPU}/online": "0-1",
            f"{CPU}/cpu0/topology/core_cpus": "f",
            f"{CPU}/cpu1/topology/core_cpus": "f",
            f"{NODE}/node0/cpulist": "0-140",
            f"{CPU}/isolated": "1-9",
        }
    )
    assert [str(core.cpus) for core in host.cores] == ["0-1"]
    assert str(host.numa_nodes[0].cpus) == "0-1"
    assert str(host.isolated) == "1"


def test_contradicting_core_maps_still_give_every_cpu_one_core(look: Look) -> None:
    host = look(
        {
            f"{CPU}/online": "0-2",
            f"{CPU}/cpu0/topology/thread_siblings_list": "0-1",
            f"{CPU}/cpu1/topology/thread_siblings_list": "1-2",
            f"{CPU}/cpu2/topology/thread_siblings_list": "2",
        }
    )
    assert [str(core.cpus) for core in host.cores] == ["0", "1", "2"]
    assert any("contradict" in warning for warning in host.warnings)


HYBRID = {f"{CPU}/online": "0-3"}


def test_kinds_by_the_kernels_own_lists(look: Look) -> None:
    lists = {
        "sys/devices/cpu_core/cpus": "0-1",
        "sys/devices/cpu_atom/cpus": "2",
        "sys/devices/cpu_lowpower/cpus": "3",
    }
    kinds = look(HYBRID | lists).cpu_kinds
    assert [(kind.name, str(kind.cpus)) for kind in kinds] == [
        ("core", "0-1"),
        ("atom", "2"),
        ("lowpower", "3"),
    ]


def test_capacities_of_one_design_are_one_kind(look: Look) -> None:
    """There are four capacities on two designs: the ID register distinguishes two kinds of cpus."""
    files = dict(HYBRID)
    for cpu, (capacity, design) in enumerate([(1024, 1), (997, 1), (718, 2), (701, 2)]):
        files[f"{CPU}/cpu{cpu}/cpu_capacity"] = str(capacity)
        files[f"{CPU}/cpu{cpu}/regs/identification/midr_el1"] = f"0x00000000410fd8{design}0"
    assert [(str(kind.cpus), kind.value) for kind in look(files).cpu_kinds] == [
        ("0-1", 1024),
        ("2-3", 718),
    ]


def test_capacities_without_designs_stand_as_they_are(look: Look) -> None:
    files = HYBRID | {f"{CPU}/cpu{cpu}/cpu_capacity": str(500 + cpu // 2) for cpu in range(4)}
    assert [str(kind.cpus) for kind in look(files).cpu_kinds] == ["2-3", "0-1"]


def test_turbo_frequencies_and_partial_values_make_no_kinds(look: Look) -> None:
    files = dict(HYBRID)
    for cpu in range(4):
        files[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = str(4000000 + cpu)
    files[f"{CPU}/cpu0/cpu_capacity"] = "1024"
    assert look(files).cpu_kinds == ()


CGROUP_V2 = {
    f"{CPU}/online": "0-7",
    "proc/mounts": "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n",
    "sys/fs/cgroup/cgroup.controllers": "cpuset cpu memory",
}


def test_group_outside_our_namespace_reads_the_mounts_root(look: Look) -> None:
    host = look(
        CGROUP_V2
        | {
            "proc/self/cgroup": "0::/../../other/group\n",
            "sys/fs/cgroup/memory.max": "1048576",
            "sys/fs/cgroup/cpu.max": "150000 100000",
            "sys/fs/cgroup/other/group/memory.max": "1",
        }
    )
    assert host.limits.memory_limit_bytes == 1048576
    assert host.limits.cpu_quota_milli == 1500


def test_unlimited_groups_set_no_limit(look: Look) -> None:
    host = look(
        CGROUP_V2
        | {
            "proc/self/cgroup": "0::/a\n",
            "sys/fs/cgroup/a/memory.max": "max",
            "sys/fs/cgroup/a/cpu.max": "max 100000",
            "sys/fs/cgroup/a/cpuset.cpus.effective": "",
        }
    )
    assert host.limits.memory_limit_bytes is None
    assert host.limits.cpu_quota_milli is None
    assert host.allowed == host.online


def test_container_of_v1_without_namespace_finds_its_limits_in_the_mounts_root(look: Look) -> None:
    host = look(
        {
            f"{CPU}/online": "0-7",
            "proc/mounts": "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
            "cgroup /sys/fs/cgroup/cpu\\040set cgroup rw,cpuset 0 0\n",
            "proc/self/cgroup": "3:memory:/docker/abc\n2:cpuset:/docker/abc\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456",
            "sys/fs/cgroup/cpu set/cpuset.cpus": "2-3",
        }
    )
    assert host.limits.memory_limit_bytes == 268435456
    assert str(host.allowed) == "2-3"


def test_affinity_narrows_what_the_cpuset_allows(look: Look) -> None:
    status = "Name:\tx\nCpus_allowed_list:\t4-5\nMems_allowed_list:\t0\n"
    host = look({f"{CPU}/online": "0-7", "proc/self/status": status})
    assert str(host.allowed) == "4-5"
    assert any("affinity" in warning for warning in host.warnings)


def node(cpus: str, memory_kib: int) -> dict[str, str]:
    return {"cpulist": cpus, "meminfo": f"Node 0 MemTotal:  {memory_kib} kB\n"}


def machine_of_nodes(*nodes: dict[str, str], online: str = "0-3") -> dict[str, str]:
    files = {f"{CPU}/online": online}
    for number, contents in enumerate(nodes):
        files |= {f"{NODE}/node{number}/{name}": text for name, text in contents.items()}
    return files


def test_partly_overlapping_nodes_count_as_one(look: Look) -> None:
    host = look(machine_of_nodes(node("0-2", 1000), node("2-3", 500)))
    assert [(each.id, str(each.cpus), each.memory_bytes) for each in host.numa_nodes] == [
        (0, "0-3", 1500 * 1024)
    ]
    assert {core.numa_node for core in host.cores} == {0}


def test_cpus_without_a_node_are_reported(look: Look) -> None:
    host = look(machine_of_nodes(node("0-2", 1000)))
    assert host.cores[3].numa_node is None
    assert "CPUs 3 belong to no NUMA node" in host.warnings


def test_distances_of_offline_nodes_are_not_attributed(look: Look) -> None:
    files = machine_of_nodes(node("0-1", 9), node("2-3", 9), node("", 9) | {"distance": "1 2 3 4"})
    assert str(look(files).numa_nodes[2].nearest_cpus) == ""


def test_a_single_node_has_all_the_memory_of_the_machine(look: Look) -> None:
    """A guest initializes memory lazily: the node shows only the memory that was used so far."""
    files = machine_of_nodes(node("0-3", 250_000)) | {
        f"{NODE}/possible": "0",
        "proc/meminfo": "MemTotal: 1000000 kB\nMemFree: 10 kB\n",
    }
    host = look(files)
    assert host.numa_nodes[0].memory_bytes == 1_000_000 * 1024
    assert any("grows with use" in warning for warning in host.warnings)


@pytest.mark.parametrize(
    ("free_kib", "grows"),
    [
        pytest.param(900_000, True, id="more memory free than the nodes have"),
        pytest.param(10, False, id="perhaps a node was taken offline"),
    ],
)
def test_memory_of_several_nodes_that_grows_with_use(
    free_kib: int, grows: bool, look: Look
) -> None:
    meminfo = f"MemTotal: 1000000 kB\nMemFree: {free_kib} kB\n"
    files = machine_of_nodes(node("0-1", 150_000), node("2-3", 100_000))
    host = look(files | {"proc/meminfo": meminfo})
    assert host.node_memory_grows is grows
    assert any("grows with use" in warning for warning in host.warnings) is grows


@pytest.mark.parametrize(
    ("of_nodes", "possible"),
    [
        pytest.param([node("0-3", 250_000)], "0-1", id="one of two"),
        pytest.param([node("0-1", 150_000), node("2-3", 100_000)], "0-2", id="two of three"),
    ],
)
def test_memory_of_a_node_that_is_offline_is_not_offered_on_another(
    of_nodes: list[dict[str, str]], possible: str, look: Look
) -> None:
    """The total and the free memory of the machine still include the memory of the off-line
    node.
    """
    meminfo = "MemTotal: 1000000 kB\nMemFree: 900000 kB\n"
    files = machine_of_nodes(*of_nodes)
    host = look(files | {f"{NODE}/possible": possible, "proc/meminfo": meminfo})
    assert not host.node_memory_grows
    assert sum(each.memory_bytes or 0 for each in host.numa_nodes) == 250_000 * 1024
    assert plan_capacity(host).memory_bytes_total <= 250_000 * 1024
    assert any("offline" in warning for warning in host.warnings)


def test_a_cache_without_a_map_belongs_to_all_threads_of_its_core(look: Look) -> None:
    files = {f"{CPU}/online": "0-3"}
    for cpu in range(4):
        cache = f"{CPU}/cpu{cpu}/cache/index3"
        files |= {
            f"{CPU}/cpu{cpu}/topology/thread_siblings_list": "0,2" if cpu % 2 == 0 else "1,3",
            f"{cache}/level": "3",
            f"{cache}/type": "Unified",
            f"{cache}/shared_cpu_map": "00000000,00000000",
            f"{cache}/size": "12288K",
        }
    host = look(files)
    assert [str(group.cpus) for group in host.l3_groups] == ["0,2", "1,3"]
    assert not any("cache" in warning for warning in host.warnings)


def test_what_is_allowed_now_is_read_anew(machine: Machine) -> None:
    root = machine({f"{CPU}/online": "0-7"})
    assert str(allowed_cpus(root)) == "0-7"
    machine({f"{CPU}/online": "0-5", "proc/self/status": "Cpus_allowed_list: 2-7\n"})
    assert str(allowed_cpus(root)) == "2-5"


def test_warnings_stay_short_and_printable(look: Look) -> None:
    host = look(
        {f"{CPU}/online": ",".join(map(str, range(0, 4000, 2))) + "\n", f"{CPU}/present": "\x01"}
    )
    assert all(len(warning) < 600 and warning.isprintable() for warning in host.warnings)
    assert any(warning.endswith("...") for warning in host.warnings)


def test_strange_files_are_reported_once_per_kind(look: Look) -> None:
    files = {f"{CPU}/cpu{cpu}/online": "yes" for cpu in range(50)}
    (warning,) = [each for each in look(files).warnings if "is not a number" in each]
    assert warning.endswith("(and 49 more of this kind)")

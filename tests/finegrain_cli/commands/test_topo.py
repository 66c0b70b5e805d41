"""`finegrain topo` draws every hardware thread of a host with its slot, within the width of a
terminal.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from finegrain.cpu_policy import QosClass
from finegrain.cpuset import CpuSet
from finegrain_cli.text.cpu_map import WIDTH, Marks, drawing, legend
from tests.support.cli import EXECUTOR, FakeCluster, Finegrain
from tests.support.cli_topology import BUSY, host, slot, with_slots


def test_every_thread_is_drawn_with_who_has_it(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.reported = BUSY
    text = finegrain("topo").stdout
    assert text[text.index("package 0") :].splitlines()[:18] == [
        "package 0",
        "  NUMA node 0: cpu 16 of 16 free, memory 64Gi of 64Gi free",
        "       0 rx AA AA AA  ss ss ss ss",
        "package 1",
        "  NUMA node 1: cpu 16 of 16 free, memory 64Gi of 64Gi free",
        "       8 Bs Bs ss ss  kk ss s- si",
        "",
        f"  A  LSE {BUSY.slots[0].allocation_id} of job 01bbbbbb: cpus 1-3,17-19 (FullPCPUs),",
        "         cpu 6, memory 256Mi",
        "  B  LSR 01aaaaaa-0000-7000-8000-000000000002 of job 01bbbbbb: cpus 8,9 (SpreadByPCPUs,",
        "         PCPULevel), nodes 1, cpu 2, memory 256Mi",
        "  s  the shared pool: LS slots, and BE slots, cpus 0,4-7,10-16,20-31",
        "  r  reserved: in the shared pool, not dedicated to slots, cpus 0",
        "  x  reserved strictly: no slot runs there, cpus 16",
        "  k  assigned by a kubelet to its containers, cpus 12,28",
        "  i  isolated from load balancing: only for slots with dedicated cpus, cpus 31",
        "  -  offline, cpus 30",
        "",
    ]


def test_settings_are_shown_with_where_they_come_from(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.reported = BUSY
    told = finegrain("topo").stdout.splitlines()
    assert "settings   bind FullPCPUsOnly (operator), alignment None (kubelet)," in told
    assert any(line.startswith("kubelet    cpu manager static (distribute-cpus-") for line in told)
    assert "warning: BE slots are confined to cpus 4-7 while other slots are busy" in told
    assert any(line.startswith("warning: slot") and "lost cpus 30" in line for line in told)


def test_slots_without_cpus_of_their_own_are_listed_by_pool(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.reported = BUSY
    text = finegrain("topo").stdout
    places = [
        text.index(part)
        for part in (
            "shared pool, cpus 0,4-7,10-16,20-31: 1 slot",
            "slot 01aaaaaa-0000-7000-8000-000000000003 of job 01bbbbbb: cpu 0.5, memory 256Mi",
            "shared pool of NUMA node 1, cpus 10-15,24-31: 1 slot",
            "slot 01aaaaaa-0000-7000-8000-000000000004",
            "best-effort pool, cpus 0-31: 1 slot",
            "slot 01aaaaaa-0000-7000-8000-000000000005",
        )
    ]
    assert places == sorted(places)


def test_many_slots_of_a_pool_are_counted() -> None:
    crowd = tuple(slot(number, QosClass.LS) for number in range(50))
    from finegrain_cli.text.executor_map import executor_text

    lines = executor_text(EXECUTOR.to_dict(), with_slots(host(), *crowd)).splitlines()
    at = next(at for at, line in enumerate(lines) if line.endswith(": 50 slots"))
    assert crowd[19].allocation_id in lines[at + 20]
    assert lines[at + 21] == "  and 30 more"


@pytest.mark.parametrize(
    ("packages", "nodes", "cores", "threads"),
    [(1, 1, 128, 2), (2, 4, 16, 2), (2, 1, 64, 2), (1, 1, 256, 1), (1, 2, 16, 8)],
    ids=str,
)
def test_hosts_of_256_cpus_fit_on_a_screen(
    packages: int, nodes: int, cores: int, threads: int
) -> None:
    empty = host(packages, nodes, cores, threads, caches=8)
    every = [each.cpu for each in empty.cpus]
    report = with_slots(
        empty,
        slot(0, QosClass.LSE, str(CpuSet(every[1::2]))),
        *(slot(number, QosClass.LSR, str(every[number * 2])) for number in range(1, 80)),
    )
    marks = Marks.of(report)
    lines = drawing(report, marks) + legend(report, marks)
    assert max(map(len, lines)) <= WIDTH
    rows = [line[9:] for line in drawing(report, marks) if line[:9].strip().isdigit()]
    drawn = "".join(rows).replace(" ", "")
    assert len(drawn) == 256
    assert drawn.count(marks.slots[0][0]) in (1, 128)
    assert drawn.count("s") == 128 - 79
    assert drawn.count("*") > 0  # more slots than letters: the legend has their cpus


def test_kinds_of_cores_and_nodes_without_cpus_are_told_apart() -> None:
    empty = host(1, 1, 4, 1)
    cores = [
        each | {"kind": "core" if at < 2 else "atom", "cpus": f"{at}" if at else "0,4"}
        for at, each in enumerate(empty.topology["cores"])
    ]
    nodes = [*empty.topology["numa_nodes"], {"numa_node_id": 7, "memory_bytes": 1 << 34}]
    report = replace(empty, topology={"cores": cores, "numa_nodes": nodes})
    assert drawing(report, Marks.of(report)) == [
        "package 0",
        "  NUMA node 0: cpu 4 of 4 free, memory 64Gi of 64Gi free",
        "    core",
        "       0 s. s",
        "    atom",
        "       2 s  s",
        "NUMA node 7: memory 16Gi, no cpus",
    ]


def test_devices_are_drawn_at_their_numa_nodes() -> None:
    empty = host(1, 1, 2, 1)
    whole = {"gpu-core": "100"}
    devices = [
        {"kind": "gpu", "capacity": whole},  # JSON of messages leaves zeros out
        {"kind": "gpu", "minor": 1, "capacity": whole},
        {"kind": "gpu", "minor": 2},  # not offered
        {"kind": "rdma", "minor": 3, "numa_node_id": -1, "capacity": {"rdma": "100"}},
    ]
    report = replace(empty, topology={**empty.topology, "devices": devices})
    lines = drawing(report, Marks.of(report))
    assert lines[-3:] == ["       gpu0, gpu1", "NUMA node not known", "       rdma3"]


def test_an_executor_that_tells_nothing_of_its_cpus(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.reported = replace(
        host(), topology={}, cpus=(), announced=None, zones=(), pools=(), now=None
    )
    assert "shared pool, cpus none: no slots" in finegrain("topo").stdout


def test_json_has_the_executor_and_the_whole_report(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.reported = BUSY
    document = json.loads(finegrain("topo", "host-a", "-o", "json").stdout)
    assert document["kind"] == "ExecutorTopology"
    assert set(EXECUTOR.to_dict()) < set(document)
    assert document["cpus"][17] == {"cpu": 17, "core": 1, "node": 0, "package": 0, "kind": ""}
    assert document["pools"][1]["best_effort_cpus"] == "8-15,24-31"
    assert document["settings"]["origins"]["alignment"] == "kubelet"
    assert document["now"]["kubelet"]["containers"][0]["cpus"] == "12,28"
    assert document["lost_cpus"][0]["cpus"] == "30"

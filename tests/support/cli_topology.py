"""Builds topology reports for tests of the command line: small, regular and busy hosts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import SlotState
from finegrain.values.usage import Zone
from finegrain_client.types.status import SlotStatus
from finegrain_client.types.topology import (
    AnnouncedCpus,
    Cpu,
    CpusNow,
    HostSettings,
    Kubelet,
    KubeletContainer,
    LostCpus,
    NodeCapacity,
    Pool,
    TopologyReport,
)

SETTINGS = HostSettings(
    bind="FullPCPUsOnly",
    numa_strategy="LeastAllocated",
    alignment="None",
    reserved_cpus="",
    strictly_reserved_cpus="",
    default_bind="FullPCPUs",
    default_exclusive="None",
    origins={"bind": "operator", "numa_strategy": "built-in", "alignment": "kubelet"},
)


def small_report(topology: dict[str, Any], slots: tuple[SlotStatus, ...]) -> TopologyReport:
    """Returns the report of a host with two cpus on one NUMA node and these slots."""
    return TopologyReport(
        executor_id="host-a",
        topology=topology,
        cpus=(Cpu(0, 0, 0, 0, ""), Cpu(1, 1, 0, 0, "")),
        announced=AnnouncedCpus("0-1", "", "", (NodeCapacity(0, 3 * GIB, {}, True),)),
        now=CpusNow("", "", 0, (), Kubelet("static", {}, "restricted", "pod", "", "", ())),
        settings=SETTINGS,
        zones=(
            Zone(
                node=0,
                total={"cpu_milli": 2000, "memory_bytes": 3 * GIB},
                allocated={},
                available={"cpu_milli": 2000, "memory_bytes": 3 * GIB},
                capacity={"cpu_milli": 2000, "memory_bytes": 4 * GIB},
            ),
        ),
        pools=(Pool(0, 0, "0-1", "0-1"),),
        slots=slots,
        lost_cpus=(LostCpus("01aaaaaa-0000-7000-8000-000000000009", 1, "2"),),
    )


def slot(number: int, qos: QosClass, cpus: str = "", **changes: Any) -> SlotStatus:
    """Returns a slot of a QoS class; `changes` overrides fields of its assignment.

    Its cpu amount is that of `cpus`. Without cpus, it is half a cpu.
    """
    own = len(CpuSet.parse(cpus)) * 1000 or 500
    profile = ResourceProfile(cpu_milli=own, task_heap_memory_bytes=256 * MIB)
    values: dict[str, Any] = {
        "bind": BindPolicy.NONE,
        "exclusive": ExclusivePolicy.NONE,
        "numa": (),
        "memory_nodes": "",
        "pools": (),
        "notes": (),
    }
    return SlotStatus(
        allocation_id=f"01aaaaaa-0000-7000-8000-{number:012}",
        generation=1,
        job_id="01bbbbbb-0000-7000-8000-000000000001",
        executor_id="host-a",
        executor_address="127.0.0.1:7180",
        state=SlotState.ALLOCATED,
        profile=profile,
        memory_bytes=profile.memory_bytes,
        cpu_limit_milli=own,
        pids_max=4096,
        cpus=cpus,
        isolation=None,
        allocated_time=None,
        assignment=CpuAssignment(qos=qos, cpus=CpuSet.parse(cpus), **(values | changes)),
    )


def host(
    packages: int = 2, nodes: int = 1, cores: int = 8, threads: int = 2, caches: int = 4
) -> TopologyReport:
    """Returns the report of a regular host without slots.

    The sibling threads of a core have cpu numbers that are far apart, as on most x86 servers.

    Args:
        packages: number of packages.
        nodes: NUMA nodes of each package.
        cores: cores of each node.
        threads: threads of each core.
        caches: number of cores that share one L3 cache.
    """
    count = packages * nodes * cores
    made = [
        {
            "cpus": str(CpuSet(core + thread * count for thread in range(threads))),
            "package_index": core // cores // nodes,
            "numa_node_id": core // cores,
            "l3_index": core // caches,
            "kind": "",
        }
        for core in range(count)
    ]
    cpus = [
        Cpu(cpu, core, core // cores, core // cores // nodes, "")
        for core, each in enumerate(made)
        for cpu in CpuSet.parse(str(each["cpus"]))
    ]
    total = {"cpu_milli": 1000 * cores * threads, "memory_bytes": 64 * GIB}
    every = CpuSet(each.cpu for each in cpus)
    return TopologyReport(
        executor_id="host-a",
        topology={
            "cores": made,
            "numa_nodes": [
                {"numa_node_id": node, "memory_bytes": 64 * GIB} for node in range(packages * nodes)
            ],
        },
        cpus=tuple(sorted(cpus, key=lambda each: each.cpu)),
        announced=AnnouncedCpus(str(every), "", "", ()),
        now=None,
        settings=SETTINGS,
        zones=tuple(Zone(node, total, {}, total, total) for node in range(packages * nodes)),
        pools=_pools(tuple(cpus), CpuSet()),
        slots=(),
        lost_cpus=(),
    )


def with_slots(report: TopologyReport, *slots: SlotStatus) -> TopologyReport:
    """Returns the report with these slots; shared pools lose the dedicated cpus of the slots."""
    taken = CpuSet(cpu for each in slots for cpu in CpuSet.parse(each.cpus))
    return replace(report, slots=slots, pools=_pools(report.cpus, taken))


def _pools(cpus: tuple[Cpu, ...], taken: CpuSet) -> tuple[Pool, ...]:
    places = sorted({(each.package, each.node) for each in cpus})
    found = []
    for package, node in places:
        here = CpuSet(each.cpu for each in cpus if (each.package, each.node) == (package, node))
        found.append(Pool(package, node, str(here - taken), str(here)))
    return tuple(found)


BUSY = replace(
    with_slots(
        host(),
        slot(1, QosClass.LSE, "1-3,17-19", bind=BindPolicy.FULL_PCPUS),
        slot(
            2,
            QosClass.LSR,
            "8,9",
            bind=BindPolicy.SPREAD_BY_PCPUS,
            exclusive=ExclusivePolicy.PCPU_LEVEL,
            numa=(NodeShare(1, (("cpu_milli", 2000),)),),
            memory_nodes="1",
        ),
        slot(3, QosClass.LS),
        slot(4, QosClass.LS, pools=(PoolName(1, 1),)),
        slot(5, QosClass.BE),
    ),
    announced=AnnouncedCpus("0-31", "", "31", ()),
    now=CpusNow(
        offline_cpus="30",
        squeezed_cpus="4-7",
        host_policy_number=2,
        notes=("the kubelet's checkpoint is newer than its configuration",),
        kubelet=Kubelet(
            cpu_manager_policy="static",
            cpu_manager_options={"full-pcpus-only": "true", "distribute-cpus-across-numa": "true"},
            topology_manager_policy="restricted",
            topology_manager_scope="pod",
            memory_manager_policy="None",
            reserved_cpus="0",
            containers=(KubeletContainer("pod", "c", "12,28", {}),),
        ),
    ),
    settings=replace(SETTINGS, reserved_cpus="0,16", strictly_reserved_cpus="16"),
    lost_cpus=(LostCpus("01aaaaaa-0000-7000-8000-000000000001", 1, "30"),),
)
"""A host with two NUMA nodes on which cpus are in use in every possible way."""

"""A registered executor as text: its host, and its slots in their places.

Turns the topology that the resource manager tells back into the form that is drawn for detection;
what the registration does not carry is simply not drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrain.cpuset import CpuSet
from finegrain.topology import (
    Core,
    CpuKind,
    Gpu,
    GpuHealth,
    HostTopology,
    L3Group,
    Limits,
    NumaNode,
    Package,
)
from finegrain.topology_text import render_topology
from finegrain_cli.columns import amounts_text, profile_text

Data = Mapping[str, Any]


def executor_text(executor: Data) -> str:
    """The whole picture of one executor, by its JSON form with topology and slots."""
    state = str(executor["state"]) + (", draining" if executor["draining"] else "")
    lines = [
        f"{executor['executor_id']} ({state}) at {executor['address']}",
        f"total      {amounts_text(executor['total'])}",
        f"allocated  {amounts_text(executor['allocated'])}",
        f"available  {amounts_text(executor['available'])}",
    ]
    if executor["unreachable_reason"]:
        lines.insert(1, f"the resource manager cannot dial it: {executor['unreachable_reason']}")
    if executor["topology"]:
        lines += ["", render_topology(host_topology(executor["topology"]))]
    shared = executor["shared_cpus"] or "all"
    lines += ["", *_slots(executor["slot_list"] or (), shared)]
    return "\n".join(lines)


def host_topology(data: Data) -> HostTopology:
    """The host of a registration, in the model of detection."""
    cores = [(core, CpuSet.parse(core.get("cpus", ""))) for core in data.get("cores", ())]
    kinds = list(dict.fromkeys(core["kind"] for core, _ in cores if core.get("kind")))
    online = CpuSet.parse(data.get("online_cpus", ""))
    return HostTopology(
        online=online,
        allowed=CpuSet.parse(data.get("allowed_cpus", "")) or online,
        isolated=CpuSet.parse(data.get("isolated_cpus", "")),
        cores=tuple(
            Core(
                cpus=cpus,
                package=int(core.get("package_index", 0)),
                numa_node=_known(core.get("numa_node_id", 0)),
                l3_group=_known(core.get("l3_index", 0)),
                kind=kinds.index(core["kind"]) if core.get("kind") else None,
            )
            for core, cpus in cores
        ),
        packages=tuple(Package(cpus, None) for cpus in _joined(cores, "package_index")),
        l3_groups=tuple(L3Group(cpus, None) for cpus in _joined(cores, "l3_index")),
        cpu_kinds=tuple(
            CpuKind(
                kind, _union([cpus for core, cpus in cores if core.get("kind") == kind]), None, ""
            )
            for kind in kinds
        ),
        numa_nodes=tuple(
            NumaNode(
                id=int(node.get("numa_node_id", 0)),
                cpus=CpuSet.parse(node.get("cpus", "")),
                memory_bytes=int(node.get("memory_bytes", 0)) or None,
            )
            for node in data.get("numa_nodes", ())
        ),
        memory_total_bytes=int(data.get("memory_bytes", 0)) or None,
        gpus=tuple(_gpu(index, device) for index, device in enumerate(data.get("devices", ()))),
        limits=Limits(),
        warnings=tuple(data.get("warnings", ())),
    )


def _slots(slots: Sequence[Data], shared: str) -> list[str]:
    """Pinned slots at their cpus, the others in the shared pool."""
    pools: dict[str, list[Data]] = {}
    for slot in slots:
        pools.setdefault(slot["cpus"] or "", []).append(slot)
    if not pools:
        return [f"no slots (shared pool: CPUs {shared})"]
    lines = []
    for cpus, members in sorted(pools.items()):
        lines.append(f"CPUs {cpus}, pinned" if cpus else f"shared pool, CPUs {shared}")
        lines += [
            f"  slot {each['allocation_id']} ({profile_text(each['profile'])}) "
            f"job {each['job_id']} {each['state'] or ''}".rstrip()
            for each in members
        ]
    return lines


def _gpu(index: int, device: Data) -> Gpu:
    return Gpu(
        uuid=device.get("uuid", ""),
        index=index,
        minor=_known(device.get("minor", 0)),
        pci_bus_id=device.get("pci_address") or None,
        name=device.get("model", "unknown"),
        memory_bytes=int(device.get("memory_bytes", 0)) or None,
        health=GpuHealth.OK if not device.get("unavailable_reason") else GpuHealth.LOST,
        numa_node=_known(device.get("numa_node_id", 0)),
    )


def _joined(cores: Sequence[tuple[Data, CpuSet]], key: str) -> list[CpuSet]:
    """The cpus of each index from 0 on; an index of -1 is none."""
    count = max((int(core.get(key, 0)) for core, _ in cores), default=-1) + 1
    return [
        _union([cpus for core, cpus in cores if int(core.get(key, 0)) == index])
        for index in range(count)
    ]


def _union(sets: Sequence[CpuSet]) -> CpuSet:
    joined = CpuSet()
    for each in sets:
        joined |= each
    return joined


def _known(number: int) -> int | None:
    return None if number < 0 else int(number)

"""Draws a registered executor as text. The drawing shows the cpus of its host, and the cpus on
which its slots run.

This module arranges the parts, and lists slots in shared pools. `cpu_map.py` draws the cpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.devices.device import GPU
from finegrain.topology import Gpu, GpuHealth, HostTopology
from finegrain.topology_text import device_lines
from finegrain_cli.text.columns import amounts_text, profile_text
from finegrain_cli.text.cpu_map import Marks, ShortIds, drawing, legend, remarks, settings_lines

if TYPE_CHECKING:
    from finegrain_client.types.status import SlotStatus
    from finegrain_client.types.topology import Pool, TopologyReport

Data = Mapping[str, Any]

SLOTS_LISTED_MAX = 20
"""Maximum number of slots that are listed per pool. A pool can have thousands of slots. `finegrain
slots` lists all slots.
"""

_PoolKey = tuple[str, tuple[tuple[int, int], ...]]
"""Key of a slot: its QoS class, and the pair (package, node) of each pool in which the slot runs.

If the key has no pools, the slot runs in all pools of its class.
"""


def executor_text(executor: Data, report: TopologyReport) -> str:
    """Returns the whole text for one executor. The arguments are the executor's JSON form, and the
    report on the cpus of its host.
    """
    state = str(executor["state"]) + (", draining" if executor["draining"] else "")
    lines = [f"{executor['executor_id']} ({state}) at {executor['address']}"]
    if executor["unreachable_reason"]:
        lines.append(f"the resource manager cannot connect to it: {executor['unreachable_reason']}")
    lines += [
        f"{name:<10} {amounts_text(executor[name])}" for name in ("total", "allocated", "available")
    ]
    lines += settings_lines(report)
    marks = Marks.of(report)
    lines += ["", *drawing(report, marks)]
    if shown := legend(report, marks):
        lines += ["", *shown]
    lines += ["", *_pools(report)]
    lines += device_lines(_with_gpus(report.topology))
    warnings = [*report.topology.get("warnings", ()), *remarks(report)]
    lines += [f"warning: {each}" for each in warnings]
    return "\n".join(lines)


def _pools(report: TopologyReport) -> list[str]:
    """Lists slots without dedicated cpus, grouped by the pools in which they run."""
    # List both pools of the whole host, even if no slot runs in them.
    members: dict[_PoolKey, list[SlotStatus]] = {("LS", ()): [], ("BE", ()): []}
    jobs = ShortIds(each.job_id for each in report.slots)
    for slot in report.slots:
        if not slot.cpus:
            members.setdefault(_key(slot), []).append(slot)
    lines = []
    # List shared pools (LS) before best-effort pools.
    for key, slots in sorted(members.items(), key=lambda each: (each[0][0] != "LS", each[0])):
        qos, names = key
        pools = [each for each in report.pools if not names or (each.package, each.node) in names]
        nodes = ",".join(str(node) for _, node in names)
        title = "shared pool" if qos == "LS" else "best-effort pool"
        where = f" of NUMA node {nodes}" if names else ""
        cpus = union(CpuSet.parse(_cpus(each, qos)) for each in pools)
        lines.append(f"{title}{where}, cpus {cpus or 'none'}: {_count(len(slots))}")
        lines += [
            f"  slot {each.allocation_id} of job {jobs.of(each.job_id)}: "
            + profile_text(each.profile.to_dict())
            + ("" if each.state == "ALLOCATED" else f", {each.state or 'state unknown'}")
            for each in slots[:SLOTS_LISTED_MAX]
        ]
        if len(slots) > SLOTS_LISTED_MAX:
            lines.append(f"  and {len(slots) - SLOTS_LISTED_MAX} more")
    return lines


def _key(slot: SlotStatus) -> _PoolKey:
    assignment = slot.assignment
    if assignment is None:
        return "LS", ()
    qos = "BE" if assignment.qos == "BE" else "LS"
    return qos, tuple((each.package, each.node) for each in assignment.pools)


def _cpus(pool: Pool, qos: str) -> str:
    return pool.best_effort_cpus if qos == "BE" else pool.shared_cpus


def _count(slots: int) -> str:
    return "1 slot" if slots == 1 else f"{slots or 'no'} slots"


def _with_gpus(topology: Data) -> HostTopology:
    """Returns a topology that contains only the GPUs that the executor reported."""
    devices = (each for each in topology.get("devices", ()) if each.get("kind") == GPU)
    gpus = tuple(_gpu(index, device) for index, device in enumerate(devices))
    return HostTopology(online=EMPTY, allowed=EMPTY, cores=(), numa_nodes=(), gpus=gpus)


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


def _known(number: int) -> int | None:
    return None if number < 0 else int(number)

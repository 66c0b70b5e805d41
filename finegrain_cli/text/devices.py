"""Writes tables of devices and the matrix of their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from finegrain.devices.device import GPU_MEMORY, Device, DeviceLink, HostDevices
from finegrain.units import format_bytes
from finegrain_cli.text.columns import devices_text
from finegrain_cli.text.fit import ShortIds
from finegrain_cli.text.output import Column

Row = Mapping[str, Any]


def device_rows(executors: Sequence[Any]) -> list[dict[str, Any]]:
    """Returns one row for each device of `ExecutorDevices` values."""
    return [
        {
            "executor_id": each.executor_id,
            "fake": each.fake,
            **status.to_dict(),
            "links": _links_of(status.device, each),
        }
        for each in executors
        for status in each.devices
    ]


def _links_of(device: Device, executor: Any) -> list[dict[str, Any]]:
    """Returns the links of a device. Each link has the device at the other end, the number of
    NVLinks, and the path.
    """
    names = {each.device.uuid: each.device.name for each in executor.devices}
    found = []
    for link in executor.links:
        ends = (link.first_uuid, link.second_uuid)
        if device.uuid in ends:
            other = ends[1] if device.uuid == ends[0] else ends[0]
            name = names.get(other, "")
            found.append({"device": name, "uuid": other, "lanes": link.lanes, "path": link.path})
    return found


def _links(row: Row) -> str:
    """Returns the links of a device, grouped by kind of link.

    Example: "NV12 gpu1 gpu2, SYS gpu3".
    """
    found: dict[str, list[str]] = {}
    for each in row["links"]:
        kind = f"NV{each['lanes']}" if each["lanes"] else each["path"] or "?"
        found.setdefault(kind, []).append(each["device"] or each["uuid"])
    return ", ".join(" ".join([kind, *names]) for kind, names in found.items()) or "-"


def _shares(row: Row) -> str:
    """Returns the share of a device that each slot has. Example: "SLOT of job JOB: gpu-core 50,
    gpu-memory 20Gi".
    """
    return (
        "; ".join(
            f"{each['allocation_id']} of job {each['job_id']}: "
            + ", ".join(devices_text(each["amounts"]))
            for each in row["uses"]
        )
        or "-"
    )


def _health(row: Row) -> str:
    """Returns the health of a device, and the reason why no new slot gets the device. Example:
    "probing: it answers again".
    """
    problem, condition = str(row["problem"]), row["condition"] or {}
    health = condition.get("health", "healthy")
    if not problem:
        return "ok (fake)" if row["fake"] else "ok"
    # Add the problem of the device itself, because the text of a cordon replaces this problem.
    if condition.get("problem") and condition["problem"] not in problem:
        return f"{problem}; {health}: {condition['problem']}"
    return problem if health == "healthy" else f"{health}: {problem}"


def _measured(row: Row) -> str:
    """Returns the measured use of the device, followed by the measured use of each slot. Example:
    "12Gi, 80 %; SLOT 10Gi".
    """
    usage = row["usage"]
    if usage is None:
        return "-"
    slots = [f"{e['allocation_id']} {format_bytes(e['memory_bytes'])}" for e in usage["slots"]]
    total = f"{format_bytes(usage['memory_bytes'])}, {usage['busy_percent']} %"
    return "; ".join([total, *slots])


def _used(row: Row) -> str:
    """Returns allocated and total amounts: "50/100 gpu-core, 20Gi/40Gi gpu-memory"."""
    capacity, allocated = dict(row["device"]["capacity"]), row["allocated"]
    parts = []
    for name in sorted(capacity):
        shown = [
            format_bytes(each) if name == GPU_MEMORY else str(each)
            for each in (allocated.get(name, 0), capacity[name])
        ]
        parts.append(f"{shown[0]}/{shown[1]} {name}")
    return ", ".join(parts)


def _slots(row: Row) -> str:
    ids = [each["allocation_id"] for each in row["uses"]]
    return ", ".join(map(ShortIds(ids), ids)) or "-"


def _levels(row: Row) -> str:
    """Returns the levels of enforcement for a share of a device and for the whole device.

    Example: "gpu-core mps, whole kernel".
    """
    levels = row["device"]["levels"]
    return ", ".join(f"{name} {level}" for name, level in sorted(levels.items())) or "none"


def _node(row: Row) -> str:
    node = row["device"]["numa_node"]
    return "-" if node is None else str(node)


DEVICE_COLUMNS = (
    Column(
        "DEVICE",
        lambda r: f"{r['executor_id']}/{r['device']['type']}{r['device']['minor']}",
        shrinks=True,
    ),
    Column("MODEL", lambda r: r["device"]["model"] or "-", rank=4, shrinks=True),
    Column("NUMA", _node, rank=5),
    Column("HEALTH", _health, rank=1, shrinks=True),
    Column("ALLOCATED", _used, rank=2, shrinks=True),
    Column("SLOTS", _slots, rank=3, shrinks=True),
    Column("USED", _measured, wide=True),
    Column("LINKS", _links, wide=True),
    Column("SHARES", _shares, wide=True),
    Column("ENFORCED", _levels, wide=True),
    Column("UUID", lambda r: r["device"]["uuid"], wide=True),
    Column("PCI", lambda r: r["device"]["pci_address"] or "-", wide=True),
    Column(
        "DRIVER",
        lambda r: format_bytes(r["device"]["driver_bytes"]) if r["device"]["driver_bytes"] else "-",
        wide=True,
    ),
)


def offered_lines(host: HostDevices) -> list[str]:
    """Returns a line for each device of a host. The line has the amounts for slots, or the reason
    why slots cannot use the device.
    """
    lines = []
    for each in host.devices:
        amounts = ", ".join(
            f"{format_bytes(amount) if name == GPU_MEMORY else amount} {name}"
            for name, amount in each.capacity
        )
        place = "unknown" if each.numa_node is None else str(each.numa_node)
        state = amounts or "not offered by this executor"
        if each.problem:
            state = f"not usable: {each.problem}"
        model = f" {each.model}" if each.model else ""
        lines.append(f"  {each.name}{model}, NUMA node {place}, {each.uuid}: {state}")
    return lines


def link_matrix(devices: Sequence[Device], links: Sequence[DeviceLink]) -> str:
    """Returns the connections of a host's GPUs as a matrix, or an empty text if the host has fewer
    than two GPUs.

    NV12 means 12 bonded NVLinks. PIX, PXB, PHB, NODE and SYS name the nearest part of the PCIe bus
    that connects two GPUs. `nvidia-smi topo -m` uses the same words.
    """
    gpus = [each for each in devices if each.type == "gpu"]
    if len(gpus) < 2:
        return ""
    between = {frozenset((each.first_uuid, each.second_uuid)): each for each in links}
    rows = [["", *(each.name for each in gpus)]]
    for first in gpus:
        cells = [
            "X"
            if first is second
            else _link(first, second, between.get(frozenset((first.uuid, second.uuid))))
            for second in gpus
        ]
        rows.append([first.name, *cells])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _link(first: Device, second: Device, link: DeviceLink | None) -> str:
    if link is not None and link.lanes:
        return f"NV{link.lanes}"
    if link is not None and link.path:
        return link.path
    if first.pcie_group and first.pcie_group == second.pcie_group:
        return "PIX"
    if first.numa_node is None or second.numa_node is None:
        return "?"
    return "NODE" if first.numa_node == second.numa_node else "SYS"

"""Converts the helper's isolation report into the isolation and notes that users see.

A note is a sentence about a limit that is not enforced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from finegrain.devices.device import GPU, GPU_MEMORY, NO_DEVICES, DeviceShare, HostDevices
from finegrain.hugepages import kernel_limits, page_bytes
from finegrain.values.isolation import Isolation
from task_executor.engine.slots import SlotSpec
from task_executor.host.device_nodes import NO_NODES, DeviceNodes
from task_executor.host.helper_messages import IsolationReport

_MEANING = {
    "cpu": "cpu time is booked, but the kernel does not cap it",
    "cpuset": "tasks may run on any cpu",
    "memory": "memory is booked, but a task can take more than its slot",
    "pids": "the number of processes is not capped",
}
NO_HUGETLB = (
    "huge pages are booked, but a task can take more than its slot: the kernel has no hugetlb "
    "controller here"
)
DECLARED_ONLY = (
    "countable resources ({names}) are booked, but no devices are assigned to tasks or hidden "
    "from them: a task must find and choose its devices itself"
)
_AFFINITY = (
    "tasks start on their cpus, but could change them, and their memory may be on any NUMA node"
)
DECLARED = "declared"
"""Isolation of countable resources that are booked but not enforced on the host."""
VISIBLE_ONLY = "visible-only"
"""Isolation of devices that only environment variables name, so that nothing is enforced."""
DEVICES_VISIBLE_ONLY = (
    "tasks find their devices in environment variables, but nothing keeps them from other devices,"
    " or from more than their share"
)
SHARE_VISIBLE_ONLY = (
    "tasks can open only the devices of their slot, but nothing keeps them from more than their"
    " share of one"
)
ACCESS = "cgroup"
"""Access to device files is limited to those of the slot."""
OPEN_DEVICES = "tasks can open the device files of other slots: {problem}"
FILES_UNKNOWN = (
    "tasks of other slots can open {names}: the executor does not know the device files; name them"
    " in the configuration of the type (paths, or files in the output of its command)"
)
LEFT_OPEN = (
    "tasks of other slots can open {names}: the setting open_devices of the executor says so"
)
HOST_MEMORY = {
    "amd": "host memory that tasks take through the AMD driver (GTT) is not counted in the memory"
    " of their slot",
    "intel": "host memory that the Intel GPU driver pins for tasks is not counted in the memory of"
    " their slot",
    "nvidia": "host memory that tasks have the NVIDIA driver allocate (such as by cudaHostAlloc) is"
    " not counted in the memory of their slot",
}
"""What escapes the limit of a slot's memory, by the vendor of its devices."""
FAKE_DEVICES = "the devices are fake: no hardware is behind them, and nothing is enforced"
MEMORY_UNLIMITED = "the request names no GPU memory, so the slot may use all of its GPU's memory"
DEDICATED_CPUS = "cpus"
"""CPU isolation of a pinned slot: its dedicated cpus are the limit, and there is no quota."""


def isolation_of(
    report: IsolationReport,
    slot: SlotSpec | None = None,
    devices: HostDevices = NO_DEVICES,
    nodes: DeviceNodes = NO_NODES,
) -> Isolation:
    """Returns the isolation of one slot or, without `slot`, of the host.

    Args:
        report: what the helper enforces.
        slot: the slot.
        devices: of the host.
        nodes: the device files that the executor guards.
    """
    # Dedicated cpus are a limit only if a cgroup enforces them. A task can change its affinity.
    if slot is not None and slot.is_pinned and report.cpuset == "cgroup":
        report = replace(report, cpu=DEDICATED_CPUS)
    notes = notes_of(report)
    countable = ""
    if slot is not None and slot.profile.extended:
        unenforced = kernel_limits(slot.profile.extended) and report.hugepages == "none"
        notes += [NO_HUGETLB] if unenforced else []
        # The kernel limits only huge pages. Every other countable resource is only declared.
        names = [name for name, _ in slot.profile.extended if page_bytes(name) is None]
        notes += [DECLARED_ONLY.format(names=", ".join(names))] if names else []
        countable = DECLARED if names or unenforced else "hard"
    shares = slot.assignment.devices if slot is not None and slot.assignment is not None else ()
    access, more = _access(report, shares, devices, nodes)
    words, unlimited = _devices(shares, devices, is_closed=access == ACCESS)
    notes += [*more, *unlimited]
    return Isolation(
        cpu=report.cpu,
        cpuset=report.cpuset,
        memory=report.memory,
        pids=report.pids,
        kill=report.kill,
        driver=report.driver,
        notes=tuple(notes),
        countable=countable,
        device_access=access,
        **words,
    )


def _access(
    report: IsolationReport,
    shares: Sequence[DeviceShare],
    devices: HostDevices,
    nodes: DeviceNodes,
) -> tuple[str, list[str]]:
    """Returns whether device files are closed to other slots, and the notes about that."""
    if devices.fake or not (nodes.are_known or shares):
        return "", []
    if nodes.are_known and report.devices != ACCESS:
        return "none", [OPEN_DEVICES.format(problem=report.devices_problem)]
    notes = []
    left_open = [each for each in shares if each.type in nodes.open_types]
    unknown = [each for each in shares if each not in left_open and not nodes.of(each)]
    for found, note in ((left_open, LEFT_OPEN), (unknown, FILES_UNKNOWN)):
        if found:
            names = ", ".join(f"{each.type}{each.minor}" for each in found)
            notes.append(note.format(names=names))
    return "none" if notes else ACCESS, notes


def _devices(
    shares: Sequence[DeviceShare], devices: HostDevices, *, is_closed: bool
) -> tuple[dict[str, str], list[str]]:
    """Returns how a slot's devices are isolated, and the notes about that."""
    if not shares:
        return {}, []
    level = "none" if devices.fake else VISIBLE_ONLY
    known = {(each.type, each.uuid): each for each in devices.devices}
    found = [(share, known.get((share.type, share.uuid))) for share in shares]
    notes = []
    if devices.fake:
        notes.append(FAKE_DEVICES)
    elif not is_closed:
        notes.append(DEVICES_VISIBLE_ONLY)
    elif any(device is None or share.amounts != device.capacity for share, device in found):
        notes.append(SHARE_VISIBLE_ONLY)
    if not devices.fake:
        vendors = {device.vendor.lower() for _, device in found if device is not None}
        notes += [HOST_MEMORY[vendor] for vendor in sorted(vendors & HOST_MEMORY.keys())]
    words: dict[str, str] = {}
    if any(share.type == GPU for share in shares):
        words = {"gpu_core": level, "gpu_memory": level}
        if not all(dict(share.amounts).get(GPU_MEMORY) for share in shares if share.type == GPU):
            notes.append(MEMORY_UNLIMITED)
    if any(share.type != GPU for share in shares):
        words["devices"] = level
    return words, notes


def notes_of(report: IsolationReport) -> list[str]:
    """Returns one sentence for each dimension that is not enforced, with the reason and the fix."""
    why = f" ({report.reason})" if report.reason else ""
    fix = f"; {report.fix}" if report.fix else ""
    notes = [
        f"{meaning}{why}{fix}"
        for name, meaning in _MEANING.items()
        if getattr(report, name) == "none"
    ]
    if report.cpuset == "affinity":
        notes.append(f"{_AFFINITY}{why}{fix}")
    return notes

"""Converts the helper's isolation report into the isolation values and the notes that users see.

A note is a sentence about a limit that is not enforced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from finegrain.devices.device import GPU, GPU_MEMORY, NO_DEVICES, DeviceShare, HostDevices
from finegrain.devices.levels import KERNEL, MPS, VISIBLE_ONLY, WATCH
from finegrain.hugepages import kernel_limits, page_bytes
from finegrain.values.isolation import DeviceIsolation, Isolation
from task_executor.engine.slots import SlotSpec
from task_executor.host.device_nodes import DeviceNodes
from task_executor.host.helper_messages import IsolationReport
from task_executor.service.device_levels import (
    FILES_CLOSED,
    NO_ENFORCEMENT,
    DeviceEnforcement,
    words_of,
)

_MEANING = {
    "cpu": "CPU time is booked, but the kernel does not limit it",
    "cpuset": "tasks may run on any cpu",
    "memory": "memory is booked, but a task can use more than its slot has",
    "pids": "the number of processes is not limited",
}
NO_HUGETLB = (
    "huge pages are booked, but a task can use more than its slot has, because the kernel of this "
    "host has no hugetlb controller"
)
DECLARED_ONLY = (
    "countable resources ({names}) are booked, but no devices are assigned to tasks or hidden "
    "from tasks: a task must find and choose its devices itself"
)
_AFFINITY = (
    "tasks start on the cpus of their slot, but can change them, and their memory may be on any "
    "NUMA node"
)
DECLARED = "declared"
"""Isolation of countable resources that are booked but not enforced on the host."""
DEVICES_VISIBLE_ONLY = (
    "environment variables name the devices of the slot, but tasks can use other devices, or more"
    " than their share"
)
SHARE_VISIBLE_ONLY = (
    "tasks can open only the devices of their slot, but can use more than their share of {names}"
)
MEMORY_WATCHED = (
    "the driver can allocate more GPU memory than the slot's share: the executor measures the use"
    " once a second, and ends the tasks of the slot when two measurements are above the share"
)
UNDER_MPS = (
    "MPS limits each process separately, by variables that a program can change: several processes"
    " of the slot together, or one without the variables, can use more than its share of {names}"
)
MEASURED_BESIDES = (
    "; the memory is measured besides, and the tasks of the slot are ended when it is above the"
    " share twice"
)
NOT_LIMITED = "the kernel does not limit the memory of {names}: {problem}"
MANAGED_MEMORY = (
    "the driver's limit does not count memory that a task shares between GPU and host"
    " (cudaMallocManaged): use is measured besides, and the tasks of the slot are ended when it is"
    " above the share twice"
)
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
"""Notes on memory that the memory limit of a slot does not count, by vendor of the devices."""
FAKE_DEVICES = "the devices are fake: there is no such hardware, and no limit is enforced"
MEMORY_UNLIMITED = "the request names no GPU memory, so the slot may use all of its GPU's memory"
DEDICATED_CPUS = "cpus"
"""CPU isolation of a pinned slot: its dedicated cpus are the limit, and no quota is set."""


def isolation_of(
    report: IsolationReport,
    slot: SlotSpec | None = None,
    devices: HostDevices = NO_DEVICES,
    enforcement: DeviceEnforcement = NO_ENFORCEMENT,
) -> Isolation:
    """Returns the isolation of one slot or of the host.

    Args:
        report: the helper's isolation report.
        slot: the slot; None: the isolation of the host is returned.
        devices: the devices of the host.
        enforcement: the limits on the use of devices that the executor can enforce.
    """
    # A task can change its own cpu affinity. So dedicated cpus are a limit only if a cgroup
    # enforces them.
    if slot is not None and slot.is_pinned and report.cpuset == "cgroup":
        report = replace(report, cpu=DEDICATED_CPUS)
    notes = notes_of(report)
    countable = ""
    if slot is not None and slot.profile.extended:
        unenforced = kernel_limits(slot.profile.extended) and report.hugepages == "none"
        notes += [NO_HUGETLB] if unenforced else []
        # The kernel limits huge pages. It does not limit any other countable resource.
        names = [name for name, _ in slot.profile.extended if page_bytes(name) is None]
        notes += [DECLARED_ONLY.format(names=", ".join(names))] if names else []
        countable = DECLARED if names or unenforced else "hard"
    shares = slot.assignment.devices if slot is not None and slot.assignment is not None else ()
    access, more = _access(report, shares, devices, enforcement.nodes)
    levels = enforcement.of_slot(devices, shares, report, slot.key if slot is not None else None)
    notes += [*more, *_notes_on_devices(shares, levels, devices, is_closed=access == FILES_CLOSED)]
    notes += _notes_on_limits(slot, levels, devices, enforcement)
    words = words_of(levels)
    return Isolation(
        cpu=report.cpu,
        cpuset=report.cpuset,
        memory=report.memory,
        pids=report.pids,
        kill=report.kill,
        driver=report.driver,
        notes=tuple(notes),
        countable=countable,
        gpu_core=words["gpu_core"],
        gpu_memory=words["gpu_memory"],
        devices=words["devices"],
        device_access=access,
        device_levels=levels,
    )


def _access(
    report: IsolationReport,
    shares: Sequence[DeviceShare],
    devices: HostDevices,
    nodes: DeviceNodes,
) -> tuple[str, list[str]]:
    """Returns how access to device files is isolated, and the notes about this isolation."""
    if devices.fake or not (nodes.are_known or shares):
        return "", []
    if nodes.are_known and report.devices != FILES_CLOSED:
        return "none", [OPEN_DEVICES.format(problem=report.devices_problem)]
    notes = []
    left_open = [each for each in shares if each.type in nodes.open_types]
    unknown = [each for each in shares if each not in left_open and not nodes.of(each)]
    for found, note in ((left_open, LEFT_OPEN), (unknown, FILES_UNKNOWN)):
        if found:
            names = ", ".join(f"{each.type}{each.minor}" for each in found)
            notes.append(note.format(names=names))
    return "none" if notes else FILES_CLOSED, notes


def _notes_on_devices(
    shares: Sequence[DeviceShare],
    levels: Sequence[DeviceIsolation],
    devices: HostDevices,
    *,
    is_closed: bool,
) -> list[str]:
    """Returns one note for each limit on a slot's devices that is not enforced."""
    if not shares:
        return []
    if devices.fake:
        return [FAKE_DEVICES]
    notes = [] if is_closed else [DEVICES_VISIBLE_ONLY]
    found = [level for each in levels for level in each.levels]
    unlimited = sorted({name for name, level in found if level == VISIBLE_ONLY})
    if is_closed and unlimited:
        notes.append(SHARE_VISIBLE_ONLY.format(names=" and ".join(unlimited)))
    if any(level == WATCH for _, level in found):
        notes.append(MEMORY_WATCHED)
    if under_mps := sorted({name for name, level in found if level == MPS}):
        measured = MEASURED_BESIDES if GPU_MEMORY in under_mps else ""
        notes.append(UNDER_MPS.format(names=" and ".join(under_mps)) + measured)
    known = {(each.type, each.uuid): each.vendor.lower() for each in devices.devices}
    vendors = {known.get((each.type, each.uuid), "") for each in shares}
    notes += [HOST_MEMORY[vendor] for vendor in sorted(vendors & HOST_MEMORY.keys())]
    if not all(dict(share.amounts).get(GPU_MEMORY) for share in shares if share.type == GPU):
        notes.append(MEMORY_UNLIMITED)
    return notes


def _notes_on_limits(
    slot: SlotSpec | None,
    levels: Sequence[DeviceIsolation],
    devices: HostDevices,
    enforcement: DeviceEnforcement,
) -> list[str]:
    """Returns sentences for people: one for each reason why the memory of a GPU is not limited, and
    one for each kind of memory that the limit does not count.
    """
    known = {each.uuid: each for each in devices.devices}
    reasons = enforcement.not_limited(slot.key if slot is not None else None)
    # The level of a whole GPU follows from its closed device files.
    at_kernel = {each.uuid for each in levels if dict(each.levels).get(GPU_MEMORY) == KERNEL}
    mine = {each.uuid for each in levels} if slot is not None else known.keys()
    names: dict[str, list[str]] = {}
    for uuid, why in reasons.items():
        if uuid in mine - at_kernel and uuid in known:
            names.setdefault(why, []).append(known[uuid].name)
    notes = [NOT_LIMITED.format(names=", ".join(n), problem=why) for why, n in names.items()]
    shares = slot.assignment.devices if slot is not None and slot.assignment is not None else ()
    if any(
        share.uuid in at_kernel
        and share.amounts != known[share.uuid].capacity
        and known[share.uuid].vendor == "nvidia"
        for share in shares
    ):
        notes.append(MANAGED_MEMORY)
    return notes


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

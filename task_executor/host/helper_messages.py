"""Defines the front's types for the messages between front and helper.

The helper is privileged, so it does not import these types. It checks plain JSON instead
(`task_executor/helper/protocol.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrain.mapping.json_form import JsonCodec, JsonForm


@dataclass(frozen=True)
class SlotLimits:
    """The limits of one slot. A slot has one cgroup per (allocation_id, generation).

    Attributes:
        allocation_id: the allocation id of the slot.
        generation: the generation of the slot.
        cpu_milli: the booked CPU, in thousandths of a cpu.
        memory_bytes: the memory limit, a multiple of 64 KiB.
        cpu_limit_milli: the hard limit of CPU time. None means the same value as `cpu_milli`. -1
            means that there is no limit (pinned slots).
        cpus: the cpus that the slot can use, such as "0-3,8"; "": all cpus.
        mems: the memory nodes that the slot can use; "": all nodes.
        pids_max: the maximum number of processes; None: no limit.
        best_effort: True if the slot gets CPU time only while no other slot needs the CPU time.
        hugepages: the bytes of huge pages by page size ("2MB", "1GB"). The slot cannot use other
            page sizes.
        devices_open: lists of minor numbers ("0-3,8") by kind and major number ("c 195"). For each
            of these major numbers, tasks can open only the listed minor numbers.
        devices_closed: lists in the form of `devices_open`. For each of these major numbers, tasks
            cannot open the listed minor numbers. Tasks can open all devices whose major number is
            in neither field.
    """

    allocation_id: str
    generation: int
    cpu_milli: int
    memory_bytes: int
    cpu_limit_milli: int | None = None
    cpus: str = ""
    mems: str = ""
    pids_max: int | None = None
    best_effort: bool = False
    hugepages: Mapping[str, int] = field(default_factory=dict, hash=False)
    devices_open: Mapping[str, str] = field(default_factory=dict, hash=False)
    devices_closed: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class SlotPlace:
    """The cpus and memory nodes for one slot.

    The form of `cpus` and `mems` is as in `SlotLimits`.
    """

    allocation_id: str
    generation: int
    cpus: str
    mems: str = ""


@dataclass(frozen=True)
class SlotMemory:
    """The limits of one slot for memory of devices, in bytes; 0: no limit.

    A device is named by the UUID of an NVIDIA GPU, or by a region of the kernel's dmem controller.
    """

    allocation_id: str
    generation: int
    limits: Mapping[str, int]


@dataclass(frozen=True)
class TaskSpec:
    """A task that the helper should start.

    Attributes:
        task_id: the id of the task.
        allocation_id: the allocation id of its slot.
        generation: the generation of its slot.
        argv: the program and its arguments.
        env: the complete environment of the task.
        cwd: the working directory; None: a scratch directory, which is deleted with the task.
        uid: the user of the task; None: the configured task user.
        gid: the group of the task; None: the group of the configured task user.
        stdin: True if input can be written to the task.
        log_limit_bytes: the number of bytes that are stored of each output stream.
        timeout_ms: the longest run time; None if there is no limit.
        memory_limit_bytes: the memory limit of the task; None: only the limit of the slot applies.
        output_holder: the reader that must receive all output, so that no output is dropped; None
            if there is no such reader yet.
    """

    task_id: str
    allocation_id: str
    generation: int
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # values can be secrets
    cwd: str | None = None
    uid: int | None = None
    gid: int | None = None
    stdin: bool = False
    log_limit_bytes: int = 64 << 20
    timeout_ms: int | None = None
    memory_limit_bytes: int | None = None
    output_holder: str | None = None


@dataclass(frozen=True)
class TaskStarted:
    """The program runs as `pid`, or has ended already.

    The start time is in clock ticks since boot.
    """

    pid: int
    start_time_ticks: int | None  # None if the program ended before the time was read


@dataclass(frozen=True)
class IsolationReport:
    """The helper's report about how each dimension is enforced.

    Attributes:
        driver: v1, v2 or none.
        cpu: quota or none.
        cpuset: cgroup, affinity or none.
        memory: hard or none.
        pids: hard or none.
        kill: how the processes of a slot are killed: cgroup.kill, freezer or process tree.
        reason: the reason why a dimension is not enforced.
        fix: how to make the kernel enforce this dimension.
        hugepages: hard or none.
        devices: cgroup if device files can be closed to a slot, otherwise none.
        devices_problem: the reason why device files cannot be closed to a slot, and what to do.
    """

    driver: str
    cpu: str
    cpuset: str
    memory: str
    pids: str
    kill: str
    reason: str = ""
    fix: str = ""
    hugepages: str = "none"
    devices: str = "none"
    devices_problem: str = ""

    @property
    def complete(self) -> bool:
        """True if the kernel enforces every limit of a slot."""
        return (self.cpu, self.cpuset, self.memory, self.pids) == (
            "quota",
            "cgroup",
            "hard",
            "hard",
        )


@dataclass(frozen=True)
class HelperInfo:
    """Identity of a running helper, and the limits that it can enforce."""

    protocol_version: int
    executor_id: str
    pid: int
    boot_id: str
    uid: int
    isolation: IsolationReport
    config: str = ""  # digest of the configuration with which the helper was started


@dataclass(frozen=True)
class TaskFault:
    """The reason why a task did not end normally: a `finegrain.errors.Reason` and one sentence."""

    reason: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExitRecord:
    """The end of a task. The supervisor writes the record and syncs it before the end is
    reported.

    Exactly one of `exit_code`, `signal` and `error` is set. `oom_kills` counts processes of the
    task that the kernel killed because of memory. `oom_killed` is True if the task failed because
    of such a kill. `peak_memory_bytes` is the peak of the whole task if the kernel counts it.
    Otherwise it is the peak of the task's largest process. `*_dropped_bytes` count the output that
    was lost, because of the log limit or a full disk. `*_bytes` count the remaining output.
    """

    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    oom_kills: int = 0
    timed_out: bool = False
    peak_memory_bytes: int = 0
    cpu_usec: int = 0
    started_unix_ms: int = 0
    ended_unix_ms: int = 0
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    error: TaskFault | None = None


@dataclass(frozen=True)
class TaskRecord:
    """The helper's record of a task.

    `state` is running or exited. `pid` is 0 while the task is being started.
    """

    task_id: str
    allocation_id: str
    generation: int
    state: str
    pid: int
    start_time_ticks: int | None  # None if the program ended before the time was read
    directory: Path
    exit: ExitRecord | None


@dataclass(frozen=True)
class SlotState:
    """A slot on the host. `destroying` is True while its processes are being killed."""

    limits: SlotLimits
    destroying: bool


@dataclass(frozen=True)
class HelperState:
    """All slots and tasks that the helper knows. A restarted front adopts them."""

    slots: list[SlotState]
    tasks: list[TaskRecord]
    strangers: list[Stranger] = field(default_factory=list)


@dataclass(frozen=True)
class Stranger:
    """A control group in the folder of slots that belongs to no known slot.

    The helper has killed the processes of this group. The helper reports each such group once.
    """

    group: str
    pids: list[int]  # some processes of the group


@dataclass(frozen=True)
class SlotUsage:
    """The present counters of a slot.

    A counter is None if the kernel does not count it. This is the case with isolation none.
    """

    allocation_id: str
    generation: int
    memory_current_bytes: int | None = None
    memory_peak_bytes: int | None = None
    cpu_usec: int | None = None
    pids: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True)
class TaskUsage:
    """The present counters of a task. A counter is None if the kernel does not count it."""

    task_id: str
    memory_current_bytes: int | None = None
    memory_peak_bytes: int | None = None
    cpu_usec: int | None = None
    pids: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True)
class Usage:
    """The counters of all slots and running tasks."""

    slots: list[SlotUsage]
    tasks: list[TaskUsage]


@dataclass(frozen=True)
class KubeletFiles:
    """Contents of the files of a kubelet on this host.

    Attributes:
        mark: a text that changes whenever another field changes.
        found: False if the host has no kubelet.
        command: the arguments of the kubelet's process.
        texts: the texts of the files "cpu_manager_state", "memory_manager_state",
            "device-plugins/kubelet_internal_checkpoint" and "config". Drop-in files follow in their
            order, as "config/NAME".
        failures: the files that exist but could not be read. The key is the name of the file, and
            the value is the reason.
    """

    mark: str
    found: bool
    command: tuple[str, ...]
    texts: Mapping[str, str]
    failures: Mapping[str, str]


@dataclass(frozen=True)
class TaskExited:
    """A task and all its processes have ended."""

    task_id: str
    record: ExitRecord


@dataclass(frozen=True)
class TaskOom:
    """The kernel killed a process of this task because of memory. `TaskExited` follows when the
    task ends.
    """

    task_id: str


@dataclass(frozen=True)
class Reconnected:
    """The front has possibly missed events, and must call `inspect`."""


HelperEvent = TaskExited | TaskOom | Reconnected


FRAMES = JsonCodec(
    {
        Path: JsonForm(write=str, read=lambda path, _where: Path(path)),
        SlotState: JsonForm(inline="limits"),
    }
)
"""Encodes and decodes the JSON in frames. It ignores fields that this front does not know."""

_EVENTS: Mapping[str, type[TaskExited | TaskOom]] = {
    "task_exited": TaskExited,
    "task_oom": TaskOom,
}


def event(content: Mapping[str, Any]) -> HelperEvent | None:
    """Returns the decoded event; None if this front does not know the kind of event."""
    kind = _EVENTS.get(content["event"])
    return None if kind is None else FRAMES.from_json(kind, content)

"""Types of the messages between front and helper, as the front sees them.

The helper checks plain JSON instead (`task_executor/helper/protocol.py`), so that the privileged
process does not import these types.
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

    `cpu_limit_milli` is the hard cap: None caps at `cpu_milli`, -1 sets no cap (pinned slots).
    `memory_bytes` is a multiple of 64 KiB. `cpus` and `mems` are kernel lists ("0-3,8"); "" leaves
    them unrestricted. `pids_max` None sets no limit. `best_effort` slots get CPU time only when no
    other slot wants it. `hugepages` are bytes by page size, named as in the kernel ("2MB", "1GB");
    a size that is not named is not allowed. Minors of device files ("0-3,8") by kind and major
    ("c 195"): in a major of `devices_open` only these can be opened, in one of `devices_closed` all
    but these. All other majors are open.
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
    """The cpus and memory nodes to bind one slot to, as in `SlotLimits`."""

    allocation_id: str
    generation: int
    cpus: str
    mems: str = ""


@dataclass(frozen=True)
class TaskSpec:
    """One task to start.

    `cwd` None: a scratch directory, which is deleted with the task. `uid` and `gid` None: the
    configured task user. `timeout_ms` None: no limit. `env` is the complete environment.
    `log_limit_bytes` limits the stored output of each of stdout and stderr; the first bytes are
    kept.
    """

    task_id: str
    allocation_id: str
    generation: int
    argv: list[str]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # values may be secrets
    cwd: str | None = None
    uid: int | None = None
    gid: int | None = None
    stdin: bool = False
    log_limit_bytes: int = 64 << 20
    timeout_ms: int | None = None
    memory_limit_bytes: int | None = None  # None: none but the slot's


@dataclass(frozen=True)
class TaskStarted:
    """The program runs as `pid`, or has ended already.

    The start time is in clock ticks since boot.
    """

    pid: int
    start_time_ticks: int | None  # None: ended before it could be read


@dataclass(frozen=True)
class IsolationReport:
    """What is enforced, per dimension. `reason` and `fix` say why something is not, and what to do.

    `cpu` quota|none, `cpuset` cgroup|affinity|none, `memory` hard|none, `pids` hard|none,
    `hugepages` hard|none, `kill` cgroup.kill|freezer|process tree, `driver` v1|v2|none. `devices`
    cgroup|none: whether device files can be closed; `devices_problem`: why not, and the fix.
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
    config: str = ""  # a digest of the configuration that it was started with


@dataclass(frozen=True)
class TaskFault:
    """Why a task has no ordinary end: a `finegrain.errors.Reason` and one sentence."""

    reason: str
    message: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExitRecord:
    """How a task ended. Its shim writes and syncs it before the end is reported.

    Exactly one of `exit_code`, `signal`, `error` is set. `oom_kills` counts processes of the task
    that the kernel killed because of memory; `oom_killed` is True if the task failed because of
    that. Peak memory is that of the whole task if the kernel counts it, else of its largest
    process. `*_dropped_bytes` count output beyond the limit of the log.
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
    """A task as the helper knows it.

    `state` is running or exited; `pid` is 0 while the task is being started.
    """

    task_id: str
    allocation_id: str
    generation: int
    state: str
    pid: int
    start_time_ticks: int | None  # None: ended before it could be read
    directory: Path
    exit: ExitRecord | None


@dataclass(frozen=True)
class SlotState:
    """A slot on the host. `destroying`: its processes are being killed."""

    limits: SlotLimits
    destroying: bool


@dataclass(frozen=True)
class HelperState:
    """All slots and tasks of the helper, from disk and cgroups. A restarted front adopts them."""

    slots: list[SlotState]
    tasks: list[TaskRecord]
    strangers: list[Stranger] = field(default_factory=list)


@dataclass(frozen=True)
class Stranger:
    """A group in the folder of slots without a record. The helper has killed it; reported once."""

    group: str
    pids: list[int]  # some of its processes


@dataclass(frozen=True)
class SlotUsage:
    """What the kernel counts for a slot now; None if it does not count (isolation none)."""

    allocation_id: str
    generation: int
    memory_current_bytes: int | None = None
    memory_peak_bytes: int | None = None
    cpu_usec: int | None = None
    pids: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True)
class TaskUsage:
    """What the kernel counts for a task now; None if it does not count."""

    task_id: str
    memory_current_bytes: int | None = None
    memory_peak_bytes: int | None = None
    cpu_usec: int | None = None
    pids: int | None = None
    oom_kills: int | None = None


@dataclass(frozen=True)
class Usage:
    """What the kernel counts for all slots and running tasks."""

    slots: list[SlotUsage]
    tasks: list[TaskUsage]


@dataclass(frozen=True)
class KubeletFiles:
    """Contents of the files of a kubelet on this host.

    `texts` by name: "cpu_manager_state", "memory_manager_state",
    "device-plugins/kubelet_internal_checkpoint", "config", and "config/NAME" for drop-in files in
    their order. `failures`: why a file that exists could not be read. `found`
    False: there is no kubelet.
    """

    mark: str  # changes whenever another field changes
    found: bool
    command: tuple[str, ...]  # arguments of the kubelet's process
    texts: Mapping[str, str]
    failures: Mapping[str, str]


@dataclass(frozen=True)
class TaskExited:
    """A task and all its processes have ended."""

    task_id: str
    record: ExitRecord


@dataclass(frozen=True)
class TaskOom:
    """The kernel killed a process of this task because of memory. `TaskExited` follows."""

    task_id: str


@dataclass(frozen=True)
class Reconnected:
    """Events may have been missed: call `inspect`."""


HelperEvent = TaskExited | TaskOom | Reconnected


FRAMES = JsonCodec(
    {
        Path: JsonForm(write=str, read=lambda path, _where: Path(path)),
        SlotState: JsonForm(inline="limits"),
    }
)
"""Codec of the JSON in frames. Fields that this front does not know are ignored."""

_EVENTS: Mapping[str, type[TaskExited | TaskOom]] = {
    "task_exited": TaskExited,
    "task_oom": TaskOom,
}


def event(content: Mapping[str, Any]) -> HelperEvent | None:
    """Decodes an event; None for a kind that this front does not know."""
    kind = _EVENTS.get(content["event"])
    return None if kind is None else FRAMES.from_json(kind, content)

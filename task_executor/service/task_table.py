"""The tasks of this executor as its front knows them.

Decides where a task stands and who is woken by a change. Refuses to know how tasks are started and
how their output is read: the helper's records are the truth, this is what is told of them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrain.errors import NotFound, Reason, ResourceExhausted
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain.values.states import TaskState
from task_executor.engine.slots import SlotKey
from task_executor.host.helper_messages import ExitRecord, TaskFault

TASKS_MAX = 50_000
RUNNING_MIN = 200  # however small the executor
SHIM_BYTES = 3 << 20  # of a task's shim, measured; outside every slot, so it has to be bounded
SHIMS_SHARE = 20  # one part in so many of the executor's memory may go into shims


ENDED_STATES = frozenset({TaskState.EXITED, TaskState.FAILED})


@dataclass(slots=True)
class Task:
    """One task. What a restart needs comes first; the rest is learnt from the helper again."""

    task_id: str
    key: SlotKey
    job_id: str
    job_secret_sha256: str
    digest: str  # of the whole submission: the same id with other content is a conflict
    argv: tuple[str, ...]
    submit_time_ms: int
    submit_number: int  # order of submission
    cancelled: bool = False  # CancelTask, or its slot was freed, before it ended
    fault: TaskFault | None = None  # why it never ran
    # learnt
    state: TaskState = TaskState.STARTING
    pid: int = 0
    start_time_ms: int = 0
    directory: Path | None = None
    exit: ExitRecord | None = None
    slot_removed_at: float | None = None  # event loop time
    watchers: int = 0
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # no longer STARTING
    _wakers: set[asyncio.Event] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """Nothing about it will change any more."""
        return self.state in ENDED_STATES

    def wake(self) -> None:
        """Tells all watchers that something changed."""
        if self.state is not TaskState.STARTING:
            self.settled.set()
        for waker in self._wakers:
            waker.set()

    @contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """An event that is set at every change; the task is kept while it is watched."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        self.watchers += 1
        try:
            yield waker
        finally:
            self._wakers.discard(waker)
            self.watchers -= 1

    def to_dict(self) -> dict[str, Any]:
        """Returns what a restarted front needs, for the state directory. The environment stays
        out of it.
        """
        data: dict[str, Any] = _JSON.to_json(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Reads what `to_dict` wrote.

        Raises:
            InvalidArgument: something is missing or of the wrong kind.
        """
        task = _JSON.from_json(cls, data)
        if task.fault:
            task.state = TaskState.FAILED
            task.settled.set()
        return task


_LEARNT = "state pid start_time_ms directory exit slot_removed_at watchers settled _wakers"
_JSON = JsonCodec(
    {
        Task: JsonForm(inline="key", hidden=_LEARNT),
        TaskFault: JsonForm(as_list=True),
    }
)


class TaskTable:
    """All tasks by id and by slot."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._by_slot: dict[SlotKey, dict[str, Task]] = defaultdict(dict)
        self.outcomes: dict[str, int] = defaultdict(int)  # ended since the start, by outcome
        self.oom_kills = 0
        self.last_number = 0

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, task_id: str) -> Task | None:
        """The task, if it is known."""
        return self._tasks.get(task_id)

    def need(self, task_id: str) -> Task:
        """The task.

        Raises:
            NotFound: TASK_UNKNOWN.
        """
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(
                f"task {task_id!r} is not known here; it may have been forgotten with its slot",
                reason=Reason.TASK_UNKNOWN,
                details={"task_id": task_id},
            )
        return task

    def check_room(self, memory_bytes: int) -> None:
        """Whether an executor of this much memory takes one more task.

        Raises:
            ResourceExhausted: it keeps too many, or too many run.
        """
        running_max = max(RUNNING_MIN, memory_bytes // SHIMS_SHARE // SHIM_BYTES)
        if len(self) >= TASKS_MAX:
            why = f"this executor keeps {TASKS_MAX} tasks already; release slots that are done"
        elif len(self) >= running_max and self.running() >= running_max:
            why = f"{running_max} tasks run on this executor already; wait for some of them to end"
        else:
            return
        raise ResourceExhausted(why, details={"tasks": len(self)}, retry_after_s=5.0)

    def add(self, task: Task) -> None:
        """A new task."""
        self._tasks[task.task_id] = task
        self._by_slot[task.key][task.task_id] = task
        self.last_number = max(self.last_number, task.submit_number)

    def drop(self, task: Task) -> None:
        """Forgets a task."""
        self._tasks.pop(task.task_id, None)
        in_slot = self._by_slot.get(task.key)
        if in_slot is not None:
            in_slot.pop(task.task_id, None)
            if not in_slot:
                del self._by_slot[task.key]

    def of_slot(self, key: SlotKey) -> list[Task]:
        """The tasks of a slot in order of submission."""
        return list(self._by_slot.get(key, {}).values())

    def of_job(self, job_id: str) -> list[Task]:
        """The tasks of a job in order of submission."""
        return sorted((t for t in self if t.job_id == job_id), key=lambda t: t.submit_number)

    def running(self) -> int:
        """How many run or are being started."""
        return sum(not task.has_ended for task in self)

    def slots(self) -> Iterable[SlotKey]:
        """Keys of all slots that have tasks here."""
        return list(self._by_slot)

    # -- changes -----------------------------------------------------------------------------

    def started(self, task: Task, pid: int, start_time_ms: int, directory: Path | None) -> None:
        """Its program runs (or ran already)."""
        task.pid = pid
        task.start_time_ms = start_time_ms
        task.directory = directory or task.directory
        if task.state is TaskState.STARTING:
            task.state = TaskState.RUNNING
        task.wake()

    def failed(self, task: Task, fault: TaskFault) -> None:
        """It never ran."""
        if not task.has_ended:
            task.fault = fault
            task.state = TaskState.FAILED
            self.outcomes["failed"] += 1
            task.wake()

    def exited(self, task: Task, record: ExitRecord, *, count: bool = True) -> None:
        """It is over, with all its processes. A record that only has an error says it never ran,
        unless the task was lost on its way (TERMINATED): then it is told as killed.
        """
        if task.has_ended:
            return
        if record.error is not None and record.error.reason != Reason.TERMINATED:
            self.failed(task, record.error)
            return
        task.exit = record
        task.start_time_ms = record.started_unix_ms or task.start_time_ms
        task.state = TaskState.EXITED
        if count:
            self.outcomes[outcome_of(task, record)] += 1
            self.oom_kills += record.oom_kills
        task.wake()


def outcome_of(task: Task, record: ExitRecord) -> str:
    """One word for metrics and logs."""
    if record.oom_killed:
        return "oom_killed"
    if record.timed_out:
        return "timed_out"
    if task.cancelled:
        return "cancelled"
    if record.error is not None:
        return "lost"
    return "succeeded" if record.exit_code == 0 else "nonzero"

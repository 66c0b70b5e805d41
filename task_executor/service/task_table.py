"""Keeps the tasks of this executor, by id and by slot, with their states.

The service reports the states in this table. If the table and the helper's records differ, the
helper's records are right.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from finegrain.errors import NotFound, Reason, ResourceExhausted
from finegrain.mapping.json_form import JsonCodec, JsonForm
from finegrain.values.operators import OperatorStatus, OperatorTask, TaskOperator
from finegrain.values.states import TaskState
from finegrain.values.usage import DeviceUsage
from task_executor.engine.slots import SlotKey
from task_executor.host.helper_messages import ExitRecord, TaskFault

TASKS_MAX = 50_000
RUNNING_MIN = 200  # number of running tasks that every executor allows, even with little memory
SUPERVISOR_BYTES = 3 << 20  # memory of a supervisor with one task; it is no part of a slot
SUPERVISORS_SHARE = 20  # all supervisors together may use 1/20 of the executor's memory


ENDED_STATES = frozenset({TaskState.EXITED, TaskState.FAILED})


@dataclass(slots=True)
class Task:
    """One task. The executor saves the first fields for a restart. After a restart, the helper's
    record supplies the other fields.
    """

    task_id: str
    key: SlotKey
    job_id: str
    digest: str  # digest of the submission: the same task id with another digest is an error
    argv: tuple[str, ...]
    submit_time_ms: int
    submit_number: int  # tasks are numbered in the sequence of their submission
    cancelled: bool = False  # CancelTask or the freeing of its slot ended the task
    fault: TaskFault | None = None  # the reason why the task never ran
    ended_for: TaskFault | None = None  # the reason why the executor killed the task
    operator_task: OperatorTask | None = None  # the operators of a job graph that the task runs
    registered: tuple[TaskOperator, ...] = ()  # operators that the task has registered while it ran
    owner: str = ""  # identity of the job's owner; empty: an earlier version has saved the task
    # limit of this task, below the slot's limit; 0: only the slot's limit applies
    memory_limit_bytes: int = 0
    # sum of the operators' quotas at submission; part of `memory_limit_bytes`
    first_quota_bytes: int = 0
    # The fields below are not saved.
    is_recorded: bool = False  # True if this front has made the fields above durable
    state: TaskState = TaskState.STARTING
    pid: int = 0
    start_time_ms: int = 0
    directory: Path | None = None
    exit: ExitRecord | None = None
    slot_removed_at: float | None = None  # a time of the event loop
    watchers: int = 0
    # peak of the slot's use while the task ran, since this front started
    peak_gpu_memory_bytes: int = 0
    operators: tuple[OperatorStatus, ...] = ()
    # Set when the task is not STARTING any more.
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    _wakers: set[asyncio.Event] = field(default_factory=set)

    @property
    def has_ended(self) -> bool:
        """True if the task has ended. An ended task never changes again."""
        return self.state in ENDED_STATES

    @property
    def cause(self) -> TaskFault | None:
        """The reason why the executor killed the task; None: the executor did not kill the task, or
        the task ended successfully before the kill.
        """
        succeeded = self.exit is not None and self.exit.exit_code == 0
        return None if succeeded else self.ended_for

    def wake(self) -> None:
        """Notifies all watchers of a change."""
        if self.state is not TaskState.STARTING:
            self.settled.set()
        for waker in self._wakers:
            waker.set()

    @contextmanager
    def watched(self) -> Iterator[asyncio.Event]:
        """Yields an event that is set at every change. A watched task is kept longer than other
        tasks.
        """
        waker = asyncio.Event()
        self._wakers.add(waker)
        self.watchers += 1
        try:
            yield waker
        finally:
            self._wakers.discard(waker)
            self.watchers -= 1

    def to_dict(self) -> dict[str, Any]:
        """Returns the data that a restarted front needs, without the task's environment."""
        data: dict[str, Any] = _JSON.to_json(self)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Task:
        """Returns the task from the data that `to_dict` returned.

        Raises:
            InvalidArgument: a field is missing or has the wrong type.
        """
        task = _JSON.from_json(cls, data)
        # The helper has no record of a task that never ran. So restore the end of the task from
        # this data.
        if task.fault:
            task.state = TaskState.FAILED
            task.settled.set()
        return task


_LEARNT = (
    "is_recorded state pid start_time_ms directory exit slot_removed_at watchers operators settled"
    " _wakers peak_gpu_memory_bytes"
)
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
        self._running: set[str] = set()  # tasks that have not ended
        self.outcomes: dict[str, int] = defaultdict(int)  # number of ended tasks, by outcome
        self.oom_kills = 0
        self.on_end: Callable[[Task], None] = lambda _task: None  # called at the end of each task
        self.last_number = 0

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, task_id: str) -> Task | None:
        return self._tasks.get(task_id)

    def need(self, task_id: str) -> Task:
        """Returns the task.

        Raises:
            NotFound: TASK_UNKNOWN.
        """
        task = self._tasks.get(task_id)
        if task is None:
            raise NotFound(
                f"this executor has no task {task_id!r}; it may have been deleted with its slot",
                reason=Reason.TASK_UNKNOWN,
                details={"task_id": task_id},
            )
        return task

    def measured(self, usages: Iterable[DeviceUsage]) -> None:
        """Records the memory of GPUs that slots use now, for the tasks that run in them."""
        used: dict[SlotKey, int] = {}
        for usage in usages:
            for each in usage.slots:
                key = SlotKey(each.allocation_id, each.generation)
                used[key] = used.get(key, 0) + each.memory_bytes
        for key, memory_bytes in used.items():
            for task in self.of_slot(key):
                if not task.has_ended:
                    task.peak_gpu_memory_bytes = max(task.peak_gpu_memory_bytes, memory_bytes)

    def check_room(self, memory_bytes: int) -> None:
        """Checks that an executor with `memory_bytes` of memory is allowed to run one more task.

        Raises:
            ResourceExhausted: too many tasks are kept, or too many are running.
        """
        running_max = max(RUNNING_MIN, memory_bytes // SUPERVISORS_SHARE // SUPERVISOR_BYTES)
        if len(self) >= TASKS_MAX:
            why = (
                f"this executor keeps {TASKS_MAX} tasks already; release slots that are no longer "
                "needed"
            )
        elif self.running() >= running_max:
            why = f"{running_max} tasks run on this executor already; wait for some of them to end"
        else:
            return
        raise ResourceExhausted(why, details={"tasks": len(self)}, retry_after_s=5.0)

    def add(self, task: Task) -> None:
        """Adds a new task."""
        self._tasks[task.task_id] = task
        self._by_slot[task.key][task.task_id] = task
        if not task.has_ended:
            self._running.add(task.task_id)
        self.last_number = max(self.last_number, task.submit_number)

    def drop(self, task: Task) -> None:
        """Removes a task from the table."""
        self._tasks.pop(task.task_id, None)
        self._running.discard(task.task_id)
        in_slot = self._by_slot.get(task.key)
        if in_slot is not None:
            in_slot.pop(task.task_id, None)
            if not in_slot:
                del self._by_slot[task.key]

    def of_slot(self, key: SlotKey) -> list[Task]:
        """Returns the tasks of a slot, in order of submission."""
        return list(self._by_slot.get(key, {}).values())

    def oldest_idle(self, key: SlotKey, most: int) -> Iterator[Task]:
        """Yields ended tasks of a slot that no caller watches, the oldest first.

        Args:
            key: the slot.
            most: the number of tasks that the slot may have. If the slot has no more tasks, the
                method yields nothing.
        """
        tasks = self._by_slot.get(key, {})
        idle = (task for task in tasks.values() if task.has_ended and not task.watchers)
        return islice(idle, max(0, len(tasks) - most))

    def of_job(self, job_id: str) -> list[Task]:
        """Returns the tasks of a job, in order of submission. Cost: linear in all tasks."""
        return sorted((t for t in self if t.job_id == job_id), key=lambda t: t.submit_number)

    def running(self) -> int:
        """Returns the number of tasks that run or are being started."""
        return len(self._running)

    def slots(self) -> Iterable[SlotKey]:
        """Returns the keys of all slots that have tasks in this table."""
        return list(self._by_slot)

    # -- state changes -----------------------------------------------------------------------

    def started(self, task: Task, pid: int, start_time_ms: int, directory: Path | None) -> None:
        """Records that the task's program was started. The program has possibly ended already.

        Args:
            task: the task.
            pid: the process id of the program.
            start_time_ms: the time of the start, in milliseconds of the wall clock.
            directory: the directory of the task's logs; None: unchanged.
        """
        task.pid = pid
        task.start_time_ms = start_time_ms
        task.directory = directory or task.directory
        if task.state is TaskState.STARTING:
            task.state = TaskState.RUNNING
        task.wake()

    def failed(self, task: Task, fault: TaskFault) -> None:
        """Records that the task never ran."""
        if not task.has_ended:
            task.fault = fault
            task.state = TaskState.FAILED
            self._running.discard(task.task_id)
            self.outcomes["failed"] += 1
            self.on_end(task)
            task.wake()

    def exited(self, task: Task, record: ExitRecord, *, count: bool = True) -> None:
        """Records that the task and all its processes have ended.

        A record with an error usually means that the task never ran. There is one exception: the
        error TERMINATED means that the task was lost while it ran. The executor reports such a task
        as killed.

        Args:
            task: the task. If it has ended already, nothing changes.
            record: the helper's record of how the task ended.
            count: False if the counters of metrics must not change.
        """
        if task.has_ended:
            return
        if record.error is not None and record.error.reason != Reason.TERMINATED:
            self.failed(task, record.error)
            return
        task.exit = record
        task.start_time_ms = record.started_unix_ms or task.start_time_ms
        task.state = TaskState.EXITED
        self._running.discard(task.task_id)
        if count:
            self.outcomes[outcome_of(task, record)] += 1
            self.oom_kills += record.oom_kills
        self.on_end(task)
        task.wake()


def outcome_of(task: Task, record: ExitRecord) -> str:
    """Returns the outcome of a task in one word, for metrics and logs."""
    # Check this first: a task that was killed for memory was possibly cancelled, too.
    if record.oom_killed:
        return "oom_killed"
    if record.timed_out:
        return "timed_out"
    if task.cause is not None:
        return "over_share"
    if task.cancelled:
        return "cancelled"
    if record.error is not None:
        return "lost"
    return "succeeded" if record.exit_code == 0 else "nonzero"

"""Runs tasks in slots: starts, cancels, signals and deletes tasks, and writes their input.

Only the owner of a job may use the job's tasks, and must show a token that a resource manager has
signed. Administrators may also cancel, watch and list tasks. If a submission is repeated, no second
task starts. The helper creates the processes. An ended task is kept as long as its slot exists, and
for some time longer for late watchers. If a slot has run very many tasks, its oldest ended tasks
are deleted earlier.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Reason,
    Unavailable,
)
from finegrain.ids import check_id
from finegrain.logs import get_logger
from finegrain.resources import MEMORY_BYTES, MEMORY_PARTS
from finegrain.rpc.access import Caller
from finegrain.rpc.allocation_tokens import ShownToken
from finegrain.rpc.wire import check_amount
from finegrain.v1 import task_executor_pb2
from finegrain.v1.resource_manager_pb2 import AdminCall
from finegrain.values.isolation import Isolation
from task_executor.engine.slots import CarveState, Slot, SlotKey, SlotSpec
from task_executor.host.helper_messages import TaskFault, TaskSpec
from task_executor.options import TaskExecutorOptions
from task_executor.service.device_environment import (
    check_not_overridden,
    device_environment,
)
from task_executor.service.operators import operator_variables
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_requests import Submission, submission_of
from task_executor.service.task_table import Task
from task_executor.service.task_users import User, UserPolicy, task_environment

LINGER_S = 60.0  # an ended task is kept for this time after the end of its slot
# an ended task that is being watched is kept for this time after the end of its slot
LINGER_WATCHED_S = 600.0
ENDED_PER_SLOT_MAX = 1_000  # if a slot has more tasks, its oldest ended tasks are deleted
SETTLE_S = 20.0  # if a task is being started, a call waits at most this time for the start
INPUT_BYTES_MAX = 64 * 1024
INPUT_PAUSE_S_MIN, INPUT_PAUSE_S_MAX = 0.005, 0.2
HELPER_RETRY_S = 1.0

NEVER_RAN = frozenset(
    {
        Reason.COMMAND_NOT_FOUND,
        Reason.COMMAND_NOT_EXECUTABLE,
        Reason.CWD_UNAVAILABLE,
        Reason.USER_NOT_ALLOWED,
        Reason.LIMIT_TOO_SMALL,
        Reason.START_FAILED,
    }
)
"""Errors after which the task exists, in state FAILED. After any other error, the call fails and no
task exists.
"""

log = get_logger(__name__)


def _no_more(_spec: SlotSpec, _isolation: Isolation) -> dict[str, str]:
    return {}


class TaskRunner:
    """All operations on tasks.

    Args:
        keeper: the slots and tasks of this executor, the helper, and the state directory.
        options: the options of this executor.
        users: the users that tasks may run as.
        task_root: the helper's folder that contains the directories of all tasks.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        options: TaskExecutorOptions,
        users: UserPolicy,
        task_root: Path,
    ) -> None:
        self._keeper = keeper
        self._tasks = keeper.tasks
        self._helper = keeper.helper
        self._options = options
        self._users = users
        self._task_root = task_root
        self._starting: set[asyncio.Task[Any]] = set()
        self._closed = False
        # Returns additional environment variables of a slot's tasks.
        self.slot_environment: Callable[[SlotSpec, Isolation], dict[str, str]] = _no_more
        # Opens the socket of a task's slot for a user, and returns its path; None: no socket is
        # needed.
        self.open_socket: Callable[[Task, int], Awaitable[Path | None]] = _no_socket
        keeper.on_slot_removed = self.slot_removed

    # -- submit ------------------------------------------------------------------------------

    async def submit(self, request: task_executor_pb2.SubmitTaskRequest, shown: ShownToken) -> Task:
        """Starts a task, or finds the task that the same submission has started before.

        Returns:
            The task, in state RUNNING or an end state. If the program or the user does not exist,
            the task is FAILED (`NEVER_RAN`).

        Raises:
            InvalidArgument: the request is malformed.
            NotFound: ALLOCATION_UNKNOWN.
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
            AlreadyExists: the task id exists with other content or another owner.
            FailedPrecondition: STALE_GENERATION or SLOT_NOT_READY.
            ResourceExhausted: too many tasks.
            Unavailable: the executor is stopping, or the task could not be started or recorded.
        """
        submission = submission_of(request)
        # Check the token first, so that other jobs learn nothing from the errors below.
        owner = shown.check_slot(*submission.key)
        check_not_overridden(self._keeper.table.devices.host, submission.env)
        task = self._existing_task(submission, shown.caller)
        if task is None:
            if self._closed:
                raise Unavailable("this executor is stopping")
            slot = self.slot_of(submission.key, shown)
            _check_not_parked(slot)
            _check_memory_limit(submission, slot)
            self._make_room(submission.key)
            task = self._new_task(submission, slot, owner)
            self._keeper.operators.register_task(task)
            # Add the task before the first wait, so that a repeated submission finds it.
            self._tasks.add(task)
            # If the caller disconnects, the shield lets the start continue, so that no task is left
            # partly started.
            begun = asyncio.create_task(self._start_new(task, submission, slot))
            self._starting.add(begun)
            begun.add_done_callback(self._starting.discard)
            await asyncio.shield(begun)
        # A repeated submission waits until the first submission has ended.
        await task.settled.wait()
        # If the start failed, the task is no longer in the table.
        if self._tasks.get(task.task_id) is not task:
            raise Unavailable("the task could not be started; submit it again")
        # The first submission has written the task, but has possibly failed to make it durable.
        if not task.is_recorded:
            await self.store(task)
        return task

    def _existing_task(self, submission: Submission, caller: Caller) -> Task | None:
        task = self._tasks.get(submission.task_id)
        if task is None:
            return None
        digests = submission.digest, submission.earlier_digest
        if not caller.owns(task.owner) or task.digest not in digests:
            raise AlreadyExists(
                f"task {submission.task_id} exists with different content or another owner; "
                "choose a new task id",
                details={"task_id": submission.task_id},
            )
        return task

    def slot_of(self, key: SlotKey, shown: ShownToken) -> Slot:
        """Returns a slot that accepts tasks of the caller.

        Raises:
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
            NotFound: ALLOCATION_UNKNOWN.
            FailedPrecondition: STALE_GENERATION or SLOT_NOT_READY.
        """
        shown.check_slot(*key)
        latest = self._keeper.table.latest(key.allocation_id)
        details = {"allocation_id": key.allocation_id, "generation": key.generation}
        if latest is None or latest.state is CarveState.CARVING:
            raise NotFound(
                f"there is no slot {key.allocation_id} on this executor; the job's events show "
                "on which executor it is",
                reason=Reason.ALLOCATION_UNKNOWN,
                details=details,
            )
        known = latest.spec.generation
        if key.generation < known:
            raise FailedPrecondition(
                f"slot {key.allocation_id} is at generation {known}; generation {key.generation} "
                "is outdated",
                reason=Reason.STALE_GENERATION,
                details={**details, "known": known},
            )
        # A higher generation belongs to a later placement, whose order has not yet arrived at this
        # executor.
        if key.generation > known or latest.state is not CarveState.ALLOCATED:
            raise FailedPrecondition(
                f"slot {key.allocation_id} generation {key.generation} does not accept tasks "
                f"(generation {known} is {latest.state.value} here)",
                reason=Reason.SLOT_NOT_READY,
                details={**details, "state": latest.state.value},
            )
        return latest

    def _new_task(self, submission: Submission, slot: Slot, owner: str) -> Task:
        return Task(
            task_id=submission.task_id,
            key=slot.key,
            job_id=slot.spec.job_id,
            owner=owner,
            digest=submission.digest,
            argv=submission.argv,
            submit_time_ms=round(time.time() * 1000),
            submit_number=self._tasks.last_number + 1,
            directory=self._task_root / submission.task_id,
            operator_task=submission.operator_task,
            memory_limit_bytes=submission.memory_limit_bytes,
        )

    async def _start_new(self, task: Task, submission: Submission, slot: Slot) -> None:
        """Starts a task, and returns when the task is durable.

        The task is written before it starts. So if the front is killed, the next front knows the
        task's processes. The sync can end after the start: a power cut during the sync also ends
        the processes.
        """
        try:
            self._write(task)
            durable = self._keeper.task_lines.begin()
            user = self._users.resolve(submission.user)
            variables = operator_variables(
                task, self._keeper.operators, await self.open_socket(task, user.uid)
            )
            started = await self._start(task, self._spec_of(submission, slot, user, variables))
            self._tasks.started(task, started, round(time.time() * 1000), task.directory)
            log.debug("task_started", task_id=task.task_id, pid=started, **_ids(task))
        except FinegrainError as error:
            if error.reason not in NEVER_RAN:
                self._drop(task)
                raise
            self._tasks.failed(task, TaskFault(error.reason.value, error.message, error.details))
            await self._save_or_log(task)
            log.info("task_failed", task_id=task.task_id, reason=error.reason.value, **_ids(task))
            return
        except BaseException:
            self._drop(task)
            raise
        await self._await_durable(task, durable)

    def _spec_of(
        self, submission: Submission, slot: Slot, user: User, operators: Mapping[str, str]
    ) -> TaskSpec:
        table, spec = self._keeper.table, slot.spec
        return TaskSpec(
            task_id=submission.task_id,
            allocation_id=spec.allocation_id,
            generation=spec.generation,
            argv=list(submission.argv),
            env=task_environment(
                submission.env,
                user=user,
                slot=slot,
                task_id=submission.task_id,
                executor_id=self._keeper.identity.executor_id,
                # These are the cpus at the start of the task. They can change while the task runs.
                cpus=str(table.cpus.binding_of(spec).cpus),
                devices=device_environment(
                    table.devices.host,
                    spec.assignment,
                    slot.isolation.device_levels,
                    context_bytes=self._options.gpu_context_bytes,
                )
                | self.slot_environment(spec, slot.isolation),
                operators=operators,
            ),
            cwd=submission.cwd or None,
            uid=user.uid,
            gid=user.gid,
            stdin=submission.stdin,
            # The limit in the configuration has priority, because output fills the disk of the
            # host.
            log_limit_bytes=min(
                submission.output_limit_bytes or self._options.output_limit_bytes,
                self._options.output_limit_bytes,
            ),
            timeout_ms=submission.timeout_ms,
            memory_limit_bytes=submission.memory_limit_bytes or None,
            output_holder=submission.output_holder or None,
        )

    async def _start(self, task: Task, spec: TaskSpec) -> int:
        """Starts the task, and returns its pid.

        If the helper is unreachable, it is not known whether the task was started. The method then
        repeats the same call, which is safe and shows the result.
        """
        while True:
            try:
                return (await self._helper.start_task(spec)).pid
            except Unavailable as error:
                log.warning("task_start_delayed", task_id=task.task_id, error=error.message)
                # Without its slot, the task cannot start. So do not call the helper again.
                if self._keeper.table.get(task.key) is None:
                    raise
            await asyncio.sleep(HELPER_RETRY_S)

    def _drop(self, task: Task) -> None:
        self._tasks.drop(task)
        self._keeper.operators.withdraw(task)
        self._keeper.directory.tasks.forget(task.task_id)
        task.settled.set()
        task.wake()

    async def store(self, task: Task) -> None:
        """Writes a task, and returns when it is durable.

        Raises:
            Unavailable: the task could not be written.
        """
        self._write(task)
        await self._await_durable(task, self._keeper.task_lines.begin())

    def _write(self, task: Task) -> None:
        try:
            self._keeper.directory.tasks.put(task.task_id, task.to_dict())
        except OSError as error:
            raise self._not_recorded(error) from None

    async def _await_durable(self, task: Task, durable: asyncio.Future[None]) -> None:
        try:
            # Shield the sync, because other tasks wait for the same sync.
            await asyncio.shield(durable)
        except OSError as error:
            raise self._not_recorded(error) from None
        task.is_recorded = True

    def _not_recorded(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"the task could not be recorded in {self._keeper.directory.path}: "
            f"{error.strerror}; free some space there and submit again",
            reason=Reason.DISK_FULL,
        )

    async def _save_or_log(self, task: Task) -> None:
        try:
            await self.store(task)
        except Unavailable as error:
            log.error("task_not_recorded", task_id=task.task_id, error=error.message)

    # -- operations on tasks -----------------------------------------------------------------

    def need(
        self, task_id: str, shown: ShownToken, *, operators: bool = False, reads: bool = False
    ) -> Task:
        """Returns a task, if the caller may use it.

        Args:
            task_id: the id of the task.
            shown: the caller, and the rights that its token gives.
            operators: True if administrators (role `operator`) may also use the task.
            reads: True if the call changes nothing, so that any token of the job is enough.

        Raises:
            NotFound: TASK_UNKNOWN.
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
        """
        task = self._tasks.need(check_id("task_id", task_id))
        if operators and shown.caller.is_operator:
            return task
        if reads:
            shown.check_job(task.job_id)
        else:
            shown.check_slot(*task.key)
        # A new job can have the id of a deleted job, whose output is still kept.
        _check_owner(task.owner, shown.caller, f"task {task_id}")
        return task

    async def cancel(self, task: Task, grace_ms: int | None) -> None:
        """Starts to terminate a task, unless it has ended.

        Args:
            task: the task.
            grace_ms: the time between SIGTERM and SIGKILL, in milliseconds; None: the default.

        Raises:
            Unavailable: the task is still being started, or the helper is unreachable.
        """
        await self.await_start(task)
        if task.has_ended:
            return
        # Save the task before the kill, so that a restarted front still reports it as cancelled.
        if not task.cancelled:
            task.cancelled = True
            await self._save_or_log(task)
        grace_ms = self._options.task_kill_grace_ms if grace_ms is None else grace_ms
        await self._unless_ended(self._helper.kill_task(task.task_id, grace_ms))

    def note_admin_call(self, identity: str, method: str, changed: str) -> None:
        """Reports a change by an administrator to the resource manager, for its audit log."""
        call = AdminCall(identity=identity, method=method, object=changed)
        self._keeper.admin_calls.add(call)
        self._keeper.on_change()

    async def end_for(self, task: Task, fault: TaskFault) -> None:
        """Kills a task because the task broke a rule. The executor reports the end of the task with
        the reason.

        Args:
            task: the task.
            fault: the reason and the text that are reported.

        Raises:
            Unavailable: the task is still being started, or the helper is unreachable.
        """
        await self.await_start(task)
        if task.has_ended:
            return
        # Save the task before the kill, so that a restarted front still reports the reason.
        await self.note_reason(task, fault)
        await self._unless_ended(self._helper.kill_task(task.task_id, 0))

    async def note_reason(self, task: Task, fault: TaskFault) -> None:
        """Records and saves why the executor is about to end a task, unless the task has ended."""
        if task.ended_for is None and not task.has_ended:
            task.ended_for = fault
            await self._save_or_log(task)

    async def signal(self, task: Task, signum: int) -> None:
        """Sends a signal to a task's process group, unless the task has ended.

        Raises:
            InvalidArgument: there is no such signal.
            Unavailable: the task is still being started.
        """
        if not 1 <= signum <= 64:
            raise InvalidArgument("signal", signum, "1 to 64")
        await self.await_start(task)
        if not task.has_ended:
            await self._unless_ended(self._helper.signal_task(task.task_id, signum))

    async def await_start(self, task: Task) -> None:
        """Waits until the start of a task has succeeded or failed.

        Raises:
            Unavailable: the start takes longer than `SETTLE_S` seconds.
        """
        try:
            async with asyncio.timeout(SETTLE_S):
                await task.settled.wait()
        except TimeoutError:
            raise Unavailable(f"task {task.task_id} is still being started; try again") from None

    async def _unless_ended(self, call: Any) -> None:
        try:
            await call
        except FinegrainError as error:
            if error.reason not in (Reason.TASK_ENDED, Reason.TASK_UNKNOWN):
                raise

    async def write_input(
        self, requests: AsyncIterator[task_executor_pb2.WriteTaskInputRequest], shown: ShownToken
    ) -> int:
        """Writes to a task's standard input.

        Returns:
            The number of bytes that the task has accepted in total.

        Raises:
            InvalidArgument: a message is malformed, or the first message names no task.
            NotFound: TASK_UNKNOWN.
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
        """
        task: Task | None = None
        accepted = 0
        async for request in requests:
            if task is None:
                task = self.need(request.task_id, shown)
                await self.await_start(task)
            elif request.task_id not in ("", task.task_id):
                raise InvalidArgument("task_id", request.task_id, f"{task.task_id}, or empty")
            check_amount("offset", request.offset)
            if len(request.data) > INPUT_BYTES_MAX:
                expected = f"at most {INPUT_BYTES_MAX} bytes"
                raise InvalidArgument("data", f"{len(request.data)} bytes", expected)
            accepted = await self._write_chunk(task, request.offset, request.data, eof=request.eof)
        if task is None:
            raise InvalidArgument("task_id", "", "a first message that names the task")
        return accepted

    async def _write_chunk(self, task: Task, offset: int, data: bytes, *, eof: bool) -> int:
        """Writes `data` completely, as fast as the task reads. Returns the number of bytes that the
        task has accepted in total.
        """
        end, pause_s = offset + len(data), INPUT_PAUSE_S_MIN
        while True:
            accepted = await self._helper.write_input(task.task_id, offset, data, eof)
            if accepted >= end:
                return accepted
            # While the task reads, the next write follows at once. If the task does not read, the
            # pause grows.
            pause_s = (
                INPUT_PAUSE_S_MIN if accepted > offset else min(pause_s * 2, INPUT_PAUSE_S_MAX)
            )
            data, offset = data[max(accepted - offset, 0) :], max(accepted, offset)
            await asyncio.sleep(pause_s)

    async def hold_output(self, task: Task, holder: str, stdout: int, stderr: int) -> int:
        """Makes a reader the holder of a task's output, or renews its hold; see WatchTaskRequest.

        Args:
            task: the task. If it has ended, nothing happens: all its output is in the log.
            holder: the id of the reader.
            stdout: the reader has received all bytes of stdout before this position.
            stderr: the reader has received all bytes of stderr before this position.

        Returns:
            The limit of unacknowledged bytes for each stream: at this limit, the task must wait. 0:
            the task has ended, or cannot wait.

        Raises:
            AlreadyExists: another reader holds the output.
            Unavailable: the helper or the task's supervisor does not answer.
        """
        await self.await_start(task)
        if task.has_ended:
            return 0
        try:
            return await self._helper.hold_output(task.task_id, holder, stdout, stderr)
        except InvalidArgument:
            # The task was started by an earlier version of finegrain, which cannot hold output. So
            # the task never waits.
            log.debug("output_not_held", task_id=task.task_id)
        except FinegrainError as error:
            if error.reason not in (Reason.TASK_ENDED, Reason.TASK_UNKNOWN):
                raise
        return 0

    def of_job(self, job_id: str, shown: ShownToken) -> list[Task]:
        """Returns the tasks of a job, if the caller owns the job or is an administrator.

        Raises:
            PermissionDenied: TOKEN_REFUSED or NOT_OWNER.
        """
        tasks, caller = self._tasks.of_job(check_id("job_id", job_id)), shown.caller
        if caller.is_operator:
            return tasks
        shown.check_job(job_id)
        # Leave out tasks without an owner, which an earlier version has saved.
        owned = [task for task in tasks if caller.owns(task.owner)]
        if tasks and not owned:
            _check_owner(tasks[0].owner, caller, f"job {job_id}")
        return owned

    # -- deletion ----------------------------------------------------------------------------

    def slot_removed(self, key: SlotKey) -> None:
        """Records the end of a slot, whose tasks are deleted some time later."""
        now = asyncio.get_running_loop().time()
        for task in self._tasks.of_slot(key):
            task.slot_removed_at = now
        self._keeper.operators.slot_removed(key)

    def _make_room(self, key: SlotKey) -> None:
        """Checks that one more task is allowed.

        If the slot has too many tasks, the method marks the oldest ended tasks for deletion.

        Raises:
            ResourceExhausted: there are too many tasks.
        """
        total = self._keeper.table.share.total
        self._tasks.check_room(sum(total.get(name, 0) for name in (MEMORY_BYTES, *MEMORY_PARTS)))
        # Watched tasks are kept. If the task of a watcher were deleted, the watcher would lose its
        # stream.
        for task in self._tasks.oldest_idle(key, ENDED_PER_SLOT_MAX - 1):
            # The value 0 is far in the past, so the next sweep deletes the task.
            task.slot_removed_at = 0.0

    def overdue(self, now: float) -> list[Task]:
        """Returns the ended tasks that must be deleted at `now`, in event loop time."""
        return [
            task
            for task in self._tasks
            if task.slot_removed_at is not None
            and task.has_ended
            and now - task.slot_removed_at > (LINGER_WATCHED_S if task.watchers else LINGER_S)
        ]

    async def forget_overdue(self) -> None:
        """Deletes the tasks that `overdue` returns, including their files."""
        for task in self.overdue(asyncio.get_running_loop().time()):
            # Call the helper first. If the call fails, the task stays, and the next sweep tries
            # again.
            await self._helper.forget_task(task.task_id)
            self._drop(task)

    async def close(self) -> None:
        """Rejects new tasks, and waits at most one second for tasks that are being started."""
        self._closed = True
        if self._starting:
            await asyncio.wait(self._starting, timeout=1.0)


async def _no_socket(_task: Task, _uid: int) -> Path | None:
    return None


def _check_not_parked(slot: Slot) -> None:
    """Raises FailedPrecondition if the slot has given up its GPUs, or is being parked or unparked.

    Other slots possibly have the GPUs of this slot already, and a process that starts now would not
    be parked.
    """
    if slot.spec.is_parked or slot.is_moving:
        name = slot.spec.allocation_id
        raise FailedPrecondition(
            f"slot {name} is parked and has no GPU; unpark it before it gets tasks",
            reason=Reason.SLOT_NOT_READY,
            details={"allocation_id": name, "state": "PARKED"},
        )


def _check_memory_limit(submission: Submission, slot: Slot) -> None:
    if submission.memory_limit_bytes > slot.spec.memory_bytes:
        expected = f"at most {slot.spec.memory_bytes}, the memory of the slot"
        raise InvalidArgument("memory_limit_bytes", submission.memory_limit_bytes, expected)


def _check_owner(owner: str, caller: Caller, what: str) -> None:
    if not caller.owns(owner):
        raise PermissionDenied(
            f"{what} belongs to the job of another identity than {caller.name}; use the"
            " credentials with which the job was registered",
            reason=Reason.NOT_OWNER,
            details={"identity": caller.name},
        )


def _ids(task: Task) -> dict[str, Any]:
    return {
        "allocation_id": task.key.allocation_id,
        "generation": task.key.generation,
        "job_id": task.job_id,
    }

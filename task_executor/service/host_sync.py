"""Reconciles the executor's state with the slots and tasks on the host.

The front reconciles at its start, and when it has possibly missed events. The helper knows which
slots and tasks exist on the host. The checkpoint knows which of these slots and tasks belong to
this executor. The front adopts known slots and tasks, destroys unknown slots and tasks, reports
missing ones as broken, and completes interrupted resizes.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Iterable
from signal import SIGKILL, SIGTERM

from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.logs import get_logger
from finegrain.v1.identity_pb2 import EpochProof
from finegrain.values.states import TaskState
from task_executor.engine.slots import CarveState, EndedSlot, Slot, SlotKey, SlotSpec
from task_executor.host.helper_messages import (
    HelperState,
    Reconnected,
    SlotLimits,
    TaskExited,
    TaskFault,
    TaskOom,
    TaskRecord,
)
from task_executor.service.checkpoint import SavedState
from task_executor.service.device_levels import FILES_CLOSED
from task_executor.service.resizing import finish_resizes
from task_executor.service.slot_keeper import SlotKeeper
from task_executor.service.task_runner import TaskRunner
from task_executor.service.task_table import Task

SWEEP_S = 5.0  # pause between periodic checks
SWEEPS_PER_RESYNC = 12  # every twelfth sweep writes the cpus of all slots again
DESTROY_S_MAX = 5.0  # maximum time that a start waits for unknown slots to be destroyed

log = get_logger(__name__)


async def recover(keeper: SlotKeeper, saved: SavedState) -> None:
    """Rebuilds the slot table and the task table from the checkpoint and the helper's records.

    The executor must not register before this function has ended. After a reboot of the host, the
    earlier slots do not exist any more, and the function reports them as ended. If a slot was being
    freed, freeing continues.

    Args:
        keeper: the slots of this executor, with an empty slot table.
        saved: the content of the checkpoint.
    """
    # Stage 1: restore the epoch and the report numbers. Commands and reports from before this start
    # then count as older.
    keeper.fence.raise_epoch(saved.rm_epoch)
    keeper.epoch_proof = EpochProof.FromString(base64.b64decode(saved.epoch_proof))
    keeper.starts = saved.starts + 1
    keeper.denials = saved.denials
    keeper.reports.start_numbering(keeper.starts)
    for ended in saved.ended:
        keeper.reports.ended(ended)
    # Apply the saved settings of an administrator at once, even if no RM is reachable yet.
    keeper.table.update_conditions(operator_policy=saved.policy, policy_number=saved.policy_number)
    # Stage 2: compare the checkpoint with the host, and adopt the slots that are in both.
    state = await keeper.helper.inspect()
    on_host = {_slot_key(each.limits) for each in state.slots}
    # If the host has rebooted, report its slots as missing, and not as broken. The job can then use
    # this host when it restarts the work.
    rebooted = saved.boot_id not in ("", keeper.identity.boot_id)
    why_missing = Reason.SLOT_MISSING if rebooted else Reason.SLOT_BROKEN
    for slot in saved.slots:
        _adopt(keeper, slot, on_host, why_missing)
    # Adopt tasks after slots: if the slot of a task was not adopted, the front later deletes the
    # task.
    _adopt_tasks(keeper, state)
    keeper.operators.adopt(saved.operators)
    # Stage 3: remove slots and tasks that are on the host but not in the checkpoint.
    await _destroy_unknown_slots(keeper, state)
    await _forget_unknown_tasks(keeper, state)
    # Stage 4: complete the operations that the restart interrupted. It is not known on which cpus
    # slots run now. So write the cpus of all slots again before a resize is completed.
    await keeper.cpu_bindings.resync()
    await finish_resizes(keeper, [each.limits for each in state.slots], _specs(keeper))
    for slot in list(keeper.table):
        if slot.state is CarveState.FREEING:
            keeper.begin_teardown(slot.key, grace_ms=keeper.default_grace_ms)
    for what in keeper.directory.damage:
        log.error("state_damaged", damage=what, path=str(keeper.directory.path))
    keeper.directory.damage.clear()
    # Save the new count of starts, so that the next start uses other report numbers.
    await keeper.save_or_log()
    log.info("recovered", slots=len(keeper.table), tasks=len(keeper.tasks))


def _adopt(keeper: SlotKeeper, slot: Slot, on_host: set[SlotKey], why_missing: Reason) -> None:
    """Adopts a saved slot if the slot is on the host. Otherwise reports the slot as ended.

    The function does not report a missing slot if the RM had already ordered to free the slot.
    """
    if slot.key in on_host:
        keeper.table.adopt(slot)
        keeper.ports.adopt(slot.key, slot.isolation.ports)
    elif slot.state is CarveState.ALLOCATED or slot.end_reason:
        reason = slot.end_reason or why_missing.value
        keeper.reports.ended(EndedSlot(slot.key, reason))
        log.warning(
            "slot_missing",
            allocation_id=slot.spec.allocation_id,
            generation=slot.spec.generation,
            reason=reason,
        )


def _adopt_tasks(keeper: SlotKeeper, state: HelperState) -> None:
    records = {record.task_id: record for record in state.tasks}
    now = asyncio.get_running_loop().time()
    for task_id, content in keeper.directory.tasks.saved().items():
        try:
            task = Task.from_dict(content)
        except InvalidArgument as error:
            log.error("saved_task_unreadable", error=error.message)
            continue
        record = records.get(task.task_id)
        if record is None and not task.has_ended:
            # The caller never got an answer to this submission. The caller submits the task again,
            # and the new submission starts the task.
            keeper.directory.tasks.forget(task_id)
            continue
        slot = keeper.table.get(task.key)
        if slot is None:
            task.slot_removed_at = now
        if slot is None or slot.state is CarveState.FREEING:
            task.cancelled = task.cancelled or _ended_with_its_slot(record)
        keeper.tasks.add(task)
        if record is not None:
            _adopt_record(keeper, task, record)


def _ended_with_its_slot(record: TaskRecord | None) -> bool:
    """Returns True if the task ended because its slot ended. The caller knows that the slot is
    being freed or no longer exists.
    """
    if record is None or record.exit is None:
        # Without a record, it is not known how the task ended. The most likely cause is the end of
        # its slot.
        return True
    how = record.exit
    return how.signal in (SIGTERM, SIGKILL) and not (how.oom_killed or how.timed_out)


def _adopt_record(keeper: SlotKeeper, task: Task, record: TaskRecord) -> None:
    """Applies the helper's record of a task."""
    task.directory = record.directory
    if record.exit is not None:
        task.pid = task.pid or record.pid
        keeper.tasks.exited(task, record.exit)
    # The checkpoint does not contain the states of tasks, so a running task is STARTING after a
    # restart.
    elif record.pid and task.state is TaskState.STARTING:
        keeper.tasks.started(task, record.pid, task.submit_time_ms, record.directory)


async def _destroy_unknown_slots(keeper: SlotKeeper, state: HelperState) -> None:
    """Destroys slots that are not in the slot table, and logs other unknown control groups."""
    for stranger in state.strangers:
        log.error("unknown_group_killed", group=stranger.group, pids=stranger.pids)
    everything = [each.limits for each in state.slots]
    known = keeper.own_slots
    unknown = [
        each
        for each in everything
        if keeper.table.get(_slot_key(each)) is None and _slot_key(each) not in known
    ]
    for each in unknown:
        log.warning("unknown_slot", allocation_id=each.allocation_id, generation=each.generation)
    await keeper.destroy_unknown(unknown, DESTROY_S_MAX)


async def _forget_unknown_tasks(keeper: SlotKeeper, state: HelperState) -> None:
    """Ends and deletes tasks that are not in the checkpoint. The slots of these tasks do not exist,
    or are being destroyed.
    """
    for record in state.tasks:
        is_own = any(record.task_id.startswith(key.allocation_id) for key in keeper.own_slots)
        if keeper.tasks.get(record.task_id) is None and not is_own:
            log.warning("unknown_task_ended", task_id=record.task_id)
            try:
                if record.exit is None:
                    await keeper.helper.kill_task(record.task_id)
                await _forget_when_ended(keeper, record.task_id)
            except FinegrainError as error:
                log.error("unknown_task_not_ended", task_id=record.task_id, error=error.message)


async def _forget_when_ended(keeper: SlotKeeper, task_id: str) -> None:
    for _ in range(100):
        try:
            await keeper.helper.forget_task(task_id)
        except FinegrainError as error:
            # The task needs a moment to end after the kill.
            if error.reason is not Reason.SLOT_NOT_READY:
                raise
        else:
            return
        await asyncio.sleep(0.05)


def _specs(keeper: SlotKeeper) -> dict[SlotKey, SlotSpec]:
    return {slot.key: slot.spec for slot in keeper.table}


def _slot_key(limits: SlotLimits) -> SlotKey:
    return SlotKey(limits.allocation_id, limits.generation)


class HostSync:
    """Reconciles the executor's state with the host while the front runs.

    Args:
        keeper: the slots of this executor.
        runner: the runner of this executor's tasks.
        refresh_host: a function that reads the host's cpus and the kubelet's state again.
        limit_again: a function that sets the limits of devices of all slots again.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        runner: TaskRunner,
        refresh_host: Callable[[], Awaitable[None]],
        limit_again: Callable[[], Awaitable[None]],
    ) -> None:
        self._keeper = keeper
        self._runner = runner
        self._refresh_host = refresh_host
        self._limit_again = limit_again

    async def follow_events(self) -> None:
        """Applies events of the helper, until the task is cancelled."""
        async for event in self._keeper.helper.events():
            match event:
                case TaskExited():
                    self._exited(event)
                case TaskOom():
                    log.warning("task_out_of_memory", task_id=event.task_id)
                case Reconnected():
                    log.warning("helper_reconnected")
                    await self.compare()

    def _exited(self, event: TaskExited) -> None:
        task = self._keeper.tasks.get(event.task_id)
        if task is None:
            return
        if task.state is TaskState.STARTING and event.record.error is not None:
            return  # the answer to `start_task` has the reason
        self._keeper.tasks.exited(task, event.record)
        log.info(
            "task_exited",
            task_id=task.task_id,
            allocation_id=task.key.allocation_id,
            job_id=task.job_id,
            exit_code=event.record.exit_code,
            signal=event.record.signal,
            oom_killed=event.record.oom_killed,
            timed_out=event.record.timed_out,
            cancelled=task.cancelled,
        )

    async def compare(self) -> None:
        """Reconciles after missed events: finds ended tasks, missing slots and unknown slots.

        The method reads the tables before it calls the helper. So if a slot or task appears during
        the call, it does not count as missing.
        """
        keeper = self._keeper
        specs_before = _specs(keeper)
        before = {slot.key for slot in keeper.table if slot.state is CarveState.ALLOCATED}
        tasks_before = [task for task in keeper.tasks if task.state is TaskState.RUNNING]
        try:
            # The helper was possibly replaced by another version.
            info = await keeper.helper.hello()
            keeper.closes_devices = info.isolation.devices == FILES_CLOSED
            state = await keeper.helper.inspect()
        except FinegrainError as error:
            log.error("helper_not_inspected", error=error.message)
            return
        self._compare_tasks(tasks_before, state.tasks)
        on_host = {_slot_key(each.limits) for each in state.slots}
        for key in before - on_host:
            # The slot was possibly freed during the call.
            slot = keeper.table.get(key)
            if slot is not None and slot.state is CarveState.ALLOCATED:
                log.error("slot_missing", allocation_id=key.allocation_id)
                keeper.slot_vanished(key)
        await _destroy_unknown_slots(keeper, state)
        await keeper.cpu_bindings.resync()
        await self._limit_again()
        await finish_resizes(keeper, [each.limits for each in state.slots], specs_before)
        await keeper.save_or_log()

    def _compare_tasks(self, before: Iterable[Task], records: Iterable[TaskRecord]) -> None:
        known = {record.task_id: record for record in records}
        for task in before:
            record = known.get(task.task_id)
            if record is not None:
                _adopt_record(self._keeper, task, record)
            # If the task was deleted during the call, it does not count as lost.
            elif self._keeper.tasks.get(task.task_id) is task:
                message = (
                    "the task's records on the host are lost, so it is unknown how the task ended"
                )
                self._keeper.tasks.failed(task, TaskFault(Reason.TERMINATED.value, message))

    def _is_unsettled(self) -> bool:
        """Returns True if the front missed the end of a task, or the helper was unreachable during
        a resize.
        """
        keeper = self._keeper
        # If a slot is removed but its task has not ended, the front has missed the event of the
        # task's end.
        missed = any(t.slot_removed_at is not None and not t.has_ended for t in keeper.tasks)
        # `becoming` is also set during a normal resize, which holds the lock. A resize is unsettled
        # only if it is not being executed.
        idle = not keeper.resize_lock.locked()
        return missed or (idle and any(slot.becoming is not None for slot in keeper.table))

    async def sweep(self) -> None:
        """Repeats periodic checks, until the task is cancelled.

        Every `SWEEP_S` seconds, the method reads the host's cpus again, reconciles if an event was
        missed, and deletes overdue tasks. Every `SWEEPS_PER_RESYNC` sweeps, the method writes the
        cpus of all slots and the limits of their devices again. There are three reasons: other
        programs can change the slots' control groups; cgroup v1 removes a cpu from a group
        permanently when the cpu is offline for a moment; and a driver loses its limits when it is
        loaded again.
        """
        for sweeps in itertools.count(1):
            await asyncio.sleep(SWEEP_S)
            force = sweeps % SWEEPS_PER_RESYNC == 0
            try:
                await self._refresh_host()
                if self._is_unsettled():
                    await self.compare()
                elif self._keeper.cpu_bindings.is_out_of_sync or force:
                    await self._keeper.cpu_bindings.sync_or_log(force=force)
                if force:
                    await self._limit_again()
                await self._runner.forget_overdue()
            except (FinegrainError, OSError) as error:
                log.error("sweep_failed", error=str(error))

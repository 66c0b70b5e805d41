"""Runs a plan: carries out the effects of the plan's schedule, and reports events to the schedule.

The runner writes each event to disk before the schedule applies it. If the runner is killed, the
next runner continues from the file, with the same slots and tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from finegrain.errors import FinegrainError, Reason
from finegrain.values.states import ExecutorState, JobOutcome
from finegrain_client.batch.slots import retry_until_answered
from finegrain_client.errors import JobEnded as JobGone
from finegrain_client.errors import RequestRejected as SlotsRejected
from finegrain_client.errors import SlotLost as SlotGone
from finegrain_client.graph.schedule import (
    CancelOrdered,
    CancelRequest,
    CancelTask,
    DelayOver,
    DeployTask,
    Effect,
    Event,
    HostLost,
    JobEnded,
    JobStarted,
    PassSlot,
    ReleaseSlot,
    RequestRejected,
    RequestSlots,
    SlotLost,
    SlotsGranted,
    StartDelay,
    TaskFailed,
    TaskId,
)
from finegrain_client.graph_run.executor_versions import ExecutorVersions
from finegrain_client.graph_run.job_slots import JobSlots, rejection_text
from finegrain_client.graph_run.job_state import JobState
from finegrain_client.graph_run.state_file import GraphStateFile
from finegrain_client.graph_run.task_start import (
    OutputTail,
    end_of_task,
    slot_prefix,
    task_id_of,
    task_options,
)
from finegrain_client.graph_run.values import GraphOutcome, GraphProgress
from finegrain_client.job.job import Job
from finegrain_client.slot.task import Task, start_task

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster

T = TypeVar("T")

HOSTS_WATCH_S = 15.0
"""Seconds between two checks of the hosts that have output of the job. Each check lists all
executors. The checks must be rare, because a large cluster can have hundreds of jobs.
"""

ENDING_S = 20.0
"""Longest time in seconds to try to end the job. If this fails, the job ends later when its lease
expires.
"""


class Runner:
    """Works on one job; see `GraphJob`."""

    def __init__(
        self,
        cluster: Cluster,
        file: GraphStateFile,
        *,
        lease_s: float,
        on_progress: Callable[[GraphProgress], None] | None,
    ) -> None:
        self._cluster = cluster
        self._file = file
        self._lease_s = lease_s
        self._on_progress = on_progress
        # Use only one thread, so that writes to the state file keep their order, and only one call
        # uses its database connection at a time.
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="finegrain-job")
        self._inbox: asyncio.Queue[Event | FinegrainError] = asyncio.Queue()
        self._background: set[asyncio.Task[None]] = set()
        self._tasks: dict[TaskId, Task] = {}
        self._working: dict[int, set[asyncio.Task[None]]] = {}  # by number of the slot
        self._cancel_ordered = False
        self._to_cancel: set[TaskId] = set()
        self._addresses: dict[str, str] = {}
        self._state = JobState(file.spec.plan)
        self._versions = ExecutorVersions(cluster)

    def cancel(self) -> None:
        """Cancels the job: `run` returns when tasks have ended and slots are released."""
        self._cancel_ordered = True
        self._inbox.put_nowait(CancelOrdered())

    async def run(self) -> GraphOutcome:
        """Works until the job has ended, and returns the outcome.

        Raises:
            FinegrainError: this runner cannot continue, but another runner possibly can.
        """
        try:
            events = await self._on_disk(self._file.events)
            self._addresses = await self._on_disk(self._file.addresses)
            self._state = JobState(self._file.spec.plan, events)
            while self._state.ended is None:
                try:
                    await self._work()
                except JobGone as error:
                    await self._job_gone(error)
            return await self._conclude()
        finally:
            await self._stop_background()
            self._disk.shutdown()

    async def _work(self) -> None:
        """Works with one registration of the job, until the schedule or the registration ends."""
        async with AsyncExitStack() as stack:
            job = await self._attach_or_register(stack)
            number = await self._on_disk(partial(self._file.meta, "job_number"))
            prefix = slot_prefix(self._file.run_id, number)
            times = self._file.spec.plan.slot_times
            self._slots = JobSlots(job, prefix, times, self._lost)
            self._job = job
            self._start(self._listen(job))
            self._start(self._watch_hosts())
            if await self._on_disk(self._file.events):
                await self._continue()
            else:
                await self._take([JobStarted()])
            while self._state.ended is None:
                events = [await self._inbox.get()]
                while not self._inbox.empty():
                    events.append(self._inbox.get_nowait())
                await self._take(events)

    async def _attach_or_register(self, stack: AsyncExitStack) -> Job:
        """Returns the job of the last runner. If this job does not exist, registers and returns a
        new job.
        """
        job_id, number, ended = [
            await self._on_disk(partial(self._file.meta, key))
            for key in ("job_id", "job_number", "ended_job_id")
        ]
        if job_id != ended:
            job = self._cluster.attach_job(job_id, lease_s=self._lease_s)
            return await stack.enter_async_context(job)
        spec = self._file.spec
        # If a slot was granted before, the jobs in `after` have ended. Do not name them, because
        # they are possibly deleted.
        begun = any(
            isinstance(each, SlotsGranted) for each in await self._on_disk(self._file.events)
        )

        async def register() -> Job:
            job = self._cluster.job(
                spec.plan.name,
                group=spec.group,
                lease_s=self._lease_s,
                priority=spec.priority,
                labels=spec.job_labels,
                after=() if begun else spec.after,
            )
            return await stack.enter_async_context(job)

        job = await retry_until_answered(register, "registering the job")
        job.detached = True  # from now on, leaving the context does not end the job
        values = {
            "job_id": job.job_id,
            "job_number": str(int(number or "0") + 1),
        }
        await self._on_disk(partial(self._file.set_meta, values))
        return job

    async def _job_gone(self, error: JobGone) -> None:
        """Records that the registered job has ended with all its slots.

        `run` then registers a new job, unless the plan has ended.
        """
        await self._stop_background()
        self._inbox = asyncio.Queue()
        self._tasks.clear()
        self._working.clear()
        lost: list[Event] = [SlotLost(each) for each in sorted(self._state.granted_slots())]
        # The run is over if an administrator has ended the job, or if another job, for which this
        # job waited, has ended with the wrong outcome.
        for_good = error.details.get("end_reason") in (
            Reason.TERMINATED,
            Reason.ENDED,
            Reason.DEPENDENCY_FAILED,
        )
        if for_good or self._cancel_ordered:
            lost.append(CancelOrdered())
        await self._on_disk(partial(self._file.append, lost, {}))
        for event in lost:
            # Drop the effects, because no slot is left to release. `run` then registers a new job
            # and makes the requests again.
            self._state.step(event)
        job_id = await self._on_disk(partial(self._file.meta, "job_id"))
        await self._on_disk(partial(self._file.set_meta, {"ended_job_id": job_id}))

    async def _continue(self) -> None:
        """Carries out the effects that the last runner has not carried out. Reports slots that were
        lost in the meantime.
        """
        granted = self._state.granted_slots()
        found = await self._slots.adopt(granted, self._state.requested_slots())
        for effect in self._state.outstanding():
            # Tasks in a lost slot have ended with the slot. The loss of the slot is reported below.
            match effect:
                case DeployTask(task) | CancelTask(task) if (
                    self._state.slot_of_task[task] not in found
                ):
                    pass
                case _:
                    self._carry_out(effect)
        await self._take([SlotLost(each) for each in sorted(granted - found)])

    async def _stop_background(self) -> None:
        for each in self._background:
            each.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _take(self, messages: Sequence[Event | FinegrainError]) -> None:
        events: list[Event] = []
        for each in messages:
            if isinstance(each, FinegrainError):
                raise each
            found = self._in_context(each)
            if found is not None:
                events.append(found)
        new = self._slots.new_addresses(self._addresses)
        self._addresses.update(new)
        await self._on_disk(partial(self._file.append, events, new))
        for event in events:
            for effect in self._state.step(event):
                self._carry_out(effect)
        if self._on_progress is not None:
            self._on_progress(self._state.progress())

    def _in_context(self, event: Event) -> Event | None:
        """Returns the event, or None if the event is the loss of a host that the schedule does not
        use.
        """
        if isinstance(event, HostLost):
            # The loss of a host is reported once for each slot on the host. Use only the first
            # report. A later report can arrive after the host has come back, and its new output is
            # not lost.
            schedule = self._state.schedule
            concerns = schedule.slots.on_host(event.host) or event.host in schedule.outputs.hosts
            return event if concerns else None
        return event

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case RequestSlots():
                self._start(self._request(effect))
            case CancelRequest(number):
                self._start(self._slots.cancel_request(number))
            case PassSlot():
                # Nothing to do: the job keeps the slot. Only the schedule knows which place in the
                # plan uses the slot.
                pass
            case DeployTask(task, slot):
                working = self._working.setdefault(slot, set())
                working.add(work := self._start(self._run_task(task, slot)))
                work.add_done_callback(working.discard)
            case CancelTask(task):
                self._to_cancel.add(task)
                if (running := self._tasks.get(task)) is not None:
                    self._start(self._cancel_task(running))
            case ReleaseSlot(slot, finished):
                self._start(self._slots.release(slot, finished=finished))
            case StartDelay(region, attempt, delay_s):
                self._start(self._report_after(delay_s, DelayOver(region, attempt)))
            case JobEnded():
                pass  # nothing to do: the main loop ends

    # -- background work ---------------------------------------------------------------------

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._reported(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def _reported(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except SlotGone:
            pass  # `JobSlots` reports the loss of the slot
        except FinegrainError as error:
            self._inbox.put_nowait(error)

    async def _watch_hosts(self) -> None:
        """Reports lost hosts that store output of the job but have no slot of the job.

        Without these reports, the runner would notice the loss only when a task does not find its
        input. The loss of a host with slots is reported together with the slots.
        """
        while True:
            await asyncio.sleep(HOSTS_WATCH_S)
            if not (hosts := self._state.schedule.outputs.hosts):
                continue
            executors = await retry_until_answered(self._cluster.executors, "listing executors")
            present = {each.executor_id for each in executors if each.state != ExecutorState.LOST}
            for host in sorted(hosts - present):
                self._inbox.put_nowait(HostLost(host))

    async def _listen(self, job: Job) -> None:
        """Waits until the job has ended, and then raises the error `JobGone`."""
        async for _ in job.events():
            pass

    def _lost(self, event: Event) -> None:
        self._start(self._report_lost(event))

    async def _report_lost(self, event: Event) -> None:
        """Reports the loss of a slot or host, after the ends of the tasks in the slot.

        The watch stream of the job and the streams of the tasks are independent. With a fixed
        order, a task that reaches the time limit of its slot always counts as failed, and a task
        that ends by itself just before the slot always counts as done.
        """
        if isinstance(event, SlotLost) and (working := self._working.get(event.slot)):
            await asyncio.wait(working)
        self._inbox.put_nowait(event)

    async def _report_after(self, delay_s: float, event: Event) -> None:
        await asyncio.sleep(delay_s)
        self._inbox.put_nowait(event)

    async def _request(self, effect: RequestSlots) -> None:
        groups = self._file.spec.plan.group_of
        wanted = [groups[each.group] for each in effect.places]
        answer = await self._slots.request(effect.request, effect.first_slot, wanted)
        if isinstance(answer, SlotsRejected):
            message = rejection_text(self._file.spec.plan, effect, answer)
            self._inbox.put_nowait(RequestRejected(effect.request, message))
        else:
            self._inbox.put_nowait(SlotsGranted(effect.request, effect.first_slot, answer))

    async def _run_task(self, task: TaskId, number: int) -> None:
        slot = self._slots.slot(number)
        if slot is None or slot.has_ended:
            self._slots.report_lost(number)
            return
        tail = OutputTail()
        options = task_options(
            self._file.spec,
            self._state,
            task,
            addresses=self._addresses,
            slot=slot,
            slot_ports=self._ports_of_slot,
            tail=tail,
        )
        task_id = task_id_of(self._file.run_id, task)
        if refusal := await self._versions.refusal(slot.executor_id):
            self._inbox.put_nowait(TaskFailed(task, refusal))
            return

        async def start() -> Task:
            # Tasks continue if the runner is killed. The next runner submits the tasks again, and
            # so gets handles of the same tasks.
            return await start_task(
                slot, self._job._context, task_id, options, cancel_on_interrupt=False
            )

        try:
            running = await retry_until_answered(start, f"starting task {task.subtask}")
            self._tasks[task] = running
            if task in self._to_cancel:
                await self._cancel_task(running)
            result = await running.wait()
        except (SlotGone, JobGone):
            raise
        except FinegrainError as error:
            self._inbox.put_nowait(TaskFailed(task, error.message))
            return
        finally:
            self._tasks.pop(task, None)
        if result.cancelled and slot.error is not None and not result.end_reason:
            return  # the task has not failed: `JobSlots` reports the end of its slot
        self._inbox.put_nowait(end_of_task(task, result, tail))

    def _ports_of_slot(self, number: int) -> Sequence[int]:
        slot = self._slots.slot(number)
        return slot.ports if slot is not None else ()

    async def _cancel_task(self, running: Task) -> None:
        await retry_until_answered(running.cancel, f"cancelling task {running.task_id}")

    # -- the end -----------------------------------------------------------------------------

    async def _conclude(self) -> GraphOutcome:
        """Ends the job, which releases all its slots, and stores the outcome."""
        stored = await self._on_disk(partial(self._file.meta, "end_time"))
        if not stored:
            job_id = await self._on_disk(partial(self._file.meta, "job_id"))
            if job_id:  # ending a job that has already ended is allowed
                await self._end_job(self._cluster.attach_job(job_id))
            stored = repr(time.time())
            await self._on_disk(partial(self._file.set_meta, {"end_time": stored}))
        if self._on_progress is not None:
            self._on_progress(self._state.progress())
        ended = self._state.ended
        return GraphOutcome(
            state=self._state.outcome,
            message=ended.message if ended is not None else "",
            elapsed_s=float(stored) - self._file.create_time,
            restarts=self._state.restarts,
        )

    async def _end_job(self, job: Job) -> None:
        succeeded = self._state.ended is not None and self._state.ended.ok
        outcome = JobOutcome.SUCCEEDED if succeeded else JobOutcome.FAILED
        try:
            async with asyncio.timeout(ENDING_S):
                await retry_until_answered(partial(job.end, outcome=outcome), "ending the job")
        except (FinegrainError, TimeoutError):
            pass  # the job ends later when its lease expires

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

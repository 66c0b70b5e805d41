"""Runs the main loop of a batch during one job: handles messages, saves decisions, and carries the
decisions out.

The order is important. Each decision of the scheduler is on disk before it is carried out. And
output files are complete before the result is recorded. Only this loop writes decisions. Background
tasks do slow work, and put their results into the inbox.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from finegrain.errors import FinegrainError, Reason, Unavailable
from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import RequestState
from finegrain_client.batch.inbox import (
    AttemptEnded,
    Broken,
    CommandStarted,
    InboxMessage,
    ReuseAnswered,
    SubmissionFailed,
    WakeUp,
)
from finegrain_client.batch.output import Output, publish_all
from finegrain_client.batch.rows import Changes, JobRow
from finegrain_client.batch.scheduler import BatchScheduler
from finegrain_client.batch.scheduler_state import (
    Actions,
    AttemptKey,
    AttemptOutcome,
    Ending,
    SlotKey,
    Start,
)
from finegrain_client.batch.slots import (
    BatchSlots,
    Granted,
    NewMembersRefused,
    RequestFinished,
    Requeued,
    WatchEnded,
)
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.work import Attempt
from finegrain_client.errors import RequestRejected

T = TypeVar("T")

RELEASE_WAIT_S = 5.0
"""Longest time in seconds for which a batch waits, at its end, for the answers to its last releases
and requests for reuse.
"""

WAKE_INTERVAL_S = 1.0
"""Longest time in seconds between two iterations of the loop, which finds stragglers and reports
progress.
"""


RESUBMIT_DELAY_S = 1.0
"""Delay in seconds before slots are requested again. Each try already includes retries of the
call.
"""


class SessionEnded(Exception):
    """The job or its watch stream has ended. `error` is the reason."""

    def __init__(self, error: FinegrainError) -> None:
        super().__init__(error.message)
        self.error = error


class Session:
    """Works on a batch while one job exists.

    Attributes:
        scheduler: the scheduler. It decides which thread runs in which slot.
        slots: the requests and slots of the job.
        row: the job's row in the state file.
        stop_mode: "cancel" or "leave" after a call of `wake`; empty before the call.
    """

    def __init__(
        self,
        state: StateFile,
        scheduler: BatchScheduler,
        slots: BatchSlots,
        row: JobRow,
        *,
        disk: Executor,
        notify: Callable[[Session, Changes], None],
    ) -> None:
        """Stores the arguments. `run` does the work.

        Args:
            state: the state file of the batch.
            scheduler: the scheduler of the batch, for this job.
            slots: the requests and slots of the job.
            row: the job's row in the state file.
            disk: the executor that runs the writes to disk, one after another.
            notify: a function that is called before each write. The function can add changes to the
                write.
        """
        self.scheduler = scheduler
        self.slots = slots
        self.row = row
        self.stop_mode = ""
        self._state = state
        self._disk = disk
        self._notify = notify
        self._inbox: asyncio.Queue[InboxMessage] = asyncio.Queue()
        self._outputs: dict[AttemptKey, Output] = {}
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._clock_offset_s = time.time() - time.monotonic()

    async def run(self) -> None:
        """Works until no work is left or `wake` is called.

        Raises:
            SessionEnded: the job has ended.
            FinegrainError, OSError: the state file or the output cannot be written.
        """
        try:
            # First restore the present state, then listen. No event is missed: the stream has all
            # events since its creation, and an event that comes twice changes nothing.
            self._restore()
            self._run_in_background(self.slots.listen(self._inbox.put_nowait))
            while True:
                # Decide once more before the end: the last decisions must be written, and the slots
                # must be released.
                actions = self.scheduler.decide(self.now())
                # Write first: if the runner is killed later, the file has a record of everything
                # that the runner has possibly done.
                await self._write(actions)
                self._carry_out(actions)
                if self.stop_mode:
                    return
                if self.scheduler.is_over:
                    await self._await_releases()
                    return
                await self._wait_for_messages()
        finally:
            for each in self._background:
                each.cancel()
            await asyncio.gather(*self._background, return_exceptions=True)

    async def _await_releases(self) -> None:
        """Waits until the last calls that release or reuse slots are answered.

        The resource manager measures the duration of a thread from the grant to the release of its
        slot. If a slot ends together with its job, the resource manager does not measure the
        thread. The longest thread is often the last one, so without this wait the longest thread
        would often not be measured. A request for reuse also reports the end of a thread. Such a
        request can be in progress at the end, if a second run is not needed any more, or if the
        batch stops.
        """
        if self._releases:
            await asyncio.wait(self._releases, timeout=RELEASE_WAIT_S)

    def now(self) -> float:
        """Returns seconds since 1970 by a monotonic clock.

        If this method used the system clock, a change of that clock could make all attempts
        stragglers at once, or delay a retry by an hour.
        """
        return self._clock_offset_s + time.monotonic()

    def wake(self, stop_mode: str) -> None:
        """Ends the loop after the next write.

        Args:
            stop_mode: "cancel" or "leave". Only the first call has an effect.
        """
        self.stop_mode = self.stop_mode or stop_mode
        self._inbox.put_nowait(WakeUp())

    def _restore(self) -> None:
        granted, waiting = self.slots.present()
        for first, count in waiting:
            self.scheduler.queued(first, count)
        for each in granted:
            self.scheduler.granted(each.key, each.member, each.executor_id)
        self.scheduler.finish_restore()

    # Messages.

    async def _wait_for_messages(self) -> None:
        due = self.scheduler.threads.next_due
        wait_s = (
            WAKE_INTERVAL_S if due is None else min(WAKE_INTERVAL_S, max(0.0, due - self.now()))
        )
        try:
            async with asyncio.timeout(wait_s):
                self._handle(await self._inbox.get())
        except TimeoutError:
            return
        # Handle all waiting messages first, so that they need only one decision and one write.
        while not self._inbox.empty():
            self._handle(self._inbox.get_nowait())

    def _handle(self, message: InboxMessage) -> None:
        scheduler = self.scheduler
        match message:
            case Granted() | Requeued() | RequestFinished():
                self._handle_request(message)
            case AttemptEnded(key, outcome):
                # The loop keeps the attempt only to be able to cancel it.
                self._attempts.pop(key, None)
                scheduler.attempt_ended(key, outcome, self.now())
            case CommandStarted():
                scheduler.command_started()
            case SubmissionFailed():
                scheduler.submission_refused(message.first, message.count)
                if message.error is not None:
                    scheduler.stop(f"its slot requests were refused: {why_refused(message.error)}")
            case ReuseAnswered(answers):
                for slot, member, agreed in answers:
                    scheduler.reuse_answered(slot, member, agreed=agreed)
            case WatchEnded(error):
                raise SessionEnded(error)
            case Broken(error):
                raise error
            case WakeUp():
                pass

    def _handle_request(self, message: Granted | Requeued | RequestFinished) -> None:
        match message:
            case Granted(key, member, executor_id):
                self.scheduler.granted(key, member, executor_id)
            case Requeued(allocation_id, member):
                self.scheduler.requeued(allocation_id, member)
            case RequestFinished():
                self.scheduler.request_ended(message.allocation_id, message.member, message.count)
                if message.state is RequestState.REJECTED:
                    self.scheduler.stop(
                        f"its slot requests were rejected: {message.message or message.reason}"
                    )

    # Decisions.

    async def _write(self, actions: Actions) -> None:
        changes = actions.changes
        self._notify(self, changes)
        popped = [self._outputs.pop(key, None) for key in actions.publish]
        outputs = [each for each in popped if each is not None]
        # Often a message changes nothing that must be written, and a thread costs time.
        if changes or outputs:
            await self._on_disk(partial(self._write_now, changes, outputs))
        for key in actions.discard:
            if (output := self._outputs.pop(key, None)) is not None:
                output.discard()

    def _write_now(self, changes: Changes, outputs: list[Output]) -> None:
        # Publish output files first, because a recorded result must never refer to missing output.
        publish_all(self._state.results_dir, outputs)
        if changes:
            self._state.write(self.row.number, changes)

    async def _on_disk(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    def _carry_out(self, actions: Actions) -> None:
        for start in actions.start:
            self._begin_attempt(start)
        for key in actions.cancel:
            if (attempt := self._attempts.get(key)) is not None:
                self._run_in_background(attempt.cancel())
        if actions.ask is not None:
            self._run_in_background(self._ask(*actions.ask))
        if actions.give_up:
            self._run_in_background(self._unless_over(partial(self.slots.give_up, actions.give_up)))
        if actions.release:
            work = self._unless_over(partial(self.slots.release, actions.release, actions.reports))
            self._release_in_background(work)
        new, waiting = actions.reuse_new, actions.reuse
        if new is not None:
            # A call that requests new members must contain fewer slots than other calls. So this
            # call contains only the slots that are reused for the new members.
            fresh = range(new[0], new[0] + new[1])
            waiting = [each for each in actions.reuse if each[1] not in fresh]
            pairs = [each for each in actions.reuse if each[1] in fresh]
            self._release_in_background(self._reuse(pairs, actions.reports, new))
        if waiting:
            self._release_in_background(self._reuse(waiting, actions.reports))

    def _begin_attempt(self, start: Start) -> None:
        key = start.thread, start.attempt
        output = self._outputs[key] = Output(self._state.results_dir, *key)
        slot = self.slots.slot(start.slot)
        if slot is None:
            lost = AttemptOutcome(
                Ending.LOST, message="its slot had ended before its task was started"
            )
            # Send the loss through the inbox: the session must not call the scheduler while it
            # carries out the scheduler's actions.
            self._inbox.put_nowait(AttemptEnded(key, lost))
            return
        attempt = Attempt(self._state.spec, self._state.batch_id, *key, slot, output)
        self._attempts[key] = attempt
        self._run_in_background(self._run_attempt(key, attempt))

    async def _run_attempt(self, key: AttemptKey, attempt: Attempt) -> None:
        outcome = await attempt.run(lambda: self._inbox.put_nowait(CommandStarted()))
        self._inbox.put_nowait(AttemptEnded(key, outcome))

    async def _ask(self, first: int, count: int) -> None:
        error: FinegrainError | None = None
        try:
            await self.slots.ask(first, count)
        except Unavailable:
            # These members may have been submitted although no answer came, so the scheduler will
            # request other members.
            await asyncio.sleep(RESUBMIT_DELAY_S)
        except FinegrainError as refusal:
            if is_over(refusal):
                return
            error = refusal
        else:
            return
        self._inbox.put_nowait(SubmissionFailed(first, count, error))

    async def _reuse(
        self,
        pairs: list[tuple[SlotKey, int]],
        reports: Mapping[SlotKey, ThreadReport],
        new: tuple[int, int] | None = None,
    ) -> None:
        refused: SubmissionFailed | None = None
        try:
            agreed = await self.slots.reuse(pairs, reports, new)
        except NewMembersRefused as refusal:
            agreed = [False] * len(pairs)
            refused = SubmissionFailed(*new, refusal.error) if new is not None else None
        except FinegrainError as error:
            if is_over(error):
                return
            if new is None:
                raise
            # The whole call was refused, so the resource manager has not released the slots.
            keys = [key for key, _ in pairs]
            await self._unless_over(partial(self.slots.release, keys, reports))
            agreed, refused = [False] * len(pairs), SubmissionFailed(*new, error)
        answers = [(*pair, each) for pair, each in zip(pairs, agreed, strict=True)]
        self._inbox.put_nowait(ReuseAnswered(answers))
        # Send the answers first: the answers make the members wait again, and the refusal then
        # removes the members.
        if refused is not None:
            self._inbox.put_nowait(refused)

    async def _unless_over(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except FinegrainError as error:
            if not is_over(error):
                raise

    def _release_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a call that releases or reuses slots. The end of the batch waits for this call."""
        self._releases.add(task := self._run_in_background(work))
        task.add_done_callback(self._releases.discard)

    def _run_in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._inbox.put_nowait(Broken(error))


def is_over(error: FinegrainError) -> bool:
    """Returns True if the error means that the job has ended.

    The watch stream also reports this end.
    """
    return error.reason in (Reason.JOB_ENDED, Reason.JOB_UNKNOWN)


def why_refused(error: FinegrainError) -> str:
    """Returns the reason why requests were rejected.

    All requests of a batch are equal, so one reason is enough.
    """
    if isinstance(error, RequestRejected):
        return error.rejections[0].message or str(error.rejections[0].reason)
    return error.message

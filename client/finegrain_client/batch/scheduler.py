"""Schedules a batch: keeps the state of each thread of work, and decides the next actions.

The scheduler makes four decisions: which thread runs in a slot, what happens after an attempt, how
many slots are requested, and when a thread runs a second time. The scheduler keeps the number of
waiting requests plus free slots equal to the number of threads that need a slot. A request does not
belong to a certain thread. The scheduler is pure: the session reports events to it, writes
`Actions.changes` to disk, and then carries out `Actions`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from finegrain.errors import Reason
from finegrain.intervals import IntervalSet
from finegrain_client.batch.rate import Rate
from finegrain_client.batch.rows import AttemptRow, Known, SubmittedRow
from finegrain_client.batch.scheduler_state import (
    Actions,
    AttemptKey,
    AttemptOutcome,
    Ending,
    HeldSlot,
    Phase,
    RunningAttempt,
    SlotKey,
    Start,
    take_last,
)
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.threads import DELAYED, DONE, ENDED, FAILED, RUNNING, TODO, Threads
from finegrain_client.batch.values import ThreadResult, ThreadState, unknown_result

LOSSES_MAX = 20
"""A thread that loses this many slots fails: the thread itself possibly crashes its hosts."""

REFUSALS_MAX = 3
"""If this number of attempts could not execute the command, and no other attempt has executed it,
the batch stops.
"""

USES_MAX = 100
"""Number of threads that one slot runs before it is released.

The number is limited: an executor keeps the tasks of a slot, with all their output, as long as the
slot exists.
"""

TIME_SLICE_S = 0.2
"""Time in seconds for which a slot runs short threads one after the other before the resource
manager is asked again. Because of it, another job waits at most this time and one thread longer.
"""

SURPLUS_PART = 10
"""The batch may have one waiting request too many for this number of threads that need a slot. It
cancels the others. A thread that runs without its own request would otherwise need a call.
"""

REUSES_AT_ONCE_MAX = 5_000

NEW_REUSES_MAX = 500
"""Maximum number of new requests in a call that reuses slots."""


class BatchScheduler:
    """Schedules the threads of one batch while one job exists.

    Attributes:
        stopping: the reason why no more threads are started; empty if threads are started.
        threads: the state of each thread.
        held_slots: slots of the job, by allocation id.
        waiting: queued members of the job's range.
    """

    def __init__(self, spec: BatchSpec, known: Known, job: int = 0) -> None:
        self.spec = spec
        self.stopping = ""
        self.rate = Rate(known.durations_s)
        self.waiting = IntervalSet()
        self.held_slots: dict[str, HeldSlot] = {}
        self.running: dict[AttemptKey, RunningAttempt] = {}
        self.retried = sum(known.failures.values())
        self.losses = sum(known.losses.values())
        self._job = job
        self.threads = Threads(spec.threads, known.final)
        self._attempt_counts = dict(known.attempts)
        self._failures = dict(known.failures)
        self._lost = dict(known.losses)
        self._running_of: dict[int, set[AttemptKey]] = {}
        self._next_member = max(
            (each.first_index + each.count for each in known.submitted), default=0
        )
        self._by_phase: dict[Phase, dict[str, HeldSlot]] = {phase: {} for phase in Phase}
        # Waiting members that a reused slot will replace if the resource manager agrees to the
        # reuse. The value is True if the member has already ended.
        self._reuse_members: dict[int, bool] = {}
        self._given_up = IntervalSet()
        # The attempt that was lost with a slot, and the start time of the attempt.
        self._lost_attempts: dict[SlotKey, tuple[AttemptKey, float]] = {}
        self._used: set[SlotKey] = set()
        self._unknown: set[AttemptKey] = set()
        self._refusals = 0
        self._anything_started = bool(known.durations_s)
        self._actions = Actions()

    # Taking over a job of an earlier runner.

    def restore_attempts(
        self,
        unknown: Iterable[AttemptRow],
        lost: Iterable[AttemptRow] = (),
        used: Iterable[SlotKey] = (),
    ) -> None:
        """Restores attempts and slots of an earlier runner.

        The caller then calls `granted` for every slot that exists, and at the end `finish_restore`.

        Args:
            unknown: attempts whose outcome is unknown.
            lost: attempts that an earlier runner has recorded as lost.
            used: slots that have already run a thread. The earlier runner has possibly reported
                the end of this thread, so it is not reported again.
        """
        for each in (*lost, *unknown):
            key = each.allocation_id, each.generation
            self._lost_attempts[key] = (each.thread, each.attempt), each.start_time
        self._used.update(used)
        self._unknown = {(each.thread, each.attempt) for each in unknown}

    def finish_restore(self) -> None:
        """Ends the restore. Attempts whose slot was not granted again are now lost."""
        for (thread, attempt), _ in list(self._lost_attempts.values()):
            if (thread, attempt) in self._unknown:
                self._attempt_lost(
                    thread, attempt, "its slot had ended when the runner was started again"
                )
        self._unknown = set()
        self._used.clear()

    # Events of slots.

    def granted(self, key: SlotKey, member: int, executor_id: str) -> None:
        """Records that a request got its slot. Repeated calls change nothing.

        Args:
            key: the slot.
            member: index of the request in the range.
            executor_id: the slot's executor.
        """
        allocation_id, generation = key
        self._not_waiting(member)
        if (known := self.held_slots.get(allocation_id)) is not None:
            # Ignore a repeated event, and an event about an older slot.
            if known.generation >= generation:
                return
            self._drop(allocation_id)
        held = HeldSlot(allocation_id, generation, member, executor_id)
        self.held_slots[allocation_id] = self._by_phase[held.phase][allocation_id] = held
        # The slot possibly still runs an attempt: an attempt of an earlier runner, or an attempt
        # from before its executor was lost.
        lost_attempt, start_time = self._lost_attempts.pop(key, (None, 0.0))
        # If the member was given up, the slot was granted while its request was being cancelled.
        if member in self._given_up:
            self._set_phase(held, Phase.RELEASING)  # the cancellation releases the slot
        elif lost_attempt is None:
            self._set_phase(held, Phase.USED if key in self._used else Phase.FREE)
        elif self.threads[lost_attempt[0]] == TODO and not self.stopping:
            # The attempt was recorded as ended when its slot was lost, but its task has continued.
            self._actions.changes.reopened.append(lost_attempt)
            self._start_attempt(held, lost_attempt, start_time, again=True)
        else:
            self._close(lost_attempt, "cancelled", "its thread is done, or runs elsewhere")
            self._set_phase(held, Phase.SPENT)  # no thread needs the task that runs in this slot

    def requeued(self, allocation_id: str, member: int) -> None:
        """Records that a slot was lost, and that its request waits for the next slot."""
        self._drop(allocation_id)
        if member not in self._reuse_members and member not in self._given_up:
            self.waiting.add(member)

    def request_ended(self, allocation_id: str, member: int, count: int = 1) -> None:
        """Records that a request has ended and has no slot.

        Args:
            allocation_id: id of the request.
            member: index of the request in the range.
            count: number of consecutive members that have ended. Members after the first one never
                had a slot.
        """
        self._drop(allocation_id)
        self._not_waiting(member)
        self.waiting.remove_run(member, member + count)
        for each in self._reuse_members.keys() & range(member, member + count) if count > 1 else ():
            self._reuse_members[each] = True

    def queued(self, first: int, count: int) -> None:
        """Records that members of the range wait in the queue."""
        self.waiting.add_run(first, first + count)

    def submission_refused(self, first: int, count: int) -> None:
        """Records that submitted requests were rejected."""
        self.waiting.remove_run(first, first + count)

    def reuse_answered(self, key: SlotKey, member: int, *, agreed: bool) -> None:
        """Records whether a slot may be reused. If the reuse was refused, the resource manager
        releases the slot.

        Args:
            key: the slot.
            member: index of the waiting request that the slot would replace.
            agreed: True if the slot may be reused.
        """
        # The member may have ended while the answer was on its way.
        has_ended = self._reuse_members.pop(member, True)
        if not agreed and not has_ended:
            self.waiting.add(member)  # the member stays queued
        held = self.held_slots.get(key[0])
        # The slot may have been lost, and even replaced, while the answer was on its way.
        if held is not None and held.key == key and held.phase is Phase.AWAITING_REUSE:
            self._set_phase(held, Phase.FREE if agreed else Phase.RELEASING)
            held.begin_slice()

    # Events of attempts.

    def command_started(self) -> None:
        """Records that a command was executed, so the command of the batch can be executed."""
        self._anything_started = True

    def attempt_ended(self, key: AttemptKey, outcome: AttemptOutcome, now: float) -> None:
        """Records the end of an attempt. Repeated calls change nothing.

        Args:
            key: the attempt.
            outcome: the outcome of the attempt.
            now: the current time, in seconds since 1970.
        """
        run = self.running.pop(key, None)
        # If the slot was lost before, or if the message came twice, no attempt runs.
        if run is None:
            return
        self._running_of[key[0]].discard(key)
        held = self._leave_slot(run, key, outcome, now)
        had_ended = self.threads[key[0]] in ENDED
        # If another attempt at the thread was faster, only the result of that attempt counts.
        if had_ended:
            self._close(key, "cancelled", "another attempt of its thread finished first")
            self._actions.discard.append(key)
        elif outcome.ending is Ending.OK and outcome.result is not None:
            self.rate.add(outcome.result.duration_s)
            self._finish(key, outcome.result, ThreadState.DONE)
        elif outcome.ending in (Ending.FAILED, Ending.REFUSED) and outcome.result is not None:
            self._failed(key, outcome, outcome.result, now)
        else:
            # the slot of the attempt is possibly granted again
            self._lost_attempts[run.slot] = key, run.start_time
            self._actions.discard.append(key)
            revoked = outcome.reason == Reason.REVOKED
            self._attempt_lost(*key, outcome.message, revoked=revoked)
        if held is not None:
            held.last_finished = not had_ended and self.threads[key[0]] in ENDED
            held.finished += held.last_finished

    def stop(self, why: str) -> None:
        """Starts no more attempts. Running attempts continue to their end."""
        self.stopping = self.stopping or why

    # Queries.

    @property
    def is_over(self) -> bool:
        """True if no attempt runs and no further attempt will start."""
        return not self.running and (bool(self.stopping) or not self.threads.left)

    @property
    def slots(self) -> int:
        """Number of slots that are not being released."""
        return len(self.held_slots) - len(self._by_phase[Phase.RELEASING])

    @property
    def speculative(self) -> int:
        """Number of second runs in progress."""
        return len(self.running) - self.threads.counts[RUNNING]

    def running_times_s(self, now: float) -> list[float]:
        """Returns the time for which each attempt has been running, in seconds."""
        return [max(0.0, now - each.start_time) for each in self.running.values()]

    # Decisions.

    def decide(self, now: float) -> Actions:
        """Returns all actions to take now. From then on, the scheduler assumes that these actions
        are done.

        Example: 10 threads remain, 3 slots are free, 2 slots have run a thread, and 6 requests
        wait. Three attempts start, so 7 threads need a slot. The session requests the reuse of both
        used slots, each for one waiting request. 4 other waiting requests and 2 possible reuses are
        left, so 1 more request is submitted.
        """
        # Do this first, so that threads whose delay is over count when slots are assigned, reused
        # and requested.
        self.threads.wake(now)
        stragglers = [] if self.stopping else self._stragglers(now)
        self._start_attempts(stragglers, now)
        need = 0 if self.stopping else self.threads.counts[TODO] + len(stragglers)
        self._reuse(need)
        self._adjust_requests(need)
        actions, self._actions = self._actions, Actions()
        return actions

    def _start_attempts(self, stragglers: list[int], now: float) -> None:
        for held in list(self._by_phase[Phase.FREE].values()):
            thread = self._thread_for(held, stragglers)
            if thread is None:
                return
            # Each start has a new number, so its task id differs from the task ids of earlier
            # starts.
            attempt = self._attempt_counts.get(thread, 0) + 1
            self._attempt_counts[thread] = attempt
            self._actions.changes.begun.append(
                AttemptRow(
                    thread,
                    attempt,
                    self._job,
                    held.allocation_id,
                    held.generation,
                    held.executor_id,
                    now,
                )
            )
            self._start_attempt(held, (thread, attempt), now)

    def _thread_for(self, held: HeldSlot, stragglers: list[int]) -> int | None:
        if self.stopping:
            return None
        thread = self.threads.next(held.member)
        if thread is None and stragglers:
            return stragglers.pop()
        return thread

    def _reuse(self, need: int) -> None:
        awaiting, first_new = self._by_phase[Phase.AWAITING_REUSE], self._next_member
        for held in list(self._by_phase[Phase.USED].values()):
            # Each reused slot serves one thread, so do not request more reuses than threads.
            wanted = need > len(awaiting) and len(awaiting) < REUSES_AT_ONCE_MAX
            if wanted and self.waiting:
                # Indexes ascend over time, so the first member is usually the oldest request.
                member = self.waiting.first
                self.waiting.remove(member)
            elif wanted and self._next_member - first_new < NEW_REUSES_MAX:
                # No request waits, for example because the batch has `slots_max` slots. So a new
                # request is submitted in the same call.
                member = self._next_member
                self._next_member += 1
            else:
                self._set_phase(held, Phase.SPENT)
                continue
            self._reuse_members[member] = False
            self._set_phase(held, Phase.AWAITING_REUSE)
            self._actions.reuse.append((held.key, member))
            self._actions.reports[held.key] = held.report
        if count := self._next_member - first_new:
            self._actions.reuse_new = first_new, count
            self._actions.changes.submitted.append(SubmittedRow(first_new, count))
        for held in list(self._by_phase[Phase.SPENT].values()):
            self._release(held)

    def _adjust_requests(self, need: int) -> None:
        """Makes queued requests plus free slots equal to the number of threads that need a slot."""
        free, awaiting = self._by_phase[Phase.FREE], self._by_phase[Phase.AWAITING_REUSE]
        have = len(self.waiting) + len(free) + len(awaiting)
        # Release free slots before requests are cancelled, because a free slot keeps capacity from
        # other jobs.
        for held in list(free.values())[: max(0, have - need)]:
            self._release(held)
            have -= 1
        if have > need + need // SURPLUS_PART:
            # Cancel the members with the highest indexes: usually the youngest requests, which have
            # waited least.
            for first, end in take_last(self.waiting, have - need):
                self._given_up.add_run(first, end)
                self._actions.give_up.append((first, end - first))
        missing = need - have
        if self.spec.slots_max:
            missing = min(missing, self.spec.slots_max - len(self.waiting) - len(self.held_slots))
        if missing > 0:
            self._actions.ask = self._next_member, missing
            # The session writes this to disk before the call, so that no later runner uses these
            # members again.
            self._actions.changes.submitted.append(SubmittedRow(self._next_member, missing))
            self.waiting.add_run(self._next_member, self._next_member + missing)
            # Never use a member twice, even after a refusal.
            self._next_member += missing

    def _stragglers(self, now: float) -> list[int]:
        """Returns the threads to run a second time. The thread that has run longest is last."""
        spec = self.spec
        # A second run must not take a slot from a thread that has not run yet.
        if not spec.speculate or self.threads.counts[TODO] or self.threads.counts[DELAYED]:
            return []
        limit_s = self.rate.straggler_after_s(spec.straggler_factor, spec.threads)
        if limit_s is None:
            return []
        late = [
            (run.start_time, thread)
            for (thread, _), run in self.running.items()
            if now - run.start_time >= limit_s and len(self._running_of[thread]) == 1
        ]
        return [thread for _, thread in sorted(late, reverse=True)]

    # Steps of one thread or one slot.

    def _start_attempt(
        self, held: HeldSlot, key: AttemptKey, start_time: float, *, again: bool = False
    ) -> None:
        self.threads.set(key[0], RUNNING)
        self.running[key] = RunningAttempt(held.key, start_time)
        self._running_of.setdefault(key[0], set()).add(key)
        self._set_phase(held, Phase.BUSY)
        held.run = key
        if held.slice_start_time is None:
            held.slice_start_time = start_time
        self._actions.start.append(Start(held.key, *key, again=again))

    def _leave_slot(
        self, run: RunningAttempt, key: AttemptKey, outcome: AttemptOutcome, now: float
    ) -> HeldSlot | None:
        """Ends an attempt in its slot. Returns the slot, or None if the batch has lost it."""
        held = self.held_slots.get(run.slot[0])
        if held is None or held.run != key or held.key != run.slot:
            return None
        held.run = None
        held.uses += 1
        if outcome.ending is Ending.LOST or held.uses >= USES_MAX:
            self._set_phase(held, Phase.SPENT)
        elif outcome.ending is Ending.OK and self._in_slice(held, now):
            self._set_phase(held, Phase.FREE)
        else:
            self._set_phase(held, Phase.USED)
        return held

    def _in_slice(self, held: HeldSlot, now: float) -> bool:
        """Returns whether the slot may run the next thread without a question to the resource
        manager.
        """
        # A long thread must not start without a question, and the time limit of a slot starts again
        # only with a reuse.
        if held.slice_start_time is None or self.spec.slot.time_limit_s is not None:
            return False
        is_open = 0 <= now - held.slice_start_time < TIME_SLICE_S
        return is_open and self.rate.are_short(TIME_SLICE_S)

    def _failed(
        self, key: AttemptKey, outcome: AttemptOutcome, result: ThreadResult, now: float
    ) -> None:
        thread = key[0]
        # If no host can execute the command, every thread would fail. So stop the batch after a few
        # tries.
        if outcome.ending is Ending.REFUSED and not self._anything_started:
            self._refusals += 1
            if self._refusals >= min(REFUSALS_MAX, self.spec.threads):
                self.stop(f"the command cannot be executed: {outcome.message}")
            self._actions.discard.append(key)
            self._close(key, "refused", outcome.message)
            self._delay(thread, 1, now)
            return
        failures = self._failures[thread] = self._failures.get(thread, 0) + 1
        # The thread does not fail yet: another attempt still runs and can succeed, or a retry is
        # left.
        if self._running_of[thread] or failures <= self.spec.retries:
            self.retried += 1
            self._actions.discard.append(key)
            self._close(key, "failed", outcome.message)
            self._delay(thread, failures, now)
            return
        self._finish(key, result, ThreadState.FAILED)

    def _delay(self, thread: int, failures: int, now: float) -> None:
        # If a second run of the thread is in progress, wait for its result instead.
        if not self._running_of[thread]:
            self.threads.delay(thread, now + self.spec.retry_after_s(failures))

    def _attempt_lost(
        self, thread: int, attempt: int, message: str, *, revoked: bool = False
    ) -> None:
        # A thread can be revoked any number of times: its command is not the cause.
        self._close((thread, attempt), "revoked" if revoked else "lost", message)
        losses = self._lost.get(thread, 0)
        if not revoked:
            self.losses += 1
            losses = self._lost[thread] = losses + 1
        if self.threads[thread] in ENDED or self._running_of.get(thread):
            return
        # Queue the thread without a delay: usually, the command did not cause the loss of its slot.
        if losses < LOSSES_MAX:
            self.threads.to_do(thread)
            return
        result = unknown_result(thread, f"lost its slot {losses} times, last: {message}")
        self._finish((thread, attempt), result, ThreadState.FAILED)

    def _finish(self, key: AttemptKey, result: ThreadResult, state: ThreadState) -> None:
        thread, attempt = key
        attempts = self._attempt_counts.get(thread, attempt)
        if (result.state, result.attempt, result.attempts) != (state, attempt, attempts):
            result = replace(result, state=state, attempt=attempt, attempts=attempts)
        self._actions.changes.results.append(result)
        self._close(key, "ok" if result.ok else "failed", "" if result.ok else result.message)
        self._actions.publish.append(key)
        self.threads.set(thread, DONE if result.ok else FAILED)
        # At most one other attempt exists: the slower run of the same thread.
        for other in self._running_of.get(thread, ()):
            self._actions.cancel.append(other)
        most = 0 if self.spec.on_failure == "stop" else self.spec.failures_max
        failed = self.threads.counts[FAILED]
        if state is ThreadState.FAILED and most is not None and failed > most:
            some = f"{failed} threads have failed, the last one: " if failed > 1 else ""
            self.stop(f"{some}thread {thread} {result.message}")

    def _close(self, key: AttemptKey, outcome: str, message: str) -> None:
        # The message can contain output of the task. Cut it, because the state file must stay
        # small.
        self._actions.changes.ended.append((*key, outcome, message[:1000]))

    def _set_phase(self, held: HeldSlot, phase: Phase) -> None:
        self._by_phase[held.phase].pop(held.allocation_id, None)
        held.phase = phase
        self._by_phase[phase][held.allocation_id] = held

    def _release(self, held: HeldSlot) -> None:
        self._set_phase(held, Phase.RELEASING)
        self._actions.release.append(held.key)
        self._actions.reports[held.key] = held.report

    def _drop(self, allocation_id: str) -> None:
        held = self.held_slots.pop(allocation_id, None)
        if held is not None:
            self._by_phase[held.phase].pop(allocation_id, None)

    def _not_waiting(self, member: int) -> None:
        self.waiting.discard(member)
        if member in self._reuse_members:
            self._reuse_members[member] = True

"""The book of a batch: which thread of work stands where, and what is to be done next.

Decides which thread a slot runs, what the end of an attempt means, how many requests have to be in
line, and when a thread is run a second time. Whatever was lost, cancelled or used up, the number of
requests and free slots is brought to the number of threads that need one, so that nothing has to be
matched one by one. Refuses to know clocks, files and the network: it is told what happened and
says what to do, and whoever does that writes `Actions.changes` to disk first. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from finegrain.intervals import IntervalSet
from finegrain_client.batch.holding import (
    Actions,
    AttemptKey,
    Ending,
    Hold,
    Phase,
    Run,
    RunOutcome,
    SlotKey,
    Start,
    take_last,
)
from finegrain_client.batch.rate import Rate
from finegrain_client.batch.rows import AttemptRow, Known, SubmittedRow
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.threads import DELAYED, DONE, ENDED, FAILED, RUNNING, TODO, Threads
from finegrain_client.batch.values import ThreadResult, ThreadState, nothing_known

LOSSES_MAX = 20
"""A thread whose slot is lost so often is given up: perhaps it is what its hosts die of."""

REFUSALS_MAX = 3
"""So many commands that cannot be executed, and none that could, stop a batch."""

USES_MAX = 100
"""Threads that one slot runs before it is given back: executors keep the tasks of a slot, with all
that they wrote, as long as it exists."""

REUSES_AT_ONCE_MAX = 5_000


class Book:
    """The threads of one batch, during one life of its job.

    Attributes:
        stopping: why nothing more is started; empty while all is well.
        threads: where each of them stands.
        holds: slots by allocation id.
        waiting: members of the job's range that are queued.
    """

    def __init__(self, spec: BatchSpec, known: Known, job: int = 0) -> None:
        self.spec = spec
        self.stopping = ""
        self.pace = Rate(known.durations_s)
        self.waiting = IntervalSet()
        self.holds: dict[str, Hold] = {}
        self.runs: dict[AttemptKey, Run] = {}
        self.retried = sum(known.failures.values())
        self.losses = sum(known.losses.values())
        self._job = job
        self.threads = Threads(spec.threads, known.final)
        self._attempts = dict(known.attempts)
        self._failures = dict(known.failures)
        self._lost = dict(known.losses)
        self._runs_of: dict[int, set[AttemptKey]] = {}
        self._next_member = max(
            (each.first_index + each.count for each in known.submitted), default=0
        )
        self._in: dict[Phase, dict[str, Hold]] = {phase: {} for phase in Phase}
        self._named: dict[int, bool] = {}  # members named in a question of reuse: are they gone?
        self._given_up = IntervalSet()
        self._former: dict[SlotKey, tuple[AttemptKey, float]] = {}  # and when it began
        self._used: set[SlotKey] = set()
        self._unknown: set[AttemptKey] = set()
        self._refusals = 0
        self._anything_started = bool(known.durations_s)
        self._next = Actions()

    # What a job that lives on brings along.

    def take_over(
        self,
        unknown: Iterable[AttemptRow],
        lost: Iterable[AttemptRow] = (),
        used: Iterable[SlotKey] = (),
    ) -> None:
        """Attempts of which it is not known how they ended, some of them given up for lost, and
        slots that have run something. `granted` for every slot that there is follows.
        """
        for each in (*lost, *unknown):
            key = each.allocation_id, each.generation
            self._former[key] = (each.thread, each.attempt), each.start_time
        self._used.update(used)
        self._unknown = {(each.thread, each.attempt) for each in unknown}

    def taken_over(self) -> None:
        """All slots that there are were told of: what ran in others is lost."""
        for (thread, attempt), _ in list(self._former.values()):
            if (thread, attempt) in self._unknown:
                self._lose(thread, attempt, "its slot was gone when the runner came back")
        self._unknown = set()
        self._used.clear()

    # What happens to slots.

    def granted(self, key: SlotKey, member: int, executor_id: str) -> None:
        """A request has its slot; once more is fine."""
        allocation_id, generation = key
        self._not_waiting(member)
        if (known := self.holds.get(allocation_id)) is not None:
            if known.generation >= generation:
                return
            self._drop(allocation_id)
        hold = Hold(allocation_id, generation, member, executor_id)
        self.holds[allocation_id] = self._in[hold.phase][allocation_id] = hold
        former, began = self._former.pop(key, (None, 0.0))
        if member in self._given_up:
            self._enter(hold, Phase.GOING)  # it is being taken back
        elif former is None:
            self._enter(hold, Phase.USED if key in self._used else Phase.FREE)
        elif self.threads[former[0]] == TODO and not self.stopping:
            self._next.changes.reopened.append(former)
            self._begin(hold, former, began, again=True)
        else:
            self._close(former, "cancelled", "its thread is done, or runs elsewhere")
            self._enter(hold, Phase.SPENT)  # nobody waits for what runs in it

    def requeued(self, allocation_id: str, member: int) -> None:
        """Its slot was lost; it waits for the next one."""
        self._drop(allocation_id)
        if member not in self._named and member not in self._given_up:
            self.waiting.add(member)

    def request_ended(self, allocation_id: str, member: int, count: int = 1) -> None:
        """It waits no more, and has no slot; `count` above 1: nor do those that follow, which never
        had one.
        """
        self._drop(allocation_id)
        self._not_waiting(member)
        self.waiting.remove_run(member, member + count)
        for each in self._named.keys() & range(member, member + count) if count > 1 else ():
            self._named[each] = True

    def queued(self, first: int, count: int) -> None:
        """Requests wait, as far as the resource manager says."""
        self.waiting.add_run(first, first + count)

    def not_taken_in(self, first: int, count: int) -> None:
        """Requests that were asked for were refused."""
        self.waiting.remove_run(first, first + count)

    def reuse_answered(self, key: SlotKey, member: int, *, agreed: bool) -> None:
        """Whether a slot may run one more thread; if not, it is being given back."""
        gone = self._named.pop(member, True)
        if not agreed and not gone:
            self.waiting.add(member)  # it waits on
        hold = self.holds.get(key[0])
        if hold is not None and hold.key == key and hold.phase is Phase.ASKING:
            self._enter(hold, Phase.FREE if agreed else Phase.GOING)

    # What happens to attempts.

    def started(self) -> None:
        """A command could be executed."""
        self._anything_started = True

    def run_ended(self, key: AttemptKey, outcome: RunOutcome, now: float) -> None:
        """An attempt came to its end; once more is fine."""
        run = self.runs.pop(key, None)
        if run is None:
            return
        self._runs_of[key[0]].discard(key)
        self._leave_slot(run, key, outcome)
        if self.threads[key[0]] in ENDED:
            self._close(key, "cancelled", "another run of its thread came first")
            self._next.discard.append(key)
        elif outcome.ending is Ending.OK and outcome.result is not None:
            self.pace.add(outcome.result.duration_s)
            self._finish(key, outcome.result, ThreadState.DONE)
        elif outcome.ending in (Ending.FAILED, Ending.REFUSED) and outcome.result is not None:
            self._failed(key, outcome, outcome.result, now)
        else:
            self._former[run.slot] = key, run.start_time  # the slot may come back with it
            self._next.discard.append(key)
            self._lose(*key, outcome.message)

    def stop(self, why: str) -> None:
        """Nothing more is started; what runs goes on to its end."""
        self.stopping = self.stopping or why

    # What is known.

    @property
    def is_over(self) -> bool:
        """True where nothing runs, and nothing more will."""
        return not self.runs and (bool(self.stopping) or not self.threads.left)

    @property
    def slots(self) -> int:
        """Slots that are held and not being given back."""
        return len(self.holds) - len(self._in[Phase.GOING])

    @property
    def speculative(self) -> int:
        """Second runs that are under way."""
        return len(self.runs) - self.threads.counts[RUNNING]

    def runs_for_s(self, now: float) -> list[float]:
        """For how long each attempt has been running."""
        return [max(0.0, now - each.start_time) for each in self.runs.values()]

    # What is to be done.

    def decide(self, now: float) -> Actions:
        """Everything that is to be done now; from here on it counts as done."""
        self.threads.wake(now)
        twice = [] if self.stopping else self._stragglers(now)
        self._start(twice, now)
        need = 0 if self.stopping else self.threads.counts[TODO] + len(twice)
        self._reuse(need)
        self._balance(need)
        actions, self._next = self._next, Actions()
        return actions

    def _start(self, twice: list[int], now: float) -> None:
        for hold in list(self._in[Phase.FREE].values()):
            thread = self._thread_for(hold, twice)
            if thread is None:
                return
            attempt = self._attempts.get(thread, 0) + 1
            self._attempts[thread] = attempt
            self._next.changes.begun.append(
                AttemptRow(
                    thread,
                    attempt,
                    self._job,
                    hold.allocation_id,
                    hold.generation,
                    hold.executor_id,
                    now,
                )
            )
            self._begin(hold, (thread, attempt), now)

    def _thread_for(self, hold: Hold, twice: list[int]) -> int | None:
        if self.stopping:
            return None
        thread = self.threads.next(hold.member)
        if thread is None and twice:
            return twice.pop()
        return thread

    def _reuse(self, need: int) -> None:
        asking = self._in[Phase.ASKING]
        for hold in list(self._in[Phase.USED].values()):
            wanted = need > len(asking) and len(asking) < REUSES_AT_ONCE_MAX
            if not (wanted and self.waiting):
                self._enter(hold, Phase.SPENT)
                continue
            member = self.waiting.first
            self.waiting.remove(member)
            self._named[member] = False
            self._enter(hold, Phase.ASKING)
            self._next.reuse.append((hold.key, member))
        for hold in list(self._in[Phase.SPENT].values()):
            self._give_back(hold)

    def _balance(self, need: int) -> None:
        """As many queued, or free, as there are threads that need one."""
        have = len(self.waiting) + len(self._in[Phase.FREE]) + len(self._in[Phase.ASKING])
        for hold in list(self._in[Phase.FREE].values())[: max(0, have - need)]:
            self._give_back(hold)
            have -= 1
        if have > need:
            for first, end in take_last(self.waiting, have - need):
                self._given_up.add_run(first, end)
                self._next.give_up.append((first, end - first))
        missing = need - have
        if self.spec.slots_max:
            missing = min(missing, self.spec.slots_max - len(self.waiting) - len(self.holds))
        if missing > 0:
            self._next.ask = self._next_member, missing
            self._next.changes.submitted.append(SubmittedRow(self._next_member, missing))
            self.waiting.add_run(self._next_member, self._next_member + missing)
            self._next_member += missing

    def _stragglers(self, now: float) -> list[int]:
        """Threads that are to be run a second time, the one that has run longest last."""
        spec = self.spec
        if not spec.speculate or self.threads.counts[TODO] or self.threads.counts[DELAYED]:
            return []
        limit_s = self.pace.straggler_after_s(spec.straggler_factor, spec.threads)
        if limit_s is None:
            return []
        late = [
            (run.start_time, thread)
            for (thread, _), run in self.runs.items()
            if now - run.start_time >= limit_s and len(self._runs_of[thread]) == 1
        ]
        return [thread for _, thread in sorted(late, reverse=True)]

    # Steps of one thread, or one slot.

    def _begin(self, hold: Hold, key: AttemptKey, began: float, *, again: bool = False) -> None:
        self.threads.set(key[0], RUNNING)
        self.runs[key] = Run(hold.key, began)
        self._runs_of.setdefault(key[0], set()).add(key)
        self._enter(hold, Phase.BUSY)
        hold.run = key
        self._next.start.append(Start(hold.key, *key, again=again))

    def _leave_slot(self, run: Run, key: AttemptKey, outcome: RunOutcome) -> None:
        hold = self.holds.get(run.slot[0])
        if hold is None or hold.run != key or hold.key != run.slot:
            return
        hold.run = None
        hold.uses += 1
        spent = outcome.ending is Ending.LOST or hold.uses >= USES_MAX
        self._enter(hold, Phase.SPENT if spent else Phase.USED)

    def _failed(
        self, key: AttemptKey, outcome: RunOutcome, result: ThreadResult, now: float
    ) -> None:
        thread = key[0]
        if outcome.ending is Ending.REFUSED and not self._anything_started:
            self._refusals += 1
            if self._refusals >= min(REFUSALS_MAX, self.spec.threads):
                self.stop(f"the command cannot be executed: {outcome.message}")
            self._next.discard.append(key)
            self._close(key, "refused", outcome.message)
            self._delay(thread, 1, now)
            return
        failures = self._failures[thread] = self._failures.get(thread, 0) + 1
        if self._runs_of[thread] or failures <= self.spec.retries:
            self.retried += 1
            self._next.discard.append(key)
            self._close(key, "failed", outcome.message)
            self._delay(thread, failures, now)
            return
        self._finish(key, result, ThreadState.FAILED)

    def _delay(self, thread: int, failures: int, now: float) -> None:
        if not self._runs_of[thread]:
            self.threads.delay(thread, now + self.spec.retry_after_s(failures))

    def _lose(self, thread: int, attempt: int, message: str) -> None:
        self._close((thread, attempt), "lost", message)
        self.losses += 1
        losses = self._lost[thread] = self._lost.get(thread, 0) + 1
        if self.threads[thread] in ENDED or self._runs_of.get(thread):
            return
        if losses < LOSSES_MAX:
            self.threads.to_do(thread)
            return
        result = nothing_known(thread, f"lost its slot {losses} times, last: {message}")
        self._finish((thread, attempt), result, ThreadState.FAILED)

    def _finish(self, key: AttemptKey, result: ThreadResult, state: ThreadState) -> None:
        thread, attempt = key
        attempts = self._attempts.get(thread, attempt)
        result = replace(result, state=state, attempt=attempt, attempts=attempts)
        self._next.changes.results.append(result)
        self._close(key, "ok" if result.ok else "failed", "" if result.ok else result.message)
        self._next.publish.append(key)
        self.threads.set(thread, DONE if result.ok else FAILED)
        for other in self._runs_of.get(thread, ()):
            self._next.cancel.append(other)
        most = 0 if self.spec.on_failure == "stop" else self.spec.failures_max
        failed = self.threads.counts[FAILED]
        if state is ThreadState.FAILED and most is not None and failed > most:
            some = f"{failed} threads have failed, the last one: " if failed > 1 else ""
            self.stop(f"{some}thread {thread} {result.message}")

    def _close(self, key: AttemptKey, outcome: str, message: str) -> None:
        self._next.changes.ended.append((*key, outcome, message[:1000]))

    def _enter(self, hold: Hold, phase: Phase) -> None:
        self._in[hold.phase].pop(hold.allocation_id, None)
        hold.phase = phase
        self._in[phase][hold.allocation_id] = hold

    def _give_back(self, hold: Hold) -> None:
        self._enter(hold, Phase.GOING)
        self._next.release.append(hold.key)

    def _drop(self, allocation_id: str) -> None:
        hold = self.holds.pop(allocation_id, None)
        if hold is not None:
            self._in[hold.phase].pop(allocation_id, None)

    def _not_waiting(self, member: int) -> None:
        self.waiting.discard(member)
        if member in self._named:
            self._named[member] = True

"""Tests of the batch scheduler: which thread runs in which slot, and which threads are retried and
queued.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import finegrain_client as fg
from finegrain.intervals import IntervalSet
from finegrain.values.outcomes import ThreadReport
from finegrain_client.batch.rows import AttemptRow, Known, SubmittedRow
from finegrain_client.batch.scheduler import (
    LOSSES_MAX,
    NEW_REUSES_MAX,
    REFUSALS_MAX,
    TIME_SLICE_S,
    USES_MAX,
    BatchScheduler,
)
from finegrain_client.batch.scheduler_state import (
    Actions,
    AttemptOutcome,
    Ending,
    SlotKey,
    Start,
    take_last,
)
from finegrain_client.batch.threads import DELAYED, DONE, FAILED, TODO
from finegrain_client.batch.values import unknown_result

OK = AttemptOutcome(Ending.OK, unknown_result(0, ""))
BAD = AttemptOutcome(Ending.FAILED, unknown_result(0, "exit 1"), "exit 1")
REFUSED = AttemptOutcome(Ending.REFUSED, unknown_result(0, "not found"), "not found")
LOST = AttemptOutcome(Ending.LOST, message="lost")
REVOKED = AttemptOutcome(Ending.LOST, message="revoked", reason="REVOKED")
ONE_FINISHED = ThreadReport(fg.ThreadEnd.FINISHED)
NONE_FINISHED = ThreadReport(fg.ThreadEnd.UNFINISHED)
CANCELLED = AttemptOutcome(Ending.CANCELLED, message="cancelled")


class Scenario:
    """A scheduler, a clock, and the names of slots by member."""

    def __init__(self, threads: int, known: Known | None = None, **spec: Any) -> None:
        more = {"retry_delay_s": 10.0} | spec
        self.scheduler = BatchScheduler(fg.BatchSpec(threads, ["work"], **more), known or Known())
        self.now = 1000.0

    def is_over(self) -> bool:
        return self.scheduler.is_over

    @property
    def why(self) -> str:
        """Returns why nothing more is started."""
        return self.scheduler.stopping

    def decide(self) -> Actions:
        return self.scheduler.decide(self.now)

    def grant(self, *members: int, generation: int = 1) -> Actions:
        for member in members:
            self.scheduler.granted(slot(member, generation), member, "host-a")
        return self.decide()

    def end(
        self,
        thread: int,
        attempt: int,
        outcome: AttemptOutcome,
        *,
        after_s: float = TIME_SLICE_S,
    ) -> Actions:
        """Ends an attempt; by default so late that the time slice of its slot has ended, too."""
        self.now += after_s
        self.scheduler.attempt_ended((thread, attempt), outcome, self.now)
        return self.decide()


def slot(member: int, generation: int = 1) -> SlotKey:
    return f"r.{member}", generation


def test_a_new_batch_asks_for_a_slot_per_thread() -> None:
    scenario = Scenario(5)
    actions = scenario.decide()
    assert actions.ask == (0, 5)
    assert [(each.first_index, each.count) for each in actions.changes.submitted] == [(0, 5)]
    assert scenario.decide().ask is None


def test_a_slot_runs_the_thread_of_its_own_index() -> None:
    scenario = Scenario(5)
    scenario.decide()
    assert scenario.grant(3, 1).start == [Start(slot(3), 3, 1), Start(slot(1), 1, 1)]


def test_an_attempt_is_written_down_with_its_slot() -> None:
    scenario = Scenario(1)
    scenario.decide()
    actions = scenario.grant(0)
    assert actions.changes.begun == [AttemptRow(0, 1, 0, "r.0", 1, "host-a", 1000.0)]


def test_a_slot_whose_thread_is_done_is_asked_for_the_next_one_in_line() -> None:
    scenario = Scenario(3)
    scenario.decide()
    scenario.grant(1)
    actions = scenario.end(1, 1, OK)
    assert actions.reuse == [(slot(1), 0)]
    assert (actions.start, actions.release) == ([], [])
    scenario.scheduler.reuse_answered(slot(1), 0, agreed=True)
    assert scenario.decide().start == [Start(slot(1), 0, 1)]


def test_a_slot_that_may_not_go_on_is_gone_and_the_request_waits_on() -> None:
    scenario = Scenario(2)
    scenario.decide()
    scenario.grant(0)
    scenario.end(0, 1, OK)
    scenario.scheduler.reuse_answered(slot(0), 1, agreed=False)
    actions = scenario.decide()
    assert (actions.start, actions.ask, actions.release) == ([], None, [])
    assert list(scenario.scheduler.waiting) == [1]
    assert scenario.grant(1).start == [Start(slot(1), 1, 1)]


def test_a_request_that_was_named_and_ended_otherwise_is_asked_for_anew() -> None:
    """Otherwise the scheduler would count a waiting request that the RM does not know."""
    scenario = Scenario(2)
    scenario.decide()
    scenario.grant(0)
    scenario.end(0, 1, OK)
    scenario.scheduler.request_ended("r.1", 1)
    scenario.scheduler.reuse_answered(slot(0), 1, agreed=False)
    assert scenario.decide().ask == (2, 1)


def test_nothing_left_to_do_gives_the_slots_back() -> None:
    scenario = Scenario(1)
    scenario.decide()
    scenario.grant(0)
    actions = scenario.end(0, 1, OK)
    assert actions.release == [slot(0)]
    assert [each.ok for each in actions.changes.results] == [True]
    assert scenario.is_over()


def test_a_slot_is_given_back_after_so_many_threads() -> None:
    scenario = Scenario(USES_MAX + 5)
    scenario.decide()
    actions = scenario.grant(0)
    for _ in range(USES_MAX - 1):
        (start,) = actions.start
        ((key, member),) = scenario.end(start.thread, 1, OK).reuse
        scenario.scheduler.reuse_answered(key, member, agreed=True)
        actions = scenario.decide()
    (start,) = actions.start
    assert scenario.end(start.thread, 1, OK).release == [slot(0)]


def test_a_thread_that_failed_is_tried_again_later_and_asks_for_a_slot_then() -> None:
    scenario = Scenario(1, retries=1)
    scenario.decide()
    scenario.grant(0)
    actions = scenario.end(0, 1, BAD)
    assert actions.release == [slot(0)]
    assert actions.changes.ended == [(0, 1, "failed", "exit 1")]
    assert scenario.scheduler.threads[0] == DELAYED
    scenario.now += 9
    assert scenario.decide().ask is None
    scenario.now += 1
    assert scenario.decide().ask == (1, 1)
    assert scenario.grant(1).start == [Start(slot(1), 0, 2)]
    (result,) = scenario.end(0, 2, BAD).changes.results
    assert (result.ok, result.attempt, result.attempts) == (False, 2, 2)
    assert scenario.is_over()


def test_pauses_before_retries_double_up_to_a_minute() -> None:
    spec = fg.BatchSpec(1, ["work"], retry_delay_s=1)
    assert [spec.retry_after_s(each) for each in (1, 2, 3, 7, 500)] == [1, 2, 4, 60, 60]


def test_a_lost_slot_is_no_failure_and_its_thread_comes_first() -> None:
    scenario = Scenario(3, retries=0)
    scenario.decide()
    scenario.grant(0, 1)
    scenario.scheduler.requeued("r.0", 0)
    scenario.end(0, 1, LOST)
    assert scenario.scheduler.threads[0] == TODO
    assert scenario.grant(2).start == [Start(slot(2), 2, 1)]
    assert scenario.grant(0, generation=2).start == [Start(slot(0, 2), 0, 2)]


def test_a_thread_that_is_revoked_again_and_again_uses_no_retry_and_never_fails() -> None:
    scenario = Scenario(1, retries=0)
    scenario.decide()
    for attempt in range(1, LOSSES_MAX + 5):
        start = Start(slot(0, attempt), 0, attempt)
        assert scenario.grant(0, generation=attempt).start == [start]
        scenario.scheduler.requeued("r.0", 0)
        actions = scenario.end(0, attempt, REVOKED)
        assert actions.changes.ended == [(0, attempt, "revoked", "revoked")]
    assert scenario.scheduler.losses == 0
    scenario.grant(0, generation=100)
    assert scenario.end(0, LOSSES_MAX + 5, OK).changes.results[0].ok


def test_a_slot_that_comes_back_with_its_task_goes_on_with_it() -> None:
    """Its executor was silent for too long, but still ran: the same attempt continues."""
    scenario = Scenario(1)
    scenario.decide()
    scenario.grant(0)
    scenario.scheduler.requeued("r.0", 0)
    scenario.end(0, 1, LOST)
    actions = scenario.grant(0)
    assert actions.start == [Start(slot(0), 0, 1, again=True)]
    assert actions.changes.reopened == [(0, 1)]


def test_a_slot_that_comes_back_too_late_is_not_used() -> None:
    """Its task may still run there, and its thread runs elsewhere."""
    scenario = Scenario(1)
    scenario.decide()
    scenario.grant(0)
    scenario.scheduler.request_ended("r.0", 0)
    assert scenario.end(0, 1, LOST).ask == (1, 1)
    assert scenario.grant(1).start == [Start(slot(1), 0, 2)]
    actions = scenario.grant(0)
    assert (actions.start, actions.release) == ([], [slot(0)])


def test_a_thread_that_loses_every_slot_is_given_up() -> None:
    scenario = Scenario(2, on_failure="stop")
    scenario.decide()
    for generation in range(1, LOSSES_MAX + 1):
        scenario.grant(0, generation=generation)
        scenario.scheduler.requeued("r.0", 0)
        actions = scenario.end(0, generation, LOST)
    (result,) = actions.changes.results
    assert "lost its slot" in result.message
    assert scenario.why.startswith("thread 0 lost its slot")
    assert scenario.scheduler.threads[0] == FAILED


def test_a_task_that_somebody_ended_is_run_again() -> None:
    scenario = Scenario(1, retries=0)
    scenario.decide()
    scenario.grant(0)
    scenario.end(0, 1, CANCELLED)
    assert (scenario.scheduler.threads[0], scenario.scheduler.losses) == (TODO, 1)


def test_a_command_that_nobody_has_stops_the_batch() -> None:
    scenario = Scenario(500)
    scenario.decide()
    scenario.grant(*range(10))
    for thread in range(REFUSALS_MAX):
        scenario.end(thread, 1, REFUSED)
    assert "not found" in scenario.why
    for thread in range(REFUSALS_MAX, 10):
        scenario.end(thread, 1, REFUSED)
    assert scenario.is_over()
    assert scenario.scheduler.threads.left == 500


def test_a_command_that_one_host_does_not_have_is_tried_elsewhere() -> None:
    scenario = Scenario(500, retries=1)
    scenario.decide()
    scenario.grant(*range(6))
    scenario.scheduler.command_started()
    for thread in range(6):
        scenario.end(thread, 1, REFUSED)
    assert scenario.why == ""
    assert scenario.scheduler.threads.counts[DELAYED] == 6


def test_the_first_failure_stops_where_that_is_wished() -> None:
    scenario = Scenario(10, retries=0, on_failure="stop")
    scenario.decide()
    scenario.grant(0, 1)
    actions = scenario.end(0, 1, BAD)
    assert actions.release == [slot(0)]
    assert actions.give_up == [(2, 8)]
    assert not scenario.is_over()
    scenario.end(1, 1, OK)
    assert scenario.is_over()
    assert (scenario.scheduler.threads.counts[DONE], scenario.scheduler.threads.left) == (1, 8)


def test_too_many_failures_stop_a_batch() -> None:
    scenario = Scenario(10, retries=0, failures_max=1)
    scenario.decide()
    scenario.grant(0, 1)
    scenario.end(0, 1, BAD)
    assert scenario.why == ""
    scenario.end(1, 1, BAD)
    assert "2 threads have failed" in scenario.why


def straggling(**spec: Any) -> Scenario:
    """Nine of ten threads took one second, and the last thread runs for three seconds."""
    scenario = Scenario(10, speculate=True, **spec)
    scenario.decide()
    scenario.grant(*range(10))
    for thread in range(9):
        done = AttemptOutcome(Ending.OK, unknown_result(thread, ""))
        assert done.result is not None
        object.__setattr__(done.result, "duration_s", 1.0)
        scenario.end(thread, 1, done)
    scenario.now += 3
    return scenario


def test_a_straggler_runs_a_second_time_and_the_first_to_finish_counts() -> None:
    scenario = straggling()
    assert scenario.decide().ask == (10, 1)
    assert scenario.grant(10).start == [Start(slot(10), 9, 2)]
    assert scenario.decide().ask is None
    assert scenario.scheduler.speculative == 1
    actions = scenario.end(9, 2, OK)
    assert [each.attempt for each in actions.changes.results] == [2]
    assert actions.cancel == [(9, 1)]
    assert not scenario.is_over()
    actions = scenario.end(9, 1, OK)
    assert not actions.changes.results
    assert scenario.is_over()


def test_a_straggler_that_ends_by_itself_wants_no_second_run() -> None:
    scenario = straggling()
    scenario.decide()
    actions = scenario.end(9, 1, OK)
    assert actions.give_up == [(10, 1)]
    assert scenario.grant(10).start == []


def test_nobody_is_a_straggler_while_others_wait_or_without_the_wish() -> None:
    scenario = straggling()
    scenario.scheduler.spec = fg.BatchSpec(10, ["work"])
    assert scenario.decide().ask is None


def test_a_failed_second_run_leaves_the_first_one_alone() -> None:
    scenario = straggling(retries=0)
    scenario.decide()
    scenario.grant(10)
    actions = scenario.end(9, 2, BAD)
    assert not actions.changes.results
    assert scenario.end(9, 1, OK).changes.results[0].ok


def test_no_more_slots_than_wished_are_asked_for() -> None:
    scenario = Scenario(10, slots_max=3)
    assert scenario.decide().ask == (0, 3)
    scenario.grant(0, 1, 2)
    actions = scenario.end(1, 1, OK)
    assert (actions.release, actions.ask) == ([], None)
    assert scenario.scheduler.slots == 3


def test_a_slot_is_reused_for_a_new_request_if_no_request_waits() -> None:
    """Three slots are all that the batch may have, so no request waits."""
    scenario = Scenario(10, slots_max=3)
    scenario.decide()
    scenario.grant(0, 1, 2)
    actions = scenario.end(1, 1, OK)
    assert (actions.reuse, actions.reuse_new) == ([(slot(1), 3)], (3, 1))
    assert [(each.first_index, each.count) for each in actions.changes.submitted] == [(3, 1)]
    scenario.scheduler.reuse_answered(slot(1), 3, agreed=True)
    assert scenario.decide().start == [Start(slot(1), 3, 1)]


def test_a_new_request_that_gets_no_slot_again_waits_for_another_one() -> None:
    scenario = Scenario(10, slots_max=3)
    scenario.decide()
    scenario.grant(0, 1, 2)
    scenario.end(1, 1, OK)
    scenario.scheduler.reuse_answered(slot(1), 3, agreed=False)
    assert scenario.decide().ask is None  # request 3 waits, and there are two slots
    scenario.scheduler.request_ended("r.1", 1)
    assert scenario.grant(3).start == [Start(slot(3), 3, 1)]


def test_new_requests_that_were_refused_with_a_reuse_are_made_again() -> None:
    scenario = Scenario(10, slots_max=3)
    scenario.decide()
    scenario.grant(0, 1, 2)
    scenario.end(1, 1, OK)
    scenario.scheduler.reuse_answered(slot(1), 3, agreed=False)
    scenario.scheduler.submission_refused(3, 1)
    scenario.scheduler.request_ended("r.1", 1)
    assert scenario.decide().ask == (4, 1)


def test_a_call_reuses_a_limited_number_of_slots_for_new_requests() -> None:
    scenario = Scenario(2_000, slots_max=NEW_REUSES_MAX + 20)
    scenario.decide()
    scenario.grant(*range(NEW_REUSES_MAX + 20))
    scenario.now += TIME_SLICE_S
    for thread in range(NEW_REUSES_MAX + 20):
        scenario.scheduler.attempt_ended((thread, 1), OK, scenario.now)
    actions = scenario.decide()
    assert actions.reuse_new == (NEW_REUSES_MAX + 20, NEW_REUSES_MAX)
    assert (len(actions.reuse), len(actions.release)) == (NEW_REUSES_MAX, 20)


def test_requests_that_were_not_taken_in_are_made_again() -> None:
    scenario = Scenario(4)
    scenario.decide()
    scenario.scheduler.submission_refused(0, 4)
    assert scenario.decide().ask == (4, 4)


def test_a_runner_that_comes_back_takes_up_what_runs_and_repeats_what_is_lost() -> None:
    known = Known(
        final={0: fg.ThreadState.DONE},
        attempts={0: 1, 1: 1, 2: 1},
        open=[
            AttemptRow(1, 1, 0, "r.1", 1, "host-a", 900.0),
            AttemptRow(2, 1, 0, "r.2", 1, "host-a", 900.0),
        ],
        used={slot(0), slot(1), slot(2)},
        submitted=[SubmittedRow(0, 3)],
    )
    scenario = Scenario(3, known)
    scenario.scheduler.restore_attempts(known.open, known.lost, known.used)
    scenario.scheduler.granted(slot(0), 0, "host-a")
    scenario.scheduler.granted(slot(1), 1, "host-a")
    scenario.scheduler.finish_restore()
    actions = scenario.decide()
    assert actions.start == [Start(slot(1), 1, 1, again=True)]
    assert actions.changes.ended == [
        (2, 1, "lost", "its slot had ended when the runner was started again")
    ]
    # Slot 0 has run a thread and serves thread 2 next. No request waits, so a new one is submitted.
    assert (actions.reuse, actions.reuse_new) == ([(slot(0), 3)], (3, 1))
    # The earlier runner has possibly reported that the thread of slot 0 has finished.
    assert actions.reports == {slot(0): NONE_FINISHED}


def test_each_thread_is_reported_as_finished_once() -> None:
    """A failed attempt that will be repeated, and a slot that was not used, finish no thread."""
    scenario = Scenario(2, retries=1)
    scenario.decide()
    scenario.grant(0, 1)
    assert scenario.end(0, 1, OK).reports == {slot(0): ONE_FINISHED}
    assert scenario.end(1, 1, BAD).reports == {slot(1): NONE_FINISHED}
    scenario.now += 100
    assert scenario.decide().ask == (2, 1)
    scenario.grant(2)
    # The last attempt has failed, too, so the thread has its result.
    assert scenario.end(1, 2, BAD).reports == {slot(2): ONE_FINISHED}


def test_the_slower_run_of_a_thread_finishes_no_thread() -> None:
    scenario = straggling()
    scenario.decide()
    scenario.grant(10)
    assert scenario.end(9, 2, OK).reports[slot(10)] == ONE_FINISHED
    assert scenario.end(9, 1, OK).reports == {slot(9): NONE_FINISHED}


def test_a_reused_slot_that_was_not_used_again_finishes_no_second_thread() -> None:
    scenario = Scenario(2)
    scenario.decide()
    scenario.grant(0)
    ((key, member),) = scenario.end(0, 1, OK).reuse
    scenario.scheduler.stop("it was stopped")
    scenario.scheduler.reuse_answered(key, member, agreed=True)
    assert scenario.decide().reports == {slot(0): NONE_FINISHED}


def of_short_threads(threads: int = 50, **spec: Any) -> Scenario:
    """A batch in which five threads have taken 1 ms each, and slot 0 has just begun thread 5."""
    known = Known(
        final=dict.fromkeys(range(5), fg.ThreadState.DONE),
        durations_s=[0.001] * 5,
    )
    scenario = Scenario(threads, known, **spec)
    scenario.decide()
    assert scenario.grant(0).start == [Start(slot(0), 5, 1)]
    return scenario


def test_a_slot_runs_short_threads_without_a_question_until_its_time_slice_ends() -> None:
    scenario = of_short_threads()
    step_s = TIME_SLICE_S * 0.3
    for thread in (5, 6, 7):
        actions = scenario.end(thread, 1, OK, after_s=step_s)
        assert actions.start == [Start(slot(0), thread + 1, 1)]
        assert (actions.reuse, actions.release, actions.ask) == ([], [], None)
    actions = scenario.end(8, 1, OK, after_s=step_s)
    assert (actions.start, actions.reuse) == ([], [(slot(0), 1)])
    assert actions.reports == {slot(0): ThreadReport(fg.ThreadEnd.FINISHED, finished_before=3)}

    # With the answer, the next time slice begins.
    scenario.now += 1
    scenario.scheduler.reuse_answered(slot(0), 1, agreed=True)
    assert scenario.decide().start == [Start(slot(0), 9, 1)]
    assert scenario.end(9, 1, OK, after_s=step_s).start == [Start(slot(0), 10, 1)]
    actions = scenario.end(10, 1, BAD, after_s=step_s)
    assert actions.reports == {slot(0): ThreadReport(fg.ThreadEnd.UNFINISHED, finished_before=1)}


def test_a_failed_attempt_ends_the_time_slice_of_its_slot() -> None:
    scenario = of_short_threads()
    actions = scenario.end(5, 1, BAD, after_s=0.001)
    assert (actions.start, actions.reuse) == ([], [(slot(0), 1)])


def test_a_slot_whose_time_slice_lasts_is_released_when_no_thread_is_left() -> None:
    scenario = of_short_threads(6)
    actions = scenario.end(5, 1, OK, after_s=0.001)
    assert actions.release == [slot(0)]
    assert actions.reports == {slot(0): ONE_FINISHED}


def test_long_threads_never_start_without_a_question() -> None:
    """Another job could otherwise wait for such a thread."""
    scenario = of_short_threads()
    scenario.scheduler.rate.add(TIME_SLICE_S * 1.1)
    assert scenario.end(5, 1, OK, after_s=0.001).reuse == [(slot(0), 1)]


def test_the_first_threads_never_start_without_a_question() -> None:
    scenario = Scenario(50)
    scenario.decide()
    scenario.grant(0)
    assert scenario.end(0, 1, OK, after_s=0.001).reuse == [(slot(0), 1)]


def test_a_clock_that_was_set_back_ends_a_time_slice() -> None:
    assert of_short_threads().end(5, 1, OK, after_s=-1).reuse == [(slot(0), 1)]


def test_a_slot_with_a_time_limit_has_no_time_slice() -> None:
    """The time limit starts again only when the slot is reused."""
    limited = of_short_threads(slot=fg.SlotSpec(time_limit_s=60))
    assert limited.end(5, 1, OK, after_s=0.001).reuse == [(slot(0), 1)]


def test_requests_of_threads_that_ran_without_them_are_cancelled_together() -> None:
    scenario = of_short_threads()
    given_up = [scenario.end(thread, 1, OK, after_s=0).give_up for thread in range(5, 14)]
    # At first 44 requests wait. For 39 threads, they are more than a tenth too many.
    assert given_up == [[], [], [], [], [(40, 5)], [], [], [], [(36, 4)]]
    assert scenario.scheduler.threads.counts[TODO] == 35
    assert len(scenario.scheduler.waiting) == 35  # one request for each thread


@given(st.sets(st.integers(0, 40)), st.integers(0, 45))
def test_the_last_ones_are_taken_out(numbers: set[int], count: int) -> None:
    kept = IntervalSet.of(numbers)
    taken = [each for start, end in take_last(kept, count) for each in range(start, end)]
    assert sorted(taken) == sorted(numbers)[max(0, len(numbers) - count) :]
    assert set(kept) == numbers - set(taken)

"""Tests which durations of threads are recorded, and what a restart makes of them."""

from __future__ import annotations

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.outcomes import NO_REPORT, ThreadReport
from finegrain.values.states import ThreadEnd
from resource_manager.engine.explain.fairness import advise_threads
from resource_manager.engine.fairness import threads
from resource_manager.engine.model.durations import Durations
from resource_manager.engine.model.entities import Instant, UsageRecord
from resource_manager.engine.model.events import (
    SlotsReuseRequested,
)
from tests.support import books
from tests.support.engine_cluster import FOREVER_MS, EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)
KEY = (SMALL, (), None)


def cluster_with(*names: str, restart: bool = False) -> EngineCluster:
    """One host with a granted slot for each name."""
    cluster = EngineCluster(host(memory_bytes=GIB), lost_timeout_ms=FOREVER_MS)
    cluster.submit(*names, profile=SMALL, restart_on_loss=restart)
    cluster.settle()
    return cluster


def durations(cluster: EngineCluster) -> Durations:
    return cluster.state.jobs["job"].durations or Durations()


def release(cluster: EngineCluster, *names: str, operator: bool = False) -> None:
    cluster.release(*names, job=None if operator else "job")
    cluster.settle()


def test_a_thread_lasts_from_being_granted_until_it_is_given_back() -> None:
    cluster = cluster_with("a", "b")
    cluster.wait(90_000)
    release(cluster, "a")
    cluster.wait(30_000)
    release(cluster, "b")
    release(cluster, "b")  # repeated: the same call

    found = durations(cluster)
    assert (found.count, found.shortest_ms, found.longest_ms) == (2, 90_000, 120_000)


def test_waiting_is_no_part_of_it() -> None:
    cluster = cluster_with(*(f"fills-{number}" for number in range(16)), "waits")
    cluster.wait(60_000)
    release(cluster, "fills-0")
    cluster.wait(5_000)
    release(cluster, "waits")

    assert sorted((durations(cluster).shortest_ms, durations(cluster).longest_ms)) == [
        5_000,
        60_000,
    ]


@pytest.mark.parametrize("how", ["operator", "end", "cancelled before it was granted", "lost"])
def test_what_was_taken_away_says_nothing(how: str) -> None:
    cluster = cluster_with("a", restart=True)
    cluster.wait(10_000)
    if how == "operator":
        release(cluster, "a", operator=True)
    elif how == "end":
        cluster.end_job("job", "")
    elif how == "lost":
        executor = cluster.executors["host-a"]
        executor.end(("a", 1), "SLOT_BROKEN")
        cluster.report(executor)
    else:
        cluster.submit("b", profile=SMALL)
        cluster.wait(10_000)
        cluster.release("b")
    cluster.settle()

    assert durations(cluster).count == 0


def test_one_that_was_lost_counts_from_where_it_began_anew() -> None:
    cluster = cluster_with("a", restart=True)
    cluster.wait(10_000)
    executor = cluster.executors["host-a"]
    executor.end(("a", 1), "SLOT_BROKEN")
    cluster.report(executor)
    cluster.wait(60_000)  # the host is idle for a while
    cluster.settle()
    cluster.wait(4_000)
    release(cluster, "a")

    assert (durations(cluster).count, durations(cluster).longest_ms) == (1, 4_000)


def test_a_slot_that_is_handed_on_counts_once_for_every_thread() -> None:
    job, slot = books.job(), books.slot()
    threads.begin(slot, 1_000)
    threads.note_reuse(job, slot, KEY, 3_000, NO_REPORT)
    threads.note_reuse(job, slot, KEY, 4_000, NO_REPORT)
    threads.end(job, slot, KEY, 9_000, NO_REPORT)
    threads.end(job, slot, KEY, 9_000, NO_REPORT)

    assert job.durations is not None
    assert (job.durations.count, job.durations.total_ms, job.durations.handed_on) == (3, 8_000, 2)


def test_a_thread_that_was_tried_again_counts_once() -> None:
    job, slot = books.job(), books.slot()
    threads.begin(slot, 0)
    threads.note_reuse(job, slot, KEY, 2_000, ThreadReport(ThreadEnd.UNFINISHED))
    threads.note_reuse(job, slot, KEY, 5_000, ThreadReport(ThreadEnd.UNFINISHED))
    threads.note_reuse(job, slot, KEY, 9_000, ThreadReport(ThreadEnd.FINISHED))
    threads.end(job, slot, KEY, 10_000, NO_REPORT)

    found = job.durations
    assert found is not None
    assert (found.count, found.unfinished, found.unmatched) == (2, 2, 1)
    assert (found.shortest_ms, found.longest_ms) == (1_000, 4_000)
    # The scheduler's run times are about slots, so they include all attempts.
    assert len(job.run_times[KEY]._kept) == 4


def test_threads_that_ran_without_a_question_share_the_time_of_their_slot() -> None:
    job, slot = books.job(), books.slot()
    threads.begin(slot, 0)
    threads.note_reuse(job, slot, KEY, 100, ThreadReport(ThreadEnd.FINISHED, finished_before=9))
    threads.note_reuse(job, slot, KEY, 160, ThreadReport(ThreadEnd.UNFINISHED, finished_before=2))
    threads.end(job, slot, KEY, 220, ThreadReport(ThreadEnd.UNFINISHED))

    found = job.durations
    assert found is not None
    # Ten threads of 10 ms and two of 20 ms. The two attempts without a result are no threads.
    assert (found.count, found.unfinished, found.unmatched) == (12, 2, 0)
    assert (found.shortest_ms, found.longest_ms, found.total_ms) == (10, 20, 140)
    # For the scheduler, the slot was in use for 100, 60 and 60 ms.
    assert len(job.run_times[KEY]._kept) == 3


def test_a_released_slot_says_whether_its_thread_has_finished() -> None:
    cluster = cluster_with("bad", "good", "unused", "unknown")
    cluster.wait(30_000)
    cluster.release("bad", thread_end=ThreadEnd.UNFINISHED)
    cluster.release("good", thread_end=ThreadEnd.FINISHED)
    cluster.cancel("unused")
    cluster.release("unknown")
    cluster.settle()
    advice = advise_threads(cluster.state, "job", 120_000, 0.95, cluster.at.monotonic_ms)

    assert (advice.threads_observed, advice.attempts_unfinished) == (2, 2)
    assert advice.attempts_unmatched == 1
    assert any(
        "1 of 4 attempts could not be matched to a thread" in remark for remark in advice.remarks
    )


def test_a_reused_slot_says_whether_its_thread_has_finished() -> None:
    cluster = cluster_with(*(f"fills-{number}" for number in range(16)), "waits", "waits-too")
    cluster.wait(60_000)
    reuse = SlotsReuseRequested(
        cluster.at,
        "job",
        (("fills-0", 1, "waits"), ("fills-1", 1, "nobody"), ("fills-2", 1, "waits-too")),
        thread_reports={
            "fills-0": ThreadReport(ThreadEnd.UNFINISHED),
            "fills-1": ThreadReport(ThreadEnd.UNFINISHED),
            "fills-2": ThreadReport(ThreadEnd.FINISHED),
        },
    )
    answers = cluster.batch(reuse)

    assert [each.reason for each in answers] == ["", "NOT_REUSABLE", ""]
    found = durations(cluster)
    assert (found.count, found.unfinished, found.unmatched) == (1, 2, 0)
    assert cluster.batch(reuse) == answers
    assert durations(cluster) == found


def test_a_thread_is_counted_although_its_slot_may_not_be_reused() -> None:
    cluster = cluster_with(*(f"fills-{number}" for number in range(16)), "waits")
    cluster.wait(60_000)
    cluster.job("other")
    cluster.submit("theirs", profile=SMALL, job="other")
    reuse = SlotsReuseRequested(
        cluster.at, "job", (("fills-0", 1, "waits"), ("fills-1", 1, "nobody"))
    )
    refused = cluster.batch(reuse)
    cluster.settle()

    assert [each.reason for each in refused] == ["FAIR_SHARE", "NOT_REUSABLE"]
    assert (durations(cluster).count, durations(cluster).longest_ms) == (2, 60_000)
    assert cluster.batch(reuse) == refused
    assert durations(cluster).count == 2


def test_a_restart_knows_what_finished_and_since_when_the_rest_runs() -> None:
    finished = Durations()
    finished.add(7_000)
    job, slot = books.job(), books.slot(allocated_time_ms=50_000)
    tallies = [
        UsageRecord("job/job-1", "slots", 0.0, 0.0, 1, finished.to_text()),
        UsageRecord("job/forgotten", "slots", 0.0, 0.0, 1, finished.to_text()),
        UsageRecord("group/job-1", "slots", 0.0, 0.0, 1, ""),
    ]
    threads.restore({"job-1": job}, [slot], tallies, Instant(500, 80_000))
    threads.end(job, slot, KEY, 1_500, NO_REPORT)

    assert job.durations is not None
    assert (job.durations.count, job.durations.total_ms) == (2, 7_000 + 30_000 + 1_000)


def test_after_a_restart_a_clock_that_was_set_back_makes_nothing_negative() -> None:
    job, slot = books.job(), books.slot(allocated_time_ms=50_000)
    threads.restore({"job-1": job}, [slot], [], Instant(500, 20_000))
    threads.end(job, slot, KEY, 1_500, NO_REPORT)

    assert job.durations is not None
    assert job.durations.total_ms == 1_000


def test_after_a_restart_nobody_guesses_when_a_thread_of_a_slot_began_that_was_handed_on() -> None:
    job, slot = books.job(), books.slot(allocated_time_ms=1)
    handed_on = Durations(handed_on=1)
    tallies = [UsageRecord("job/job-1", "slots", 0.0, 0.0, 1, handed_on.to_text())]
    threads.restore({"job-1": job}, [slot], tallies, Instant(0, 9_000_000))
    threads.end(job, slot, KEY, 1_000, NO_REPORT)

    assert job.durations == handed_on


def test_what_runs_and_waits_is_told_besides() -> None:
    old, new, unknown = books.slot("old"), books.slot("new"), books.slot("unknown")
    threads.begin(old, 2_000)
    threads.begin(new, 8_000)
    found = threads.observed(books.job(), [old, new, unknown], 40, 10_000)

    assert (found.running, found.waiting, found.running_longest_ms) == (3, 40, 8_000)
    assert found.threads == 43


def test_advice_outlives_restarts_also_for_a_job_that_has_ended() -> None:
    cluster = cluster_with("a", "b", "c")
    cluster.wait(20_000)
    release(cluster, "a")
    release(cluster, "b")
    cluster.wait(11_000)  # usage is stored every ten seconds
    cluster.restart_rm()
    assert durations(cluster).count == 2
    cluster.end_job("job", "")
    cluster.restart_rm()
    advice = advise_threads(cluster.state, "job", 10_000, 0.95, cluster.at.monotonic_ms)

    assert (advice.threads_observed, advice.longest_ms) == (2, 20_000)
    assert advice.threads_recommended >= 4

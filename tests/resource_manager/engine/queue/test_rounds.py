"""Tests with more scheduling classes than one decision tries: all are tried in order."""

from __future__ import annotations

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.model.entities import RequestSpec
from tests.support.engine_cluster import EngineCluster, FakeExecutor

SMALL = ResourceProfile(100, 64 * MIB)
ROOMY = {"cpu_milli": 1_000_000, "memory_bytes": 1_000 * GIB}
TIGHT = {"cpu_milli": 1_000, "memory_bytes": 1 * GIB}


def cluster_with(total: dict[str, int], *, tried: int) -> EngineCluster:
    """One host, and the jobs `flood` and `other`."""
    return EngineCluster(
        FakeExecutor("host-a", total, SMALL), jobs=("flood", "other"), classes_tried_max=tried
    )


def large(number: int) -> RequestSpec:
    """Returns a request of one of many scheduling classes, none of which fits on a full host."""
    return RequestSpec(f"large{number}", ResourceProfile(2_000 + number, GIB), allow_pending=True)


def huge(number: int) -> RequestSpec:
    """Returns a request of one of many scheduling classes, none of which fits anywhere."""
    profile = ResourceProfile(2_000_000 + number, GIB)
    return RequestSpec(f"huge{number}", profile, allow_pending=True)


def classes_by_job(cluster: EngineCluster) -> dict[str, int]:
    return {job_id: len(queues) for job_id, queues in cluster.state.queue.by_job.items()}


def unfinished(cluster: EngineCluster) -> bool:
    """Returns whether the last decision stopped before it had tried all."""
    return cluster.state.unfinished


def decide(cluster: EngineCluster) -> int:
    """Decides until nothing is left; returns the number of decisions."""
    decisions = 0
    while unfinished(cluster):
        cluster.check()
        cluster.batch()
        decisions += 1
    cluster.check()
    return decisions


def grow(cluster: EngineCluster, name: str) -> None:
    """A small slot comes and goes on a full host, so that all classes must be tried again."""
    cluster.submit(name, profile=SMALL, job="other")
    while cluster.state_of(name) is RequestState.PENDING:
        cluster.batch()
    cluster.deliver_all()
    cluster.release(name, job="other")
    cluster.deliver_all()


def test_everything_that_fits_is_placed_within_as_many_decisions_as_shapes_are_tried_in_vain() -> (
    None
):
    cluster = cluster_with(TIGHT, tried=10)
    specs = [each(number) for number in range(50) for each in (huge, large)]
    cluster.submit(*specs, job="flood")
    decide(cluster)
    cluster.host("host-b", **ROOMY)
    assert cluster.running() == [f"large{number}" for number in range(9)]
    assert unfinished(cluster)
    # each ends after ten unsuccessful tries; the last large one is left
    assert decide(cluster) == 5
    assert cluster.running() == [f"large{number}" for number in range(50)]
    assert cluster.waiting() == {f"huge{number}" for number in range(50)}


def test_with_no_more_shapes_than_are_tried_at_once_nothing_is_left_over() -> None:
    cluster = cluster_with(TIGHT, tried=10)
    cluster.submit(*(huge(number) for number in range(9)), large(0), job="flood")
    assert not unfinished(cluster)
    cluster.host("host-b", **ROOMY)
    assert cluster.running() == ["large0"]
    assert not unfinished(cluster)


def test_who_comes_during_a_round_has_a_turn_in_the_next_one() -> None:
    cluster = cluster_with(TIGHT, tried=2)
    cluster.submit(*(huge(number) for number in range(5)), job="flood")
    assert unfinished(cluster)
    cluster.submit("small", profile=SMALL, job="other")
    assert cluster.waiting() >= {"small"}
    assert explain(cluster.state, "small").primary_reason == "NOT_YET_CONSIDERED"
    assert (
        at_once(pending_by_reason(cluster.state))["NOT_YET_CONSIDERED"] == 2
    )  # and the last huge one
    cluster.batch()  # ends the pass, and has one try left for the next
    assert cluster.running() == ["small"]
    assert not unfinished(cluster)
    assert "NOT_YET_CONSIDERED" not in at_once(pending_by_reason(cluster.state))


def test_those_who_wake_again_and_again_do_not_starve_those_behind_them() -> None:
    cluster = cluster_with(ROOMY, tried=1)
    cluster.submit(*(huge(number) for number in range(8)), job="flood")
    decide(cluster)
    hosts = cluster.state.hosts
    cluster.state.hosts.indexes.log_growth(hosts["host-a"], cluster.state.queue)
    cluster.submit("late", profile=SMALL, job="other")
    decisions = 1
    while "late" in cluster.waiting():
        cluster.state.hosts.indexes.log_growth(hosts["host-a"], cluster.state.queue)
        cluster.batch()
        decisions += 1
    assert decisions == 9  # eight before it in the one pass that includes all
    cluster.check()


def test_another_jobs_request_is_served_soon_beside_five_thousand_shapes_that_wake() -> None:
    cluster = cluster_with(TIGHT, tried=1_000)
    cluster.submit(*(large(number) for number in range(5_000)), job="flood")
    assert decide(cluster) == 15  # the first try all classes, the others record what is pending
    for number in range(3):
        grow(cluster, f"small{number}")
        assert unfinished(cluster)
        cluster.submit(f"wanted{number}", profile=SMALL, job="other")
        decisions = 1
        while f"wanted{number}" in cluster.waiting():
            cluster.batch()
            decisions += 1
        assert decisions <= 6
    decide(cluster)


def test_within_a_round_whoever_waits_longest_is_tried_first_even_if_that_changes() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    first, second = large(1), large(2)
    cluster.submit(huge(0), first, huge(1), second, job="flood")
    twin = RequestSpec("twin", first.profile, allow_pending=True)
    cluster.submit(twin, RequestSpec("twin2", second.profile, allow_pending=True), job="flood")
    decide(cluster)
    total = {"cpu_milli": 2_003, "memory_bytes": 2 * GIB}  # for one
    cluster.host("host-b", **total)
    assert cluster.running() == []  # only huge0 was tried
    cluster.cancel("large1", job="flood")
    decide(cluster)
    assert cluster.running() == ["large2"]  # before its equal, whose scheduling class came first


def test_a_request_that_comes_back_during_a_round_stands_at_its_old_place() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    executor = cluster.executors["host-a"]
    executor.broken.add("old")
    profile = ResourceProfile(900, 64 * MIB)
    cluster.submit("old", profile=profile, job="other")
    cluster.submit(*(huge(number) for number in range(3)), job="flood")
    cluster.submit("young", profile=profile, job="other")
    assert unfinished(cluster)
    cluster.deliver_all()  # the host refuses it; it is before its equal again
    decide(cluster)
    assert cluster.waiting() >= {"old"}
    cluster.host("host-b", **TIGHT)
    decide(cluster)
    assert [name for name, slot in _slots(cluster) if slot == "host-b"] == ["old"]


def _slots(cluster: EngineCluster) -> list[tuple[str, str]]:
    return [(name, slot.executor_id) for (name, _), slot in cluster.state.slots.items()]


def test_one_that_is_only_held_back_by_its_older_slot_is_not_work_left_over() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    cluster.submit("r", profile=SMALL, restart_on_loss=True, job="other")
    cluster.deliver_all()
    cluster.drain("host-a", deadline_ms=0, reason="kernel")
    cluster.wait(1)
    cluster.undrain("host-a")
    assert cluster.state.slots.superseded
    assert cluster.waiting() == {"r"}
    assert not unfinished(cluster)
    cluster.submit(huge(0), huge(1), huge(2), job="flood")
    assert decide(cluster) == 3  # two that do not fit, and then again the delayed one
    assert cluster.waiting() == {"r", "huge0", "huge1", "huge2"}
    assert at_once(pending_by_reason(cluster.state)).get("NOT_YET_CONSIDERED") is None
    cluster.deliver_all()
    decide(cluster)
    cluster.deliver_all()
    assert cluster.is_granted("r")


def test_a_restart_in_the_middle_of_a_round_begins_anew_and_leaves_nobody_out() -> None:
    cluster = cluster_with(TIGHT, tried=3)
    specs = [each(number) for number in range(10) for each in (huge, large)]
    cluster.submit(*specs, job="flood")
    assert unfinished(cluster)
    counted = classes_by_job(cluster)
    cluster.restart_rm()
    assert classes_by_job(cluster) == counted == {"flood": 20}
    cluster.check()
    cluster.host("host-b", **ROOMY)
    decide(cluster)
    assert cluster.running() == [f"large{number}" for number in range(10)]


def test_shapes_of_an_ended_job_are_out_of_the_round() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    cluster.submit(*(huge(number) for number in range(30)), job="flood")
    assert unfinished(cluster)
    cluster.end_job("flood")
    assert not unfinished(cluster)
    assert classes_by_job(cluster) == {}
    cluster.check()

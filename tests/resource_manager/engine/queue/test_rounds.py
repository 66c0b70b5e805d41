"""More shapes wait than one decision tries: everybody has a turn, and nobody waits for all."""

from __future__ import annotations

from finegrain.resources import GIB, MIB, Amounts, ResourceProfile
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.entities import RequestSpec, RequestState
from resource_manager.engine.model.events import (
    DrainRequested,
    JobEndRequested,
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
    UndrainRequested,
)
from resource_manager.engine.model.settings import EngineSettings
from tests.resource_manager.engine.model import ModelCluster, ModelExecutor

SMALL = ResourceProfile(100, 64 * MIB)
ROOMY = {"cpu_milli": 1_000_000, "memory_bytes": 1_000 * GIB}
TIGHT = {"cpu_milli": 1_000, "memory_bytes": 1 * GIB}


def cluster_with(total: Amounts, *, tried: int) -> ModelCluster:
    """One host, and the jobs `flood` and `other`."""
    cluster = ModelCluster(EngineSettings(shapes_tried_max=tried))
    register(cluster, "host-a", total)
    for job_id in ("flood", "other"):
        cluster.batch(JobRegistered(cluster.at, job_id, job_id, "default", None, "s", "r"))
    return cluster


def register(cluster: ModelCluster, name: str, total: Amounts) -> None:
    cluster.register(ModelExecutor(name, total, SMALL))


def submit(cluster: ModelCluster, job_id: str, *specs: RequestSpec) -> None:
    cluster.batch(RequestsSubmitted(cluster.at, job_id, specs))


def large(number: int) -> RequestSpec:
    """One of many shapes, none of which fits a tight host."""
    return RequestSpec(f"large{number}", ResourceProfile(2_000 + number, GIB), allow_pending=True)


def huge(number: int) -> RequestSpec:
    """One of many shapes, none of which fits anywhere."""
    profile = ResourceProfile(2_000_000 + number, GIB)
    return RequestSpec(f"huge{number}", profile, allow_pending=True)


def unfinished(cluster: ModelCluster) -> bool:
    """True if the last decision stopped before it had tried everybody."""
    return cluster.state.unfinished


def decide(cluster: ModelCluster) -> int:
    """Goes on until nothing is left over; answers with how many decisions that took."""
    decisions = 0
    while unfinished(cluster):
        assert not check_invariants(cluster.state)
        cluster.batch()
        decisions += 1
    assert not check_invariants(cluster.state)
    return decisions


def placed(cluster: ModelCluster) -> list[str]:
    """Who has a slot, in the order in which they came to it."""
    return [name for name, _ in cluster.state.slots]


def waiting(cluster: ModelCluster) -> set[str]:
    requests = cluster.state.requests.values()
    return {each.allocation_id for each in requests if each.state is RequestState.PENDING}


def grow(cluster: ModelCluster, name: str) -> None:
    """A small slot comes and goes on the host where nobody else fits: all have to be woken."""
    submit(cluster, "other", RequestSpec(name, SMALL))
    while cluster.state.requests[name].state is RequestState.PENDING:
        cluster.batch()
    cluster.settle()
    cluster.batch(SlotsReleased(cluster.at, "other", ((name, 0),)))
    cluster.settle()


def test_everything_that_fits_is_placed_within_as_many_decisions_as_shapes_are_tried_in_vain() -> (
    None
):
    cluster = cluster_with(TIGHT, tried=10)
    specs = [each(number) for number in range(50) for each in (huge, large)]
    submit(cluster, "flood", *specs)
    decide(cluster)
    register(cluster, "host-b", ROOMY)
    assert placed(cluster) == [f"large{number}" for number in range(9)]
    assert unfinished(cluster)
    assert decide(cluster) == 5  # each ends with the tenth in vain; the last large one is left then
    assert placed(cluster) == [f"large{number}" for number in range(50)]
    assert waiting(cluster) == {f"huge{number}" for number in range(50)}


def test_with_no_more_shapes_than_are_tried_at_once_nothing_is_left_over() -> None:
    cluster = cluster_with(TIGHT, tried=10)
    submit(cluster, "flood", *(huge(number) for number in range(9)), large(0))
    assert not unfinished(cluster)
    register(cluster, "host-b", ROOMY)
    assert placed(cluster) == ["large0"]
    assert not unfinished(cluster)


def test_who_comes_during_a_round_has_a_turn_in_the_next_one() -> None:
    cluster = cluster_with(TIGHT, tried=2)
    submit(cluster, "flood", *(huge(number) for number in range(5)))
    assert unfinished(cluster)
    submit(cluster, "other", RequestSpec("small", SMALL))
    assert waiting(cluster) >= {"small"}
    assert explain(cluster.state, "small").primary_reason == "NOT_YET_CONSIDERED"
    assert pending_by_reason(cluster.state)["NOT_YET_CONSIDERED"] == 2  # and the last huge one
    cluster.batch()  # ends the round, and has one try left for the next
    assert placed(cluster) == ["small"]
    assert not unfinished(cluster)
    assert "NOT_YET_CONSIDERED" not in pending_by_reason(cluster.state)


def test_those_who_wake_again_and_again_do_not_starve_those_behind_them() -> None:
    cluster = cluster_with(ROOMY, tried=1)
    submit(cluster, "flood", *(huge(number) for number in range(8)))
    decide(cluster)
    hosts = cluster.state.hosts
    cluster.state.hosts.indexes.log_growth(hosts["host-a"], cluster.state.queue)
    submit(cluster, "other", RequestSpec("late", SMALL))
    decisions = 1
    while "late" in waiting(cluster):
        cluster.state.hosts.indexes.log_growth(hosts["host-a"], cluster.state.queue)
        cluster.batch()
        decisions += 1
    assert decisions == 9  # eight before it in the one round that all of them were in
    assert not check_invariants(cluster.state)


def test_another_jobs_request_is_served_soon_beside_five_thousand_shapes_that_wake() -> None:
    cluster = cluster_with(TIGHT, tried=1_000)
    submit(cluster, "flood", *(large(number) for number in range(5_000)))
    assert decide(cluster) == 4
    for number in range(3):
        grow(cluster, f"small{number}")
        assert unfinished(cluster)
        submit(cluster, "other", RequestSpec(f"wanted{number}", SMALL))
        decisions = 1
        while f"wanted{number}" in waiting(cluster):
            cluster.batch()
            decisions += 1
        assert decisions <= 6
    decide(cluster)


def test_within_a_round_whoever_waits_longest_is_tried_first_even_if_that_changes() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    first, second = large(1), large(2)
    submit(cluster, "flood", huge(0), first, second)
    twin = RequestSpec("twin", first.profile, allow_pending=True)
    submit(cluster, "flood", twin, RequestSpec("twin2", second.profile, allow_pending=True))
    decide(cluster)
    total = {"cpu_milli": 2_003, "memory_bytes": 2 * GIB}  # for one
    register(cluster, "host-b", total)
    assert waiting(cluster) == {"huge0", "large1", "large2", "twin", "twin2"}  # but huge0 not yet
    cluster.batch(RequestsCancelled(cluster.at, "flood", ("large1",)))
    decide(cluster)
    assert placed(cluster) == ["large2"]  # before the twin, whose shape stood first


def test_a_request_that_comes_back_during_a_round_stands_at_its_old_place() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    executor = cluster.executors["host-a"]
    executor.broken.add("old")
    profile = ResourceProfile(900, 64 * MIB)
    submit(cluster, "other", RequestSpec("old", profile))
    submit(cluster, "flood", *(huge(number) for number in range(3)))
    submit(cluster, "other", RequestSpec("young", profile))
    assert unfinished(cluster)
    cluster.settle()  # the host refuses it; it stands before its equal again
    decide(cluster)
    assert waiting(cluster) >= {"old"}
    register(cluster, "host-b", TIGHT)
    decide(cluster)
    assert [name for name, slot in _slots(cluster) if slot == "host-b"] == ["old"]


def _slots(cluster: ModelCluster) -> list[tuple[str, str]]:
    return [(name, slot.executor_id) for (name, _), slot in cluster.state.slots.items()]


def test_one_that_is_only_held_back_by_its_older_slot_is_not_work_left_over() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    submit(cluster, "other", RequestSpec("r", SMALL, restart_on_loss=True))
    cluster.settle()
    cluster.batch(DrainRequested(cluster.at, "host-a", deadline_ms=0, reason="kernel"))
    cluster.wait(1)
    cluster.batch(UndrainRequested(cluster.at, "host-a"))
    assert cluster.state.slots.left_behind
    assert waiting(cluster) == {"r"}
    assert not unfinished(cluster)
    submit(cluster, "flood", huge(0), huge(1), huge(2))
    assert decide(cluster) == 3  # two that do not fit, and then once more who is held back
    assert waiting(cluster) == {"r", "huge0", "huge1", "huge2"}
    assert pending_by_reason(cluster.state).get("NOT_YET_CONSIDERED") is None
    cluster.settle()
    decide(cluster)
    cluster.settle()
    assert cluster.state.requests["r"].state is RequestState.GRANTED


def test_a_restart_in_the_middle_of_a_round_begins_anew_and_leaves_nobody_out() -> None:
    cluster = cluster_with(TIGHT, tried=3)
    specs = [each(number) for number in range(10) for each in (huge, large)]
    submit(cluster, "flood", *specs)
    assert unfinished(cluster)
    counted = dict(cluster.state.queue.classes_by_job)
    cluster.restart_rm()
    assert cluster.state.queue.classes_by_job == counted == {"flood": 20}
    assert not check_invariants(cluster.state)
    register(cluster, "host-b", ROOMY)
    decide(cluster)
    assert placed(cluster) == [f"large{number}" for number in range(10)]


def test_shapes_of_an_ended_job_are_out_of_the_round() -> None:
    cluster = cluster_with(TIGHT, tried=1)
    submit(cluster, "flood", *(huge(number) for number in range(30)))
    assert unfinished(cluster)
    cluster.batch(JobEndRequested(cluster.at, "flood", "ENDED"))
    assert not unfinished(cluster)
    assert cluster.state.queue.classes_by_job == {}
    assert not check_invariants(cluster.state)

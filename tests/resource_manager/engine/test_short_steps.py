"""Tests that one step does a limited amount of work, whatever it concerns, and that the next ones
do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.invariants import sweep
from resource_manager.engine.invariants.all import check_invariants, findings
from resource_manager.engine.lifecycle import journal
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    Decide,
    Event,
    JobEndRequested,
    RequestsCancelled,
    SlotsReleased,
    Ticked,
)
from resource_manager.engine.model.settings import DAY_MS
from resource_manager.engine.scheduling import cycle, joint
from resource_manager.engine.step import step
from tests.support.engine_cluster import EngineCluster, host

SMALL = ResourceProfile(100, 64 * MIB)
TOO_LARGE = ResourceProfile(10**9, 64 * MIB)
ROWS = 12
PIECE = 4  # rows of the largest piece of work here: a request that ends with its slot


@pytest.fixture(autouse=True)
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", ROWS)


def full_host(count: int = 40) -> EngineCluster:
    """A host with room for many small slots, all of which run."""
    cluster = EngineCluster(host(cpu_milli=100 * count, memory_bytes=count * GIB))
    cluster.submit(*(f"r{number}" for number in range(count)), profile=SMALL)
    cluster.settle()
    assert len(cluster.state.slots) == count
    return cluster


def rows_of(cluster: EngineCluster, event: Event) -> int:
    """Steps an event and returns how many rows it changed."""
    before = cluster.state.changes.noted
    step(cluster.state, event)
    return cluster.state.changes.noted - before


def rest(cluster: EngineCluster) -> Iterator[int]:
    """Decides until nothing is left; yields the rows of each decision."""
    while cluster.state.unfinished:
        yield rows_of(cluster, Decide(cluster.at))
        cluster.store.apply(cluster.state.changes.take())
        cluster.check()


def test_a_lost_executor_frees_its_slots_in_several_steps() -> None:
    cluster = full_host()
    cluster.now_ms += 16_000
    rows = [rows_of(cluster, Ticked(cluster.at)), *rest(cluster)]
    assert cluster.state.hosts["host-a"].executor.state is ExecutorState.LOST
    assert max(rows) <= ROWS + PIECE
    assert len(rows) > 5
    assert {each.state for each in cluster.state.requests.values()} == {RequestState.LOST}


def test_an_executor_that_returns_keeps_the_slots_that_were_not_freed_yet() -> None:
    cluster = full_host()
    cluster.now_ms += 16_000
    cluster.batch(Ticked(cluster.at))
    states = [each.state for each in cluster.state.requests.values()]
    kept = states.count(RequestState.GRANTED)
    assert 0 < kept < 40
    cluster.register(cluster.executors["host-a"])
    cluster.settle()
    assert [each.state for each in cluster.state.requests.values()] == states


def test_slots_of_a_lost_executor_that_a_restart_left_over_are_freed_after_it() -> None:
    cluster = full_host()
    cluster.now_ms += 16_000
    cluster.batch(Ticked(cluster.at))
    cluster.restart_rm()
    cluster.check()
    cluster.wait(16_000)
    cluster.settle()
    assert {each.state for each in cluster.state.requests.values()} == {RequestState.LOST}


def test_a_drained_executor_frees_its_slots_in_several_steps() -> None:
    cluster = full_host()
    cluster.drain("host-a", deadline_ms=1_000)
    cluster.now_ms += 1_000
    rows = [rows_of(cluster, Ticked(cluster.at)), *rest(cluster)]
    assert max(rows) <= ROWS + PIECE
    assert {each.state for each in cluster.state.requests.values()} == {RequestState.LOST}


def test_a_cancellation_answers_for_what_it_came_to() -> None:
    """Each gang ends as a whole in one step, and the caller repeats the call for the other
    gangs.
    """
    cluster = EngineCluster(host())
    gangs = [f"g{number}" for number in range(6)]
    for gang_id in gangs:
        members = (
            RequestSpec(f"{gang_id}.{n}", TOO_LARGE, gang_id=gang_id, allow_pending=True)
            for n in range(3)
        )
        cluster.submit(*members, GangSpec(gang_id))
    names = tuple(f"{gang_id}.1" for gang_id in gangs)
    came_to = []
    while names:
        outcomes = cluster.batch(RequestsCancelled(cluster.at, "job", names))
        cluster.check()
        came_to.append(len(outcomes))
        names = names[len(outcomes) :]
    assert came_to == [2, 2, 2]  # nine rows each
    assert not cluster.state.requests.live


def test_a_release_of_members_answers_once_all_of_them_have_ended() -> None:
    cluster = EngineCluster(host(cpu_milli=4_000, memory_bytes=40 * GIB))
    cluster.submit_range("r", 40, cpu_milli=100)
    cluster.settle()
    calls = 0
    outcomes: list[ItemOutcome] = []
    while not outcomes:
        event = SlotsReleased(cluster.at, "job", (), ranges=(("r", 0, 40),))
        outcomes = cluster.batch(event)
        calls += 1
        assert bool(outcomes) == (not cluster.state.requests.live)
    assert calls > 3


def test_jobs_that_end_and_are_deleted_together_share_the_steps() -> None:
    cluster = EngineCluster(jobs=("a", "b", "c"))
    for job in ("a", "b", "c"):
        names = (f"{job}{number}" for number in range(20))
        cluster.submit(*names, job=job, profile=SMALL, allow_pending=True)
    ends = [rows_of(cluster, JobEndRequested(cluster.at, job, "ENDED")) for job in ("a", "b", "c")]
    ends += rest(cluster)
    assert not cluster.state.endings
    cluster.now_ms += 2 * DAY_MS
    deletions = [rows_of(cluster, Ticked(cluster.at)), *rest(cluster)]
    assert not cluster.state.jobs
    assert max(ends + deletions) <= ROWS + PIECE


def test_a_decision_places_a_limited_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cycle, "PLACED_MAX", 7 + joint.FIRST_COST)
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 1_000)
    cluster = EngineCluster(jobs=("a", "b"))
    for job in ("a", "b"):
        names = (f"{job}{number}" for number in range(30))
        cluster.submit(*names, job=job, profile=SMALL, allow_pending=True)
    placed = []
    cluster.host(cpu_milli=4_000, memory_bytes=40 * GIB)
    placed.append(len(cluster.state.slots))
    while cluster.state.unfinished:
        cluster.batch()
        placed.append(len(cluster.state.slots))
    assert placed == [22, 40]  # requests that are placed together cost half as much
    pending = [each for each in cluster.store.cluster_events if each.kind == "request_pending"]
    assert len(pending) == 60  # recorded when they came, and not again
    running = [len(cluster.state.jobs[job].slot_keys) for job in ("a", "b")]
    assert running == [20, 20]


def test_requests_are_recorded_as_pending_even_if_a_pass_is_always_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal, "STEP_ROWS_MAX", 1_000)
    cluster = EngineCluster(host(), classes_tried_max=2)
    for number in range(12):
        profile = ResourceProfile(10**9 + number, 64 * MIB)
        cluster.submit(f"r{number}", profile=profile, allow_pending=True)
        cluster.host(f"host-{number}")  # all requests try the new host
        assert cluster.state.queue.in_pass or number < 3
    assert len(cluster.state.newcomers) < 6


def test_checks_pause_after_each_entity_and_in_long_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PART", 5)
    cluster = full_host()
    cluster.submit(*(f"w{n}" for n in range(40)), profile=TOO_LARGE, allow_pending=True)
    found = list(findings(cluster.state))
    assert set(found) == {None}
    requests, slots = 80, 40
    assert len(found) > requests + requests // 5 + slots // 5


def test_a_sum_that_moves_while_it_is_added_up_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweep, "PART", 5)
    cluster = full_host()
    for pauses in range(len(list(findings(cluster.state)))):
        going_on = findings(cluster.state)
        for _ in range(pauses):
            next(going_on)
        name = f"late{pauses}"
        cluster.submit(name, profile=TOO_LARGE, allow_pending=True)
        assert set(going_on) <= {None}, pauses


def test_a_wrong_sum_is_found_in_pauses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "PART", 5)
    cluster = full_host()
    cluster.state.jobs["job"].live_requests += 1
    cluster.state.flows.jobs["job"].used["cpu_milli"] += 1
    found = check_invariants(cluster.state)
    assert any("live requests" in each for each in found)
    assert any("has (running, rate, used)" in each for each in found)

"""Tests how often planning runs: rarely, and never without reason."""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.explain.provisions import clock_at, planned_on, providers_view
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.entities import GangSpec, RequestSpec
from resource_manager.engine.model.events import (
    ProvisionEnded,
    ProvisionFailed,
)
from resource_manager.engine.model.settings import EngineSettings, ExecutorShape, Provisioning
from resource_manager.engine.planning import gang_feasibility as possible
from resource_manager.engine.planning.planning import make_plan, plan_in_steps
from resource_manager.engine.planning.steps import Steps
from resource_manager.engine.scaling import backlog, passes
from tests.support.engine_cluster import EngineCluster, provided

ONE = ResourceProfile(1_000, 256 * MIB)
SMALL = ExecutorShape("small", "test", {"cpu_milli": 4_000, "memory_bytes": 8 * GIB}, ONE)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records every plan."""
    made: list[Any] = []

    def counted(asked: Any) -> Any:
        made.append(asked)
        return plan_in_steps(asked)

    monkeypatch.setattr(backlog, "plan_in_steps", counted)
    return made


def cluster_with(*shapes: ExecutorShape, **more: Any) -> EngineCluster:
    return EngineCluster(provisioning=Provisioning(shapes=shapes, **more))


def ask(cluster: EngineCluster, *names: str, profile: ResourceProfile = ONE) -> None:
    cluster.submit(*names, profile=profile)


def test_requests_that_come_one_by_one_are_planned_together(plans: list[Any]) -> None:
    cluster = cluster_with(SMALL)
    for number in range(50):
        cluster.now_ms += 10
        ask(cluster, f"r{number}")
    assert plans == []
    cluster.wait(1_000)
    assert len(plans) == 1
    assert len(cluster.state.provisions) == 13


def test_while_nothing_changes_nothing_is_planned_anew(plans: list[Any]) -> None:
    cluster = cluster_with(SMALL, total_max={"cpu_milli": 4_000})
    ask(cluster, *(f"r{number}" for number in range(9)))
    for _ in range(20):
        cluster.wait(1_000)
    assert len(plans) == 2  # before and after the request for an executor
    ask(cluster, "one-more")
    for _ in range(20):
        cluster.wait(1_000)
    assert len(plans) == 3


def test_without_providers_nobody_looks(plans: list[Any]) -> None:
    cluster = cluster_with()
    ask(cluster, "r")
    cluster.wait(5_000)
    assert plans == []
    assert cluster.state.elastic.next_pass_ms is None


def test_a_minimum_is_asked_for_without_anybody_coming_first() -> None:
    cluster = EngineCluster(
        provisioning=Provisioning(shapes=(SMALL,), total_min={"cpu_milli": 5_000})
    )
    started = []
    for _ in range(3):  # only the armed timers
        due_ms = cluster.state.timers.next_due_ms()
        assert due_ms is not None
        cluster.wait(max(0, due_ms - cluster.now_ms))
        started += [each for each in cluster.effects if isinstance(each, StartExecutor)]
    assert len(started) == 2


def test_slots_that_come_and_go_between_two_looks_keep_an_executor() -> None:
    cluster = cluster_with(SMALL, idle_timeout_ms=3_000)
    ask(cluster, "first")
    cluster.wait(1_000)
    executor = provided("small-1-1", SMALL)
    cluster.register(executor)
    cluster.settle()
    cluster.release("first")
    cluster.settle()
    for number in range(10):
        cluster.wait(1_000)
        name = f"short-{number}"
        ask(cluster, name)
        cluster.settle()
        cluster.release(name)
        cluster.settle()
        cluster.report(executor)
        assert not executor.slots
    assert cluster.state.provisions["small-1-1"].state == "REGISTERED"
    for _ in range(4):
        cluster.wait(1_000)
    assert cluster.state.provisions["small-1-1"].state == "STOPPING"


def test_those_whom_nothing_could_serve_keep_nobody_behind_them_waiting() -> None:
    cluster = cluster_with(SMALL, planned_requests_max=2)
    larger = tuple(
        RequestSpec(f"larger-{number}", ResourceProfile(8_000, 256 * MIB), allow_pending=True)
        for number in range(5)
    )
    cluster.submit(*larger)
    ask(cluster, "small")
    cluster.wait(1_000)
    assert [each.shape for each in cluster.state.provisions.values()] == ["small"]
    left = cluster.state.elastic.plan.left
    assert [(shape.profile, count) for shape, count in left.items()] == [(larger[0].profile, 5)]


def test_what_was_asked_for_a_gang_that_left_is_given_back() -> None:
    cluster = cluster_with(SMALL)
    asked = tuple(RequestSpec(f"m{number}", ONE, gang_id="g") for number in range(6))
    cluster.submit(*asked, GangSpec("g"))
    cluster.wait(1_000)
    assert len(cluster.state.provisions) == 2
    cluster.wait(1_000)
    cluster.cancel("m0")
    for _ in range(3):
        cluster.wait(1_000)
    states = {each.state for each in cluster.state.provisions.values()}
    assert states == {ProvidedExecutorState.STOPPING}


def test_gangs_that_nothing_could_serve_keep_none_behind_them_from_being_planned() -> None:
    cluster = cluster_with(SMALL, planned_requests_max=5)
    large = ResourceProfile(5_000, 256 * MIB)
    for gang_id, profile, count in (("h", large, 4), ("i", large, 4), ("g", ONE, 6)):
        asked = tuple(
            RequestSpec(f"{gang_id}{n}", profile, allow_pending=True, gang_id=gang_id)
            for n in range(count)
        )
        cluster.submit(*asked, GangSpec(gang_id))
    cluster.wait(1_000)
    assert len(cluster.state.provisions) == 2  # for all six, although one plan counts five requests
    assert cluster.state.elastic.plan.gangs_left == ["h", "i"]


def test_a_gang_is_taken_in_that_needs_executors_of_both_kinds_though_most_there_are_too_small(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = []

    def noting(asked: Any) -> Any:
        looked_at.append(set(asked.hosts))
        return make_plan(asked)

    monkeypatch.setattr(possible, "make_plan", noting)
    cluster = cluster_with(SMALL, total_max={"cpu_milli": 13_000})
    for number in range(8):
        cpu_milli = 2_000 if number == 7 else 500
        cluster.host(f"host-{number}", cpu_milli=cpu_milli, memory_bytes=GIB, default_profile=ONE)
    for gang_id, count in (("six", 6), ("seven", 7)):
        asked = tuple(RequestSpec(f"{gang_id}{n}", ONE, gang_id=gang_id) for n in range(count))
        outcomes = cluster.submit(*asked, GangSpec(gang_id))
        assert {each.reason for each in outcomes} == {"" if count == 6 else "INFEASIBLE_NEVER"}
    assert set(map(frozenset, looked_at)) == {frozenset(), frozenset({"host-7"})}


def test_a_minimum_of_odd_amounts_takes_no_longer() -> None:
    """If each byte were a unit, it would need more memory than there is."""
    large = ExecutorShape("large", "test", {"memory_bytes": 64 * GIB}, ONE, count_max=3)
    odd = ExecutorShape("odd", "test", {"memory_bytes": 63 * GIB - 1}, ONE, count_max=3)
    cluster = cluster_with(large, odd, total_min={"memory_bytes": 300 * GIB})
    cluster.wait(1_000)
    asked = [each.shape for each in cluster.state.provisions.values()]
    assert sorted(asked) == ["large"] * 3 + ["odd"] * 2


def test_of_very_many_who_are_planned_nowhere_only_some_are_told_one_by_one() -> None:
    cluster = cluster_with(SMALL, total_max={"cpu_milli": 4_000})
    profiles = (ResourceProfile(3_000 + number, 256 * MIB) for number in range(300))
    cluster.submit(*(RequestSpec(f"r{n}", profile) for n, profile in enumerate(profiles)))
    cluster.wait(1_000)
    cluster.settle()
    told = providers_view(cluster.state).unplanned
    assert told[0] == "1 request of 3.001 cpu, 256Mi memory: the maximum is reached"
    assert told[100:] == ["199 requests of other sizes"]


def test_everybody_is_told_which_executor_it_is_planned_on() -> None:
    cluster = cluster_with(SMALL)
    profiles = (ResourceProfile(3_000 + number, 256 * MIB) for number in range(3))
    cluster.submit(*(RequestSpec(f"r{n}", profile) for n, profile in enumerate(profiles)))
    cluster.wait(1_000)

    def planned() -> set[str]:
        live = cluster.state.requests.values()
        return {
            planned_on(cluster.state.queue, cluster.state.elastic, each)
            for each in live
            if each.state == "PENDING"
        }

    assert planned() == {"small-1-1", "small-1-2", "small-1-3"}
    cluster.batch(ProvisionFailed(cluster.at, "small-1-2", "no"))
    assert planned() == {"small-1-1", "small-1-3", ""}
    cluster.register(provided("small-1-1", SMALL))
    assert planned() == {"small-1-3", ""}


def test_a_busy_executor_says_when_it_will_probably_be_empty() -> None:
    cluster = cluster_with(SMALL)
    cluster.submit("short", profile=ONE, expected_run_time_ms=60_000)
    cluster.submit("limited", profile=ONE, time_limit_ms=90_000)
    cluster.wait(1_000)
    cluster.register(provided("small-1-1", SMALL))
    cluster.settle()

    def told() -> str:
        (view,) = providers_view(cluster.state).executors
        return view.provision.message.rpartition("probably empty at ")[2]

    last_ms = max(slot.thread_since_ms or 0 for slot in cluster.state.slots.values())
    assert told() == clock_at(cluster.state.started, last_ms + 90_000)
    cluster.release("limited")
    cluster.settle()
    assert told() == clock_at(cluster.state.started, last_ms + 60_000)
    ask(cluster, "of unknown length")
    cluster.settle()
    assert told() == "registered"


def test_a_cancelled_request_is_shown_as_planned_no_more() -> None:
    cluster = cluster_with(SMALL)
    names = [f"r{number}" for number in range(6)]
    ask(cluster, *names)
    members = (RequestSpec(name, ONE, gang_id="gang") for name in ("g0", "g1"))
    cluster.submit(*members, GangSpec("gang"))
    cluster.wait(1_000)

    def planned() -> list[tuple[int, tuple[str, ...]]]:
        seen = providers_view(cluster.state).executors
        return [(each.planned_requests, each.planned) for each in seen]

    assert sum(count for count, _ in planned()) == 8
    cluster.cancel(*names[:5], "g0")
    (first, text), *others = planned()
    assert (first, text) == (1, ("1 request of 1 cpu, 256Mi memory",))
    assert others == [(0, ())] * len(others)
    cluster.cancel(names[5])
    assert sum(count for count, _ in planned()) == 0


@pytest.mark.parametrize("trouble", ["cannot be reached", "refused a slot 4 times"])
def test_executors_that_come_and_are_of_no_use_are_asked_for_ever_more_rarely(trouble: str) -> None:
    cluster = cluster_with(SMALL)
    ask(cluster, "r")
    asked = 0
    for _ in range(600):
        cluster.wait(1_000)
        cluster.keep_alive("job")
        told = cluster.providers[:]
        cluster.providers.clear()
        for each in told:
            if isinstance(each, StartExecutor):
                asked += 1
                cluster.register(provided(each.executor_id, SMALL, broken={"r"}))
            else:
                cluster.batch(ProvisionEnded(cluster.at, each.executor_id, "gone"))
        for sent in cluster.wire[:]:
            if trouble == "cannot be reached":
                cluster.fail(sent)
            else:
                cluster.deliver(sent)
        for host_id in cluster.state.hosts:
            cluster.report(cluster.executors[host_id])
    assert asked < 12  # not one every ten seconds
    (shape,) = providers_view(cluster.state).shapes
    assert trouble in shape.last_failure

    cluster.register(provided("small-1-99", SMALL))
    cluster.settle()
    cluster.wait(1_000)
    (shape,) = providers_view(cluster.state).shapes
    assert shape.failures == 0


def test_the_first_in_line_are_planned_for_whatever_they_ask_for(plans: list[Any]) -> None:
    cluster = cluster_with(SMALL, planned_requests_max=3)
    for number in range(4):
        ask(cluster, f"one-{number}")
        ask(cluster, f"two-{number}", profile=ResourceProfile(2_000, 256 * MIB))
    cluster.cancel("two-0")
    cluster.wait(1_000)
    (made,) = plans
    sizes = [made.demands[kind].pooled["cpu_milli"] for kind, _ in made.queue]
    assert list(zip(sizes, [count for _, count in made.queue], strict=True)) == [
        (1_000, 2),
        (2_000, 1),
    ]


def test_nothing_is_started_again_of_a_shape_that_is_configured_no_longer() -> None:
    cluster = cluster_with(SMALL)
    ask(cluster, "r")
    cluster.wait(1_000)
    cluster.settings = EngineSettings()
    cluster.restart_rm()
    cluster.batch()
    assert cluster.providers == [StopExecutor("small-1-1", "small", "")]
    (provision,) = cluster.state.provisions.values()
    assert provision.message == "shape small is no longer configured"


# Passes that take several cycles.


def different(count: int) -> list[RequestSpec]:
    return [RequestSpec(f"r{n}", ResourceProfile(1_000 + n, 256 * MIB)) for n in range(count)]


def planned(cluster: EngineCluster) -> list[list[int]]:
    """Returns how many requests are planned on each pending executor, and of what size."""
    return [
        sorted(each.profile.cpu_milli for each in content.classes if each.profile)
        for content in cluster.state.elastic.plan.on.values()
    ]


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle spends little on a pass."""
    monkeypatch.setattr(passes, "WORK_MAX", 50)


def test_a_pass_goes_on_in_the_next_cycle(small_slices: None) -> None:
    cluster = cluster_with(SMALL, total_max={"cpu_milli": 40_000})
    cluster.submit(*different(60))
    cluster.wait(1_000)
    assert cluster.state.elastic.number == 0
    cycles = 0
    while cluster.state.unfinished:
        cluster.batch()
        cycles += 1
    assert cycles > 10
    assert cluster.state.elastic.number == 10
    cluster.check()
    cluster.wait(1_000)
    cluster.settle()
    assert cluster.state.elastic.number == 10


def test_slices_do_not_change_what_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for work in (1, 50, 1 << 60):
        monkeypatch.setattr(passes, "WORK_MAX", work)
        cluster = cluster_with(SMALL)
        cluster.submit(*different(60))
        cluster.wait(1_000)
        cluster.settle()
        made.append(planned(cluster))
    assert made[0] == made[1] == made[2]
    assert made[0]


def test_nothing_is_ordered_for_what_is_cancelled_during_a_pass(small_slices: None) -> None:
    cluster = cluster_with(SMALL)
    cluster.submit(*different(60))
    cluster.wait(1_000)
    assert cluster.state.unfinished
    cluster.cancel(*(f"r{n}" for n in range(1, 60)))
    cluster.settle()
    assert planned(cluster) == [[1_000]]


def test_the_maximum_holds_for_executors_that_come_during_a_pass(small_slices: None) -> None:
    cluster = cluster_with(SMALL, total_max={"cpu_milli": 8_000})
    cluster.submit(*different(60))
    cluster.wait(1_000)
    assert cluster.state.unfinished
    cluster.host("unexpected", cpu_milli=500, memory_bytes=GIB, default_profile=ONE)
    cluster.settle()
    assert len(cluster.state.provisions) == 1


def test_every_step_of_a_pass_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is short for any number of queued requests and sizes."""
    steps: list[int] = []

    def advance(pass_: Steps[None], work: int) -> bool:
        steps.extend(pass_)
        return True

    monkeypatch.setattr(passes, "advance", advance)
    cluster = cluster_with(SMALL, total_max={"cpu_milli": 400_000})
    cluster.submit(*different(2_000))
    cluster.settle()
    cluster.wait(1_000)
    cluster.settle()
    assert len(cluster.state.provisions) == 100
    assert max(steps) <= passes.WORK_MAX < sum(steps)

"""Tests of the checks of a healed cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpu_policy import CpuPolicy, HostPolicy, QosClass
from finegrain.cpuset import CpuSet
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, MIB, ResourceProfile
from finegrain.values.states import RequestState
from resource_manager.engine.hosts.cpu_allocator import CpuAllocator
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.state import State
from task_executor.engine.slots import SlotKey
from tests.simulation.checks import Checks
from tests.simulation.cpu_machines import HostMachine
from tests.simulation.faults import FAULTS
from tests.simulation.healed import check_healed
from tests.simulation.job_master import CPUS, REVOCABLE
from tests.simulation.process_faults import state_directory_is_lost
from tests.simulation.slot_host import SlotHost
from tests.simulation.some_settings import some_settings
from tests.simulation.world import HEAL_MS, Failed, Plan, World
from tests.support.machines import machine

HOST_CPUS = 4
STORMY_MS = 12_000


def quiet_plan(hosts: int, wishes: frozenset[str] = frozenset()) -> Plan:
    return Plan(
        1, hosts=hosts, jobs=1, stormy_ms=STORMY_MS, bad_weather=False, without=frozenset(FAULTS),
        demands_work=False, wishes=wishes,
    )  # fmt: skip


def when(live: World, condition: Callable[[], bool], then: Callable[[], None]) -> None:
    """Calls `then` as soon as the condition holds."""
    if condition():
        then()
    else:
        live.loop.after(1, lambda: when(live, condition, then))


def request(name: str, qos: QosClass, cpu_milli: int) -> RequestSpec:
    profile = ResourceProfile(cpu_milli, 16 * MIB)
    return RequestSpec(name, profile, cpu_policy=CpuPolicy(qos), allow_pending=True)


def crowded_world(monkeypatch: pytest.MonkeyPatch, lse_cpus: int, policy: HostPolicy) -> World:
    """Returns a world of one host whose LSE slot takes `lse_cpus` cpus.

    After that, a best-effort slot is requested.
    """
    host = HostMachine(machine("1s1n4c1t"), policy)
    monkeypatch.setattr("tests.simulation.world.some_machine", lambda _rng: host)
    crowded = World(quiet_plan(1, frozenset({CPUS})))

    def ask() -> None:
        (master,) = crowded.checks.masters.values()
        master.leaving = True  # the job master then makes no requests itself
        lse = request("job-01-lse", QosClass.LSE, lse_cpus * 1_000)
        best_effort = request("job-01-be", QosClass.BE, 100)
        master._request((lse,))

        def granted() -> bool:
            told = master.told_of(lse.allocation_id)
            return told is not None and told.state is RequestState.GRANTED

        when(crowded, granted, lambda: master._request((best_effort,)))

    def registered() -> bool:
        return any(each.registered for each in crowded.checks.masters.values())

    when(crowded, registered, ask)
    return crowded


def offered_when_healed(monkeypatch: pytest.MonkeyPatch, crowded: World) -> tuple[int, str]:
    """Runs the world; returns two values that `check_healed` read.

    They are the best-effort cpu that the resource manager offers, and the state of the best-effort
    request.
    """
    seen: list[tuple[int, str]] = []

    def look(checks: Checks, state: State) -> None:
        check_healed(checks, state)
        (host,) = state.hosts.values()
        request = state.requests.named("job-01-be")
        assert request is not None
        seen.append((host.free().get(BEST_EFFORT_CPU_MILLI, 0), request.state))

    monkeypatch.setattr("tests.simulation.world.check_healed", look)
    crowded.run()
    return seen[0]


def test_a_best_effort_slot_waits_while_an_lse_slot_has_all_cpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowded = crowded_world(monkeypatch, HOST_CPUS, HostPolicy())
    assert offered_when_healed(monkeypatch, crowded) == (0, RequestState.PENDING)


def test_a_best_effort_slot_runs_on_a_reserved_cpu_while_an_lse_slot_has_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = HostPolicy(reserved_cpus=CpuSet.parse("0"))
    crowded = crowded_world(monkeypatch, HOST_CPUS - 1, policy)
    offered_milli, state = offered_when_healed(monkeypatch, crowded)
    assert state is not RequestState.PENDING
    assert offered_milli == HOST_CPUS * 1_000 - 100


def test_a_best_effort_slot_that_waits_beside_a_free_cpu_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A planted bug: the resource manager assumes that every best-effort pool is empty."""
    monkeypatch.setattr(CpuAllocator, "lacks_best_effort_pool", True)
    with pytest.raises(Failed, match=r"host-00 has .*best_effort_cpu_milli.*, the books say"):
        crowded_world(monkeypatch, HOST_CPUS - 1, HostPolicy()).run()


def test_an_executor_installed_anew_is_taken_in_however_long_the_one_before_it_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Large clusters use a longer lost timeout than small ones."""

    def patient(*drawn: Any) -> EngineSettings:
        return replace(some_settings(*drawn), lost_timeout_ms=25_000)

    monkeypatch.setattr("tests.simulation.world.some_settings", patient)
    small = World(quiet_plan(1))

    def strike() -> None:
        assert state_directory_is_lost(small, small.rng)

    small.loop.after(STORMY_MS, strike)
    small.run()
    registered = [line for line in small.story if "host-00 has registration" in line]
    assert len(registered) == 2


def test_slots_that_wait_for_the_grace_period_of_revoked_slots_are_granted_before_the_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slots are revoked right before the check, and use most of their grace period."""
    full = World(quiet_plan(1, frozenset({REVOCABLE})))
    grace_ms = full.settings.revocation_grace_ms
    take_down = SlotHost._take_down

    def take_down_late(host: SlotHost, key: SlotKey) -> None:
        host.after(grace_ms * 3 // 4, lambda: take_down(host, key))

    monkeypatch.setattr(SlotHost, "_take_down", take_down_late)
    (executor,) = full.checks.executors.values()
    whole = ResourceProfile(executor.share.total[CPU_MILLI], 16 * MIB)
    revocable = RequestSpec("job-01-low", whole, allow_pending=True, revocable=True)
    urgent = RequestSpec("job-01-high", whole, allow_pending=True)
    checked_at_ms = STORMY_MS + HEAL_MS + full.settings.lost_timeout_ms

    def ask() -> None:
        (master,) = full.checks.masters.values()
        master.leaving, full.jobs_max = True, 0  # no other requests
        master._request((revocable,))
        full.loop.after(checked_at_ms - 100 - full.loop.now_ms, lambda: master._request((urgent,)))

    when(full, lambda: any(each.registered for each in full.checks.masters.values()), ask)
    states: list[RequestState] = []

    def look(checks: Checks, state: State) -> None:
        check_healed(checks, state)
        states.extend(state.requests[name].state for name in ("job-01-high", "job-01-low"))

    monkeypatch.setattr("tests.simulation.world.check_healed", look)
    full.run()
    assert full.checks.revocations.revoked == 1
    assert states == [RequestState.GRANTED, RequestState.PENDING]

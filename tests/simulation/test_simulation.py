"""Simulates whole clusters with faults: no capacity is booked twice, and no request is lost.

`./dev simulate --seeds 1000` runs more seeds and shrinks each failing run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation import faults, some_settings
from tests.simulation.faults import FAULTS, OF_CPUS, OF_DEVICES, OF_PARKING
from tests.simulation.job_master import GANGS
from tests.simulation.planted import requests_are_durable_only_when_placed
from tests.simulation.shrink import shrink
from tests.simulation.world import (
    ALL_WISHES,
    WISHES,
    WITH_CPUS,
    WITH_DEVICE_SHARES,
    WITH_DEVICE_STORM,
    WITH_DEVICES,
    WITH_EARLY,
    WITH_PRIORITIES,
    WITH_REVOCATION,
    WITH_TIMES,
    Failed,
    Plan,
    Result,
    World,
)

SEEDS = range(24)
QUICK = (5, 20)
RANGE_SEEDS = range(100, 102)
CPU_SEEDS = (1, 11)
DEVICE_SEEDS = (2, 8)
STORM_SEEDS = (33, 39)
EARLY_SEEDS = (9, 11)
PRIORITY_SEEDS = (2, 11)
TIME_SEEDS = (203, 204)
REVOCATION_SEEDS = (2, 11)
REST = [seed for seed in SEEDS if seed not in QUICK]
PARTS = 4
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "seeds", [QUICK, *(pytest.param(REST[n::PARTS], marks=pytest.mark.full) for n in range(PARTS))]
)
def test_everything_holds_through_faults_and_heals(seeds: Sequence[int]) -> None:
    results = [World(Plan(seed)).run() for seed in seeds]
    struck = sum((result.faults for result in results), Counter[str]())
    assert len(struck) > len(FAULTS) // 2
    for what in (each.resizes for each in results), (each.gangs for each in results):
        assert sum(what) >= 6
    assert sum(each.started for each in results) >= 3


@pytest.mark.full
def test_ranges_hold_through_the_same() -> None:
    for seed in RANGE_SEEDS:
        World(Plan(seed, wishes=ALL_WISHES)).run()


@pytest.mark.full
def test_slots_with_cpus_of_their_own_hold_through_the_same() -> None:
    pinned = 0
    for seed in CPU_SEEDS:
        world = World(Plan(seed, wishes=WITH_CPUS))
        world.run()
        pinned += world.checks.cpus.pinned
    assert pinned >= 30


def test_devices_hold_through_the_same() -> None:
    given = 0
    for seed in DEVICE_SEEDS:
        world = World(Plan(seed, wishes=WITH_DEVICES, demands_work=False))
        world.run()
        given += world.checks.devices.given
    assert given >= 50


def test_devices_that_fail_and_slots_that_are_parked_hold_through_the_same() -> None:
    did = Counter[str]()
    for seed in STORM_SEEDS:
        world = World(Plan(seed, wishes=WITH_DEVICE_SHARES, demands_work=False))
        struck = world.run().faults
        assert struck.keys() >= OF_PARKING
        did += world.checks.did
        did["ended"] += world.checks.devices.ended
    assert did["moves"] >= 4
    assert did["moves undone"] >= 1
    assert did["ended"] >= 1


@pytest.mark.full
def test_priorities_hold_through_the_same() -> None:
    overtakings = 0
    for seed in PRIORITY_SEEDS:
        world = World(Plan(seed, wishes=WITH_PRIORITIES))
        world.run()
        overtakings += world.checks.priorities.overtakings
    assert overtakings >= 10


@pytest.mark.full
def test_revocation_holds_through_the_same() -> None:
    revoked = 0
    for seed in REVOCATION_SEEDS:
        world = World(Plan(seed, wishes=WITH_REVOCATION, demands_work=False))
        world.run()
        revoked += world.checks.revocations.revoked
    assert revoked >= 10


@pytest.mark.full
def test_what_no_executor_could_host_is_rejected_in_time_through_the_same() -> None:
    late = 0
    for seed in EARLY_SEEDS:
        world = World(Plan(seed, wishes=WITH_EARLY, demands_work=False))
        world.run()
        late += world.checks.rejections.late
    assert late >= 3


def test_run_times_dependencies_users_and_rules_hold_through_the_same() -> None:
    did = Counter[str]()
    for seed in TIME_SEEDS:
        world = World(Plan(seed, wishes=WITH_TIMES, demands_work=False))
        world.run()
        did += world.checks.times.did + world.checks.jobs.did
    assert did.keys() >= {
        "time limits",
        "timeouts",
        "dependencies met",
        "dependencies failed",
        "groups chosen",
    }


def test_every_kind_of_fault_is_planned_for_some_seed() -> None:
    planned = {kind for seed in SEEDS for kind in World(Plan(seed)).planned_kinds()}
    assert planned == FAULTS.keys() - OF_CPUS - OF_DEVICES - OF_PARKING
    with_cpus = [World(Plan(seed, wishes=WITH_CPUS)) for seed in SEEDS]
    assert {kind for world in with_cpus for kind in world.planned_kinds()} >= OF_CPUS
    with_devices = [World(Plan(seed, wishes=WITH_DEVICES)) for seed in SEEDS]
    planned = {kind for world in with_devices for kind in world.planned_kinds()}
    assert planned == FAULTS.keys() - OF_PARKING
    stormy = [World(Plan(seed, wishes=WITH_DEVICE_STORM)) for seed in SEEDS]
    assert {kind for world in stormy for kind in world.planned_kinds()} >= OF_DEVICES | OF_PARKING


@pytest.mark.full
def test_the_same_seed_is_the_same_life() -> None:
    program = (
        "from tests.simulation.world import Plan, World; print(World(Plan(1, stormy_ms=6000,"
        " demands_work=False)).run())"
    )
    lives = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(lives) == 1
    assert _short(2).trace == _short(2).trace
    assert _short(2).trace != _short(3).trace


def _short(seed: int, **changes: object) -> Result:
    plan = Plan(seed, hosts=3, stormy_ms=6_000, demands_work=False)
    return World(replace(plan, **changes)).run()  # type: ignore[arg-type]


@pytest.mark.full
def test_wall_clocks_that_jump_change_nothing_but_timestamps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compares runs with correct clocks and with clocks that jump every 50 ms.

    The runs have no deadlines of drains and gangs, and no fair shares. After a restart, the manager
    can compute these only with the wall clock.
    """
    by_arrival = replace(some_settings.USUAL, order="arrival")
    monkeypatch.setattr(some_settings, "USUAL", by_arrival)
    without, wishes = frozenset({"operator drains"}), WISHES - {GANGS}
    right = _short(4, without=without, wishes=wishes)
    plant = World._look_for_orphans

    def jumping(world: World) -> None:
        rng = world.chance("jumps")

        def jump() -> None:
            faults.clock_jumps(world, rng)
            world.loop.after(50, jump)

        jump()
        plant(world)

    monkeypatch.setattr(World, "_look_for_orphans", jumping)
    jumped = _short(4, without=without, wishes=wishes)
    assert jumped.events > right.events
    assert jumped.trace == right.trace


@pytest.mark.full
def test_an_operator_ends_what_a_restore_has_brought_back_and_nobody_serves() -> None:
    """A job without a lease ended after the backup. So its master does not end it a second time."""
    plan = Plan(1, hosts=3, stormy_ms=12_000, bad_weather=False, demands_work=False)
    world = World(replace(plan, without=frozenset(FAULTS)))
    left: list[str] = []

    def restore() -> None:
        assert FAULTS["books are restored"][1](world, world.chance("restore"))
        world.faults["books are restored"] += 1
        for name, master in world.checks.masters.items():
            if master.lease_ms is None:
                left.append(name)
                master.leave()

    world.loop.after(3_000, restore)
    world.run()
    ended = [line.split()[-1] for line in world.story if "operator terminates" in line]
    assert left
    assert ended == left


def test_a_run_that_did_too_little_fails() -> None:
    with pytest.raises(Failed, match="only"):
        World(Plan(0, hosts=1, jobs=1, stormy_ms=1_500)).run()


def test_a_failure_is_told_by_its_shortest_story(monkeypatch: pytest.MonkeyPatch) -> None:
    requests_are_durable_only_when_placed(monkeypatch)
    with pytest.raises(Failed) as whole:
        World(Plan(0, hosts=3, jobs=2, stormy_ms=4_000)).run()
    short = shrink(whole.value, runs_max=12)
    assert len(short.plan.without) >= len(FAULTS) // 2
    assert short.plan.stormy_ms <= whole.value.plan.stormy_ms
    with pytest.raises(Failed) as again:
        World(short.plan).run()
    assert str(again.value) == str(short)

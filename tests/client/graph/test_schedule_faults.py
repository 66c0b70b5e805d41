"""Random jobs with failures and losses: all end, no slot is left, and finished work is finished."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from finegrain.errors import IllegalTransition
from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import (
    DelayOver,
    HostLost,
    RegionState,
    RequestSlots,
    SlotLost,
    TaskEnded,
    TaskFailed,
    TaskId,
)
from finegrain_client.graph.schedule.region import MOVES, RegionRun
from finegrain_client.graph.values import Exchange, JobOptions
from tests.client.graph.graphs import random_graph
from tests.client.graph.schedule_world import World
from tests.support.components import REPOSITORY

HOSTS = ("host-a", "host-b", "host-c")


def _plan(rng: random.Random) -> Plan:
    while True:
        options = JobOptions(restarts_max=rng.randint(0, 3))
        graph = replace(random_graph(rng, rng.randint(2, 6)), options=options)
        try:
            return compile_graph(graph)
        except GraphError:
            pass


def _fault(world: World, rng: random.Random) -> None:
    """Causes one fault: a task fails, perhaps because of missing input; a slot or a host is lost;
    or a grant is late.
    """
    kind = rng.choice(["task", "input", "slot", "host", "late grant"])
    if kind == "host":
        host = rng.choice(HOSTS)
        slots = [slot for slot, at in world.hosts.items() if at == host]
        _lose(world, slots)
        world.step(HostLost(host))
    elif kind == "slot" and world.hosts:
        slot = rng.choice(sorted(world.hosts))
        _lose(world, [slot])
        world.step(SlotLost(slot))
    elif kind == "late grant" and world.withdrawn:
        # The grant crossed the cancellation: its slots must be released.
        world.grant(world.withdrawn.pop())
    elif world.tasks:
        task = rng.choice(sorted(world.tasks))
        del world.tasks[task]
        blocking = [each for each in world.plan.edges if each.exchange is Exchange.BLOCKING]
        missing = rng.choice(blocking).name if kind == "input" and blocking else ""
        world.step(TaskFailed(task, "boom", missing))


def _lose(world: World, slots: list[int]) -> None:
    for slot in slots:
        del world.hosts[slot]
    world.tasks = {task: slot for task, slot in world.tasks.items() if slot not in slots}


def _run(plan: Plan, rng: random.Random, faults: int) -> World:
    world = World(plan, max(each.slots for each in plan.regions))
    while world.ended is None:
        if faults and rng.random() < 0.2:
            faults -= 1
            _fault(world, rng)
            continue
        choices: list[RequestSlots | TaskId | tuple[int, int]] = [
            *world.grantable(),
            *world.tasks,
            *world.delays,
        ]
        assert choices, "the job waits for itself"
        choice = rng.choice(choices)
        if isinstance(choice, RequestSlots):
            world.grant(choice, [rng.choice(HOSTS) for _ in choice.places])
        elif isinstance(choice, TaskId):
            del world.tasks[choice]
            cancelled = choice in world.cancelled and rng.random() < 0.5
            world.step(TaskFailed(choice, "cancelled") if cancelled else TaskEnded(choice))
        else:
            world.delays.remove(choice)
            world.step(DelayOver(*choice))
    return world


def test_the_guide_draws_all_moves_of_a_region() -> None:
    page = (REPOSITORY / "docs/job-graphs.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^    ([A-Z]+) --> ([A-Z]+) :", page, re.MULTILINE)

    assert {(RegionState(one), RegionState(two)) for one, two in drawn} == MOVES


def test_a_move_that_is_not_listed_is_an_error() -> None:
    region = World(_plan(random.Random(1)), 10).schedule.regions[1]

    with pytest.raises(IllegalTransition, match="cannot move from REQUESTING to FINISHED"):
        region.move(RegionState.FINISHED)


def test_all_moves_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the random jobs would not test a part of the schedule."""
    seen = set()
    move = RegionRun.move

    def noting(region: RegionRun, state: RegionState) -> None:
        seen.add((region.state, state))
        move(region, state)

    monkeypatch.setattr(RegionRun, "move", noting)
    rng = random.Random(2)
    for _ in range(100):
        _run(_plan(rng), rng, faults=4)

    assert seen == MOVES


@pytest.mark.parametrize(
    "jobs", [150, pytest.param(5_000, marks=pytest.mark.full)], ids=["some", "many"]
)
def test_every_job_ends_whatever_fails(jobs: int) -> None:
    rng = random.Random(jobs)
    ended_well = restarted = 0
    for _ in range(jobs):
        plan = _plan(rng)
        world = _run(plan, rng, faults=rng.randint(0, 6))
        assert world.ended is not None
        ended_well += world.ended.ok
        restarted += any(each.attempt > 1 for each in world.schedule.regions.values())
    # Otherwise the runs would test only one of the two cases.
    assert 0 < ended_well < jobs
    assert restarted > jobs // 10

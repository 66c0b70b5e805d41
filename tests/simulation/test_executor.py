"""Tests of the start of the simulated executor, and of the checks at a start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from resource_manager.storage import tables
from task_executor.service.checkpoint import (
    decode_document,
    encode_document,
    parse_state,
    state_content,
)
from tests.simulation.executor import DESTROY_WAIT_MS, Executor
from tests.simulation.faults import FAULTS
from tests.simulation.slot_host import STATE_FILE
from tests.simulation.world import Failed, Plan, World

STORMY_MS = 25_000
FULL_MS = 8_000


def quiet_world(strike: Callable[[World, Executor], None]) -> World:
    """Returns a world of one host with one fault: `strike`, once the host has reported a slot."""
    plan = Plan(
        1, hosts=1, jobs=2, stormy_ms=STORMY_MS, bad_weather=False, without=frozenset(FAULTS),
        demands_work=False,
    )  # fmt: skip
    world = World(plan)

    def wait() -> None:
        (executor,) = world.checks.executors.values()
        told = any(row[8] == "ALLOCATED" for row in world.database.rows.rows(tables.slots))
        if executor.up and told:
            strike(world, executor)
        else:
            world.loop.after(10, wait)

    world.loop.after(10, wait)
    return world


def when_up_again(world: World, executor: Executor, then: Callable[[], None]) -> None:
    """Calls `then` as soon as the executor has restarted."""
    if executor.up:
        then()
    else:
        world.loop.after(1, lambda: when_up_again(world, executor, then))


def started(world: World) -> list[str]:
    """Returns the slots that the host had at each start."""
    return [line.partition(" starts with ")[2] for line in world.story if " starts with " in line]


def test_what_a_former_identity_told_is_not_held_against_a_new_one() -> None:
    """An executor with a new identity crashes before cleanup is finished, and starts again."""

    def lose_the_directory(world: World, executor: Executor) -> None:
        def lose_the_helper() -> None:
            executor.helper_until_ms = world.loop.now_ms + DESTROY_WAIT_MS + 1_000
            executor.after(DESTROY_WAIT_MS + 500, executor.crash)  # its identity is saved by then

        for manager in world.managers:  # then no manager declares it lost in this time
            manager.stopped_until_ms = world.loop.now_ms + 20_000
        executor.crash()
        executor.checkpoint = ""
        when_up_again(world, executor, lose_the_helper)

    world = quiet_world(lose_the_directory)
    world.run()
    nothing, left, still_left = started(world)
    assert nothing == "[]"
    assert left == still_left != "[]"
    assert [executor.identities for executor in world.checks.executors.values()] == [2]


def test_an_identity_that_forgets_what_it_told_is_found() -> None:
    def forget(_world: World, executor: Executor) -> None:
        executor.crash()
        saved = parse_state(decode_document(executor.checkpoint, STATE_FILE), [])
        executor.checkpoint = encode_document(state_content(replace(saved, slots=())))

    with pytest.raises(Failed, match=r"has told of slot .* forgot it when it started again"):
        quiet_world(forget).run()


def test_nobody_hears_of_an_identity_that_could_not_be_kept() -> None:
    def fill_the_disk(world: World, executor: Executor) -> None:
        executor.crash()
        executor.checkpoint = ""
        executor.full_until_ms = world.loop.now_ms + FULL_MS

        full_until_ms.append(executor.full_until_ms)

    full_until_ms: list[int] = []
    world = quiet_world(fill_the_disk)
    world.run()
    failed = next(i for i, line in enumerate(world.story) if "cannot keep its identity" in line)
    told = [line for line in world.story[failed:] if " has registration " in line]
    assert told
    assert all(int(line.split()[0]) >= full_until_ms[0] for line in told)

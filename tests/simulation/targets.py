"""Draws the target of a fault."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.job_master import JobMaster
    from tests.simulation.manager import Manager
    from tests.simulation.world import World


def some_manager(world: World, rng: Random) -> Manager | None:
    """Returns the leader in most cases, otherwise a random running manager."""
    leader = world.leader()
    if leader is not None and rng.random() < 0.85:
        return leader
    up = [each for each in world.managers if each.up]
    return rng.choice(up) if up else None


def some_executor(world: World, rng: Random) -> Executor:
    """Returns a random executor, which may be stopped."""
    return rng.choice(list(world.checks.executors.values()))


def some_master(world: World, rng: Random) -> JobMaster | None:
    """Returns a random running job master with a job."""
    living = [m for m in world.checks.masters.values() if m.up and m.registered and not m.over]
    return rng.choice(living) if living else None

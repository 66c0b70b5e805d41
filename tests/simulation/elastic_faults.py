"""Faults of clusters that grow and shrink, and resizes by administrators."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from finegrain.values.states import ProvidedExecutorState, RequestState
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.events import ResizeRequested
from tests.simulation.job_master import RESIZES
from tests.simulation.sizes import resized
from tests.simulation.slot_host import HostPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

BY_HAND_MAX = 3
ORPHAN_MS = 6_000


def provided_executor_ends(world: World, rng: Random) -> bool:
    """Destroys a machine of the provider, with everything on it."""
    return world.cloud is not None and world.cloud.end_one(rng)


def executor_comes_by_hand(world: World, rng: Random) -> bool:
    """Starts an executor of a shape by hand, perhaps with the id of a pending executor."""
    leader, cloud = world.leader(), world.cloud
    if cloud is None or leader is None or world.by_hand >= BY_HAND_MAX:
        return False
    shape = rng.choice(list(cloud.shapes.values()))
    awaited = [
        name
        for name, each in leader.state.provisions.items()
        if each.state in (ProvidedExecutorState.ASKED, ProvidedExecutorState.STARTED)
    ]
    taken = rng.choice(awaited) if awaited and rng.random() < 0.3 else ""
    world.by_hand += 1
    world.checks.provisions.started_by_hand(taken)
    total = dict(shape.total)
    total["cpu_milli"] = total["cpu_milli"] * rng.choice((2, 4, 5)) // 4
    plan = HostPlan(
        total, shape.default_profile, shape.labels, shape.slots_max, ORPHAN_MS, executor_id=taken
    )
    name = f"hand-{world.by_hand}"
    world.log(f"{name} is started by hand like a {shape.name}, as {taken or 'itself'}")
    world.add_executor(name, plan).start()
    return True


def operator_resizes(world: World, rng: Random) -> bool:
    """Resizes a random granted slot, sometimes twice."""
    leader = world.leader()
    if leader is None or RESIZES not in world.plan.wishes:
        return False
    state = leader.state
    granted = [r for r in state.requests.values() if r.state is RequestState.GRANTED]
    if not granted:
        return False
    request = rng.choice(granted)
    slot = state.slots[request.allocation_id, request.generation]
    for _ in range(rng.choice((1, 2))):
        profile, limit = resized(rng, slot_to_dict(slot, ""))
        wait = rng.random() < 0.5
        world.log(f"operator resizes {slot.allocation_id}/{slot.generation} to {profile}")
        leader.submit(
            lambda at, profile=profile, limit=limit, wait=wait: ResizeRequested(  # type: ignore[misc]
                at, None, slot.allocation_id, slot.generation, 0, profile, limit, wait
            )
        )
    return True

"""Faults of cpus: administrators change host policies, cpus go offline, kubelets take cpus."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.mapping.stored import STORED
from resource_manager.engine.executors.host_settings import OF_ONE_HOST, SETTINGS
from resource_manager.engine.hosts.allowed_cpus import CLUSTER
from resource_manager.engine.model.events import HostPolicySet
from tests.simulation.cpu_machines import some_policy

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.world import World


def _with_machines(world: World) -> list[Executor]:
    return [each for each in world.checks.executors.values() if each.machine is not None]


def operator_sets_policies(world: World, rng: Random) -> bool:
    """Sets or clears settings of a host or of the cluster."""
    leader, executors = world.leader(), _with_machines(world)
    if leader is None or not executors:
        return False
    executor = rng.choice(executors)
    name = CLUSTER if rng.random() < 0.2 else executor.executor_id
    if name and name not in leader.state.hosts:
        return False
    policy, clear = HostPolicy(), SETTINGS
    if rng.random() < 0.75:
        assert executor.machine is not None
        reservable = executor.machine.machine.cpus - executor.machine.kept_back
        policy, clear = some_policy(rng, EMPTY if name == CLUSTER else reservable), ()
        if name == CLUSTER and any(getattr(policy, each) is not None for each in OF_ONE_HOST):
            return False
    world.log(f"operator sets {STORED.to_json(policy)} for {name or 'the cluster'}, clears {clear}")
    leader.submit(lambda at: HostPolicySet(at, name, policy, clear))
    return True


def cpus_go_offline(world: World, rng: Random) -> bool:
    """Takes up to half of a host's cpus offline for a while."""
    return _away(world, rng, "offline", "stop running")


def kubelet_takes_cpus(world: World, rng: Random) -> bool:
    """Gives cpus to containers of a kubelet for a while, even if slots have them."""
    return _away(world, rng, "kubelets", "are a kubelet's")


def _away(world: World, rng: Random, what: str, how: str) -> bool:
    executors = [each for each in _with_machines(world) if not each.is_destroyed]
    if not executors:
        return False
    executor = rng.choice(executors)
    assert executor.machine is not None
    mine = list(executor.machine.machine.cpus - executor.machine.kept_back)
    cpus = CpuSet(rng.sample(mine, rng.randint(1, max(1, len(mine) // 2))))
    world.log(f"cpus {cpus} of {executor.name} {how}")
    executor.see_cpus(**{what: cpus})
    world.loop.after(rng.choice((300, 2_000, 6_000)), lambda: executor.see_cpus(**{what: EMPTY}))
    return True

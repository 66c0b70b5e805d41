"""Lists each kind of fault; implements those of networks, clocks, administrators, job masters.

A fault is a function of the world and a random source; it returns whether it took effect.
`network.py` has the faults of single messages, `process_faults.py` those of processes.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from finegrain.values.states import ExecutorState
from resource_manager.engine.model.events import DrainRequested, ForgetRequested, UndrainRequested
from tests.simulation.cpu_faults import (
    cpus_go_offline,
    kubelet_takes_cpus,
    operator_sets_policies,
)
from tests.simulation.device_faults import (
    device_breaks,
    device_fails_at_work,
    devices_vanish,
    operator_cordons_a_device,
    operator_parks_a_slot,
    operator_uncordons_a_device,
    operator_unparks_a_slot,
)
from tests.simulation.elastic_faults import (
    executor_comes_by_hand,
    operator_resizes,
    provided_executor_ends,
)
from tests.simulation.network import Node
from tests.simulation.process_faults import (
    Fault,
    around_commit,
    books_are_restored,
    checkpoint_is_torn,
    database_is_gone,
    database_is_slow,
    executor_disk_is_full,
    executor_stalls,
    front_and_helper_die,
    front_dies,
    front_dies_while_it_resizes,
    front_dies_while_it_saves,
    helper_dies,
    host_reboots,
    manager_dies,
    manager_is_stopped,
    manager_loses_database,
    manager_stalls,
    slot_breaks,
    state_directory_is_lost,
)
from tests.simulation.targets import some_executor, some_manager, some_master

if TYPE_CHECKING:
    from tests.simulation.world import World

DAY_MS = 86_400_000


# -- the network -------------------------------------------------------------------------------


def _cut(world: World, rng: Random, one: Node, other: Node) -> bool:
    ways = [(one.name, other.name), (other.name, one.name)]
    way = rng.randint(0, 2)
    cut = ways if way == 2 else [ways[way]]
    world.log(f"network loses {cut}")
    world.network.cut.update(cut)
    world.loop.after(rng.choice((300, 2_000, 9_000)), lambda: world.network.cut.subtract(cut))
    return True


def cut_between_manager_and_executor(world: World, rng: Random) -> bool:
    """Cuts one way or both."""
    manager = some_manager(world, rng)
    return manager is not None and _cut(world, rng, manager, some_executor(world, rng))


def cut_between_manager_and_job_master(world: World, rng: Random) -> bool:
    """Cuts one way or both."""
    manager, master = some_manager(world, rng), some_master(world, rng)
    return manager is not None and master is not None and _cut(world, rng, manager, master)


def cut_between_executor_and_job_master(world: World, rng: Random) -> bool:
    """Cuts one direction or both. So direct offers are lost."""
    master = some_master(world, rng)
    return master is not None and _cut(world, rng, some_executor(world, rng), master)


def manager_is_cut_off(world: World, rng: Random) -> bool:
    """Cuts a manager off from all but the database."""
    manager = some_manager(world, rng)
    if manager is None:
        return False
    others = [*world.checks.executors, *world.checks.masters]
    cut = [way for name in others for way in ((manager.name, name), (name, manager.name))]
    world.log(f"network loses everything from and to {manager.name}")
    world.network.cut.update(cut)
    world.loop.after(rng.choice((300, 2_000, 6_000)), lambda: world.network.cut.subtract(cut))
    return True


def port_is_closed(world: World, rng: Random) -> bool:
    """Closes an executor's port: it can call the managers, but they cannot call it."""
    executor = some_executor(world, rng)
    ways = [(manager.name, executor.name) for manager in world.managers]
    world.log(f"{executor.name} cannot be dialled")
    world.network.undialled.update(ways)
    world.loop.after(
        rng.choice((2_000, 6_000, 12_000)), lambda: world.network.undialled.subtract(ways)
    )
    return True


# -- clocks, administrators, job masters -------------------------------------------------------


def clock_jumps(world: World, rng: Random) -> bool:
    """Sets a wall clock forward or back, by up to half a day."""
    nodes: list[Node] = [*world.managers, *world.checks.executors.values()]
    node, jump_ms = rng.choice(nodes), rng.randint(-DAY_MS // 2, DAY_MS // 2)
    node.wall_ahead_ms = jump_ms
    return True


def operator_drains(world: World, rng: Random) -> bool:
    """Drains an executor, with or without a deadline."""
    leader, name = world.leader(), some_executor(world, rng).executor_id
    if leader is None or name not in leader.state.hosts:
        return False
    deadline_ms = rng.choice((None, 0, 1_500))
    world.log(f"operator drains {name} within {deadline_ms}")
    leader.submit(lambda at: DrainRequested(at, name, "", deadline_ms))
    return True


def operator_undrains(world: World, rng: Random) -> bool:
    """Undrains a random drained executor."""
    leader = world.leader()
    names = (
        [] if leader is None else [n for n, h in leader.state.hosts.items() if h.executor.draining]
    )
    if leader is None or not names:
        return False
    name = rng.choice(names)
    world.log(f"operator undrains {name}")
    leader.submit(lambda at: UndrainRequested(at, name))
    return True


def operator_forgets(world: World, rng: Random) -> bool:
    """Forgets a random lost executor."""
    leader = world.leader()
    lost = ExecutorState.LOST
    names = (
        []
        if leader is None
        else [n for n, h in leader.state.hosts.items() if h.executor.state is lost]
    )
    if leader is None or not names:
        return False
    name = rng.choice(names)
    world.log(f"operator forgets {name}")
    leader.submit(lambda at: ForgetRequested(at, name))
    return True


def job_ends(world: World, rng: Random) -> bool:
    """Ends a job: its master ends the job, or stops and never returns."""
    master = some_master(world, rng)
    if master is None:
        return False
    if rng.random() < 0.5 or master.lease_ms is None:
        world.log(f"{master.name} leaves")
        master.leave()
    else:
        master.crash(back_in_ms=None)
    return True


def job_master_dies(world: World, rng: Random) -> bool:
    """Kills a job master. After its return it remembers only its name and its secret."""
    master = some_master(world, rng)
    if master is None:
        return False
    master.crash(back_in_ms=rng.choice((20, 500, 4_000)))
    return True


FAULTS: dict[str, tuple[int, Fault]] = {
    "manager dies": (2, manager_dies),
    "manager dies before a commit": (2, around_commit("die before")),
    "manager dies after a commit": (2, around_commit("die after")),
    "commit fails and is not stored": (2, around_commit("fail before")),
    "commit fails and is stored": (2, around_commit("fail after")),
    "manager stops before a commit": (1, around_commit("stop before")),
    "manager stops inside a commit": (1, around_commit("stop inside")),
    "manager stops after a commit": (1, around_commit("stop after")),
    "manager stops before it speaks": (1, around_commit("speak late")),
    "manager stalls": (2, manager_stalls),
    "manager is stopped": (1, manager_is_stopped),
    "manager loses the database": (2, manager_loses_database),
    "database is gone": (1, database_is_gone),
    "database is slow": (1, database_is_slow),
    "books are restored": (1, books_are_restored),
    "front dies": (3, front_dies),
    "front dies while it saves": (3, front_dies_while_it_saves),
    "front dies while it resizes": (3, front_dies_while_it_resizes),
    "helper dies": (2, helper_dies),
    "front and helper die": (2, front_and_helper_die),
    "host reboots": (2, host_reboots),
    "checkpoint is torn": (1, checkpoint_is_torn),
    "state directory is lost": (1, state_directory_is_lost),
    "executor's disk is full": (1, executor_disk_is_full),
    "executor stalls": (2, executor_stalls),
    "slot breaks": (2, slot_breaks),
    "cut between manager and executor": (4, cut_between_manager_and_executor),
    "cut between manager and job master": (2, cut_between_manager_and_job_master),
    "cut between executor and job master": (2, cut_between_executor_and_job_master),
    "manager is cut off": (1, manager_is_cut_off),
    "port is closed": (2, port_is_closed),
    "clock jumps": (2, clock_jumps),
    "operator drains": (3, operator_drains),
    "operator undrains": (2, operator_undrains),
    "operator forgets": (2, operator_forgets),
    "operator resizes": (3, operator_resizes),
    "provided executor ends": (2, provided_executor_ends),
    "executor comes by hand": (2, executor_comes_by_hand),
    "operator sets policies": (4, operator_sets_policies),
    "cpus go offline": (4, cpus_go_offline),
    "kubelet takes cpus": (3, kubelet_takes_cpus),
    "devices vanish": (5, devices_vanish),
    "device breaks": (4, device_breaks),
    "device fails at work": (5, device_fails_at_work),
    "operator cordons a device": (5, operator_cordons_a_device),
    "operator uncordons a device": (3, operator_uncordons_a_device),
    "operator parks a slot": (1, operator_parks_a_slot),
    "operator unparks a slot": (1, operator_unparks_a_slot),
    "job ends": (2, job_ends),
    "job master dies": (2, job_master_dies),
}
"""Kind to its weight and function."""

OF_PROVIDERS = frozenset({"provided executor ends", "executor comes by hand"})
"""Kinds that need a provider."""

OF_CPUS = frozenset({"operator sets policies", "cpus go offline", "kubelet takes cpus"})
"""Kinds that need hosts with a known cpu topology."""

OF_DEVICES = frozenset(
    {
        "devices vanish",
        "device breaks",
        "device fails at work",
        "operator cordons a device",
        "operator uncordons a device",
    }
)
"""Kinds that need hosts with devices."""

OF_PARKING = frozenset({"operator parks a slot", "operator unparks a slot"})
"""Kinds that need hosts on which slots can be parked."""

IN_DEVICE_STORM: dict[str, int] = {
    "devices vanish": 1,
    "device breaks": 1,
    "device fails at work": 8,
    "operator cordons a device": 2,
    "operator uncordons a device": 3,
    "operator parks a slot": 8,
    "operator unparks a slot": 5,
}
"""A storm of devices adds these kinds of faults to the others, with these weights. Most of them
leave executors running, so slots have their devices for some time.
"""

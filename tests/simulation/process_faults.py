"""Faults of processes, disks and the database.

A fault is a function of the world and a random source. It returns whether it took effect.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.targets import some_executor, some_manager

if TYPE_CHECKING:
    from tests.simulation.world import World

Fault = Callable[["World", Random], bool]


# -- resource managers and their database ------------------------------------------------------


def manager_dies(world: World, rng: Random) -> bool:
    """Kills a manager."""
    manager = some_manager(world, rng)
    if manager is not None:
        manager.crash()
    return manager is not None


def around_commit(what: str) -> Fault:
    """Returns a fault that affects the leader at its next commit; see `Database.commit`."""

    def fault(world: World, _rng: Random) -> bool:
        leader = world.leader()
        if leader is None or leader.next_commit:
            return False
        world.log(f"{leader.name} will {what} (its next commit)")
        leader.next_commit = what
        return True

    return fault


def manager_stalls(world: World, rng: Random) -> bool:
    """Stops a manager for a while (SIGSTOP); then the manager continues."""
    manager = some_manager(world, rng)
    if manager is None or manager.is_stopped:
        return False
    stall_ms = rng.choice((300, 1_500, 4_000))
    world.log(f"{manager.name} stalls for {stall_ms} ms")
    manager.stopped_until_ms = world.loop.now_ms + stall_ms
    return True


def manager_is_stopped(world: World, rng: Random) -> bool:
    """Stops a manager as for an upgrade: it releases leadership and starts again."""
    manager = some_manager(world, rng)
    if manager is None or manager.is_stopped:
        return False
    manager.stop()
    return True


def manager_loses_database(world: World, rng: Random) -> bool:
    """Cuts one manager off from the database."""
    manager = some_manager(world, rng)
    if manager is None or manager.cut_off or world.database.lease_ms is None:
        return False
    away_ms = rng.choice((500, 2_500, 6_000))
    world.log(f"{manager.name} cannot reach the database for {away_ms} ms")
    manager.cut_off = True

    def join() -> None:
        manager.cut_off = False

    world.loop.after(away_ms, join)
    return True


def database_is_gone(world: World, rng: Random) -> bool:
    """Takes the database down for all managers."""
    for_ms = rng.choice((300, 2_000, 5_000))
    world.log(f"the database is gone for {for_ms} ms")
    world.database.go_down(for_ms)
    return True


def database_is_slow(world: World, rng: Random) -> bool:
    """Makes commits slow, while they hold their locks."""
    for_ms = rng.choice((1_000, 4_000))
    world.log(f"the database is slow for {for_ms} ms")
    world.database.slow_until_ms = world.loop.now_ms + for_ms
    return True


def books_are_restored(world: World, rng: Random) -> bool:
    """Makes a backup; later stops all managers and restores it."""
    if world.restoring:
        return False
    world.restoring = True
    backup = world.database.rows.copy()
    world.log("operator makes a backup")

    def begin() -> None:
        world.log("operator stops all managers")
        for manager in world.managers:
            manager.held_down = True
            if manager.up:
                manager.stop()
        world.loop.after(300, finish)

    def finish() -> None:
        world.log("operator restores the backup")
        seen = max(each.fence.rm_epoch for each in world.checks.executors.values())
        world.database.restore(backup, above_epoch=seen)
        world.checks.restored()
        world.restoring = False
        for manager in world.managers:
            manager.held_down = False
            manager.start()

    world.loop.after(rng.choice((200, 2_000, 5_000)), begin)
    return True


# -- executors and their hosts -----------------------------------------------------------------


def front_dies(world: World, rng: Random) -> bool:
    """Kills the front of an executor. Its slots continue."""
    executor = some_executor(world, rng)
    if executor.up:
        executor.crash()
        return True
    return False


def front_dies_while_it_saves(world: World, rng: Random) -> bool:
    """Makes the next checkpoint slow, and kills the front before it is durable."""
    executor = some_executor(world, rng)
    if not executor.up or executor.dies_saving:
        return False
    world.log(f"{executor.name} will die while it saves")
    executor.dies_saving = True
    return True


def front_dies_while_it_resizes(world: World, rng: Random) -> bool:
    """Kills the front between two steps of the next resize."""
    executor = some_executor(world, rng)
    if not executor.up or executor.dies_resizing:
        return False
    world.log(f"{executor.name} will die while it resizes")
    executor.dies_resizing = rng.choice(("written down", "enforced", "enforced"))
    return True


def helper_dies(world: World, rng: Random) -> bool:
    """Kills the helper; until it runs again, no slot is carved or removed."""
    executor = some_executor(world, rng)
    executor.helper_dies()
    return True


def front_and_helper_die(world: World, rng: Random) -> bool:
    """Kills front and helper at the same time."""
    executor = some_executor(world, rng)
    if not executor.up:
        return False
    executor.crash()
    executor.helper_dies()
    return True


def host_reboots(world: World, rng: Random) -> bool:
    """Reboots a host. Only its disk keeps its content."""
    executor = some_executor(world, rng)
    if executor.up:
        executor.crash(reboot=True)
        return True
    return False


def checkpoint_is_torn(world: World, rng: Random) -> bool:
    """Crashes an executor and keeps only a part of its checkpoint on disk."""
    executor = some_executor(world, rng)
    if not executor.up or not executor.checkpoint:
        return False
    executor.crash(reboot=rng.random() < 0.5)
    executor.tear_checkpoint()
    return True


def state_directory_is_lost(world: World, rng: Random) -> bool:
    """Deletes an executor's state; it starts again with a new instance id."""
    executor = some_executor(world, rng)
    if not executor.up:
        return False
    executor.crash()
    executor.checkpoint = ""
    return True


def executor_disk_is_full(world: World, rng: Random) -> bool:
    """Makes writes of checkpoints fail for a while."""
    executor = some_executor(world, rng)
    executor.full_until_ms = world.loop.now_ms + rng.choice((500, 3_000))
    world.log(f"the disk of {executor.name} is full")
    return True


def executor_stalls(world: World, rng: Random) -> bool:
    """Stops an executor for a while (SIGSTOP)."""
    executor = some_executor(world, rng)
    if not executor.up or executor.is_stopped:
        return False
    stall_ms = rng.choice((300, 2_500, 6_000))
    world.log(f"{executor.name} stalls for {stall_ms} ms")
    executor.stopped_until_ms = world.loop.now_ms + stall_ms
    return True


def slot_breaks(world: World, rng: Random) -> bool:
    """Removes a slot's group from the host."""
    return some_executor(world, rng).break_slot()

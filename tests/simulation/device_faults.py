"""Faults of devices: they vanish and return under other numbers, fail, and operators cordon them.

An executor looks for devices when it starts, so a device that vanishes restarts its front. What
happens to the health of a device, and who else uses it, is reported while it runs.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from finegrain.devices.condition import DeviceCondition, DeviceHealth, ForeignUse
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned
from tests.simulation.device_machines import renumbered

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.world import World

AWAY_MS = (600, 2_500, 6_000)


def _with_devices(world: World) -> list[Executor]:
    return [
        each
        for each in world.checks.executors.values()
        if each.hardware.devices and not each.is_destroyed
    ]


def _some(world: World, rng: Random) -> Executor | None:
    executors = _with_devices(world)
    return rng.choice(executors) if executors else None


def devices_vanish(world: World, rng: Random) -> bool:
    """Removes some devices of a host, which return later; all get other minor numbers."""
    executor = _some(world, rng)
    if executor is None or not executor.up:
        return False
    gone = [each.uuid for each in executor.hardware.devices if rng.random() < 0.6]
    world.log(f"{executor.name} loses devices {gone}")

    def away() -> None:
        executor.absent |= set(gone)
        executor.hardware = renumbered(rng, executor.hardware)

    def back() -> None:
        world.log(f"devices {gone} of {executor.name} are back")
        executor.absent -= set(gone)
        executor.hardware = renumbered(rng, executor.hardware)
        _restart(executor, reboot=rng.random() < 0.3)

    away()
    _restart(executor, reboot=rng.random() < 0.3)
    world.loop.after(rng.choice(AWAY_MS), back)
    return True


def device_breaks(world: World, rng: Random) -> bool:
    """Makes a device unhealthy for a while. Its slots go on."""
    executor = _some(world, rng)
    if executor is None or not executor.up:
        return False
    uuid = rng.choice(executor.hardware.devices).uuid
    world.log(f"device {uuid} has a problem")
    executor.problems[uuid] = "XID 79"
    _restart(executor)

    def healthy() -> None:
        world.log(f"device {uuid} is healthy")
        executor.problems.pop(uuid, None)
        _restart(executor)

    world.loop.after(rng.choice(AWAY_MS), healthy)
    return True


def device_fails_at_work(world: World, rng: Random) -> bool:
    """Changes the condition of a device for a while, and lets others use another one."""
    executor = _some(world, rng)
    if executor is None or not executor.up:
        return False
    health = rng.choice((DeviceHealth.UNHEALTHY, DeviceHealth.GONE, DeviceHealth.UNKNOWN))
    failed, used = (rng.choice(executor.hardware.devices) for _ in range(2))
    lost = health is not DeviceHealth.UNKNOWN and rng.random() < 0.6
    others = (ForeignUse("process", "python", 4_711),)
    bad = DeviceCondition(failed.type, failed.uuid, health, "a reset is needed", lost)
    shared = DeviceCondition(used.type, used.uuid, foreign_uses=others)
    seen = (bad,) if failed is used else tuple(sorted((bad, shared), key=_type_and_uuid))
    world.log(f"devices of {executor.name}: {failed.uuid} is {health}, {used.uuid} is used")
    executor.see_devices(seen)

    def probing() -> None:
        again = replace(bad, health=DeviceHealth.PROBING, work_lost=False, problem="a probe")
        executor.see_devices((again,))

    def healthy() -> None:
        world.log(f"devices of {executor.name} are healthy")
        executor.see_devices(())

    away_ms = rng.choice(AWAY_MS)
    world.loop.after(away_ms, probing)
    world.loop.after(away_ms + rng.choice((100, 1_500)), healthy)
    return True


def _type_and_uuid(condition: DeviceCondition) -> tuple[str, str]:
    return condition.type, condition.uuid


def operator_cordons_a_device(world: World, rng: Random) -> bool:
    """Cordons a device, perhaps one that is absent."""
    executor, leader = _some(world, rng), world.leader()
    if executor is None or leader is None or executor.executor_id not in leader.state.hosts:
        return False
    name, uuid = executor.executor_id, rng.choice(executor.hardware.devices).uuid
    world.log(f"operator cordons {uuid}")
    restores = world.checks.restores

    def answered(answer: object) -> None:
        # Any answer but an error says that the cordon is durable.
        if not isinstance(answer, Exception) and restores == world.checks.restores:
            world.checks.devices.cordoned.add(uuid)

    leader.submit(lambda at: DeviceCordoned(at, name, uuid, "tried out"), answered)
    return True


def operator_uncordons_a_device(world: World, rng: Random) -> bool:
    """Uncordons a random cordoned device."""
    leader = world.leader()
    cordons = [] if leader is None else _cordons(world)
    if leader is None or not cordons:
        return False
    name, uuid = rng.choice(cordons)
    world.log(f"operator uncordons {uuid}")
    world.checks.devices.cordoned.discard(uuid)
    leader.submit(lambda at: DeviceUncordoned(at, name, uuid))
    return True


def heal_devices(world: World) -> None:
    """Brings all devices back; executors find them at their next start."""
    for executor in _with_devices(world):
        executor.see_devices(())
        if executor.absent or executor.problems:
            executor.absent.clear()
            executor.problems.clear()
            _restart(executor)


def uncordon_all(world: World) -> None:
    """Uncordons every device."""
    leader = world.leader()
    for name, uuid in _cordons(world) if leader is not None else ():
        world.checks.devices.cordoned.discard(uuid)
        leader.submit(lambda at, name=name, uuid=uuid: DeviceUncordoned(at, name, uuid))  # type: ignore[misc,union-attr]


def _cordons(world: World) -> list[tuple[str, str]]:
    leader = world.leader()
    assert leader is not None
    return [
        (name, cordon.uuid)
        for name, setting in leader.state.host_settings.items()
        for cordon in setting.cordons
        if name in leader.state.hosts
    ]


def _restart(executor: Executor, *, reboot: bool = False) -> None:
    # A front that is down looks for devices anyway when it starts.
    if executor.up:
        executor.crash(reboot=reboot)

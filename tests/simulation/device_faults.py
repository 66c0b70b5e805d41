"""Faults of devices: they vanish, return under other numbers, or fail; administrators cordon them.

An executor looks for devices only when it starts. So if a device vanishes, the front of the
executor restarts. The executor reports health and foreign use of devices while it runs.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from finegrain.devices.condition import DeviceCondition, DeviceHealth, ForeignUse
from finegrain.devices.parking import has_gpus, without_gpus
from finegrain.devices.request import DeviceRequest
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.events import DeviceCordoned, DeviceUncordoned, ResizeRequested
from resource_manager.engine.state import State
from tests.simulation.device_machines import renumbered

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.manager import Manager
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
    """Makes a device unhealthy for a while. Its slots continue."""
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
    """Changes the condition of a device for a while, and adds foreign use to another device."""
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
    checks = world.checks
    before = checks.restores, checks.devices.uncordons[uuid]

    def answered(answer: object) -> None:
        # Any answer but an error says that the cordon is durable. It may have ended by then.
        now = checks.restores, checks.devices.uncordons[uuid]
        if not isinstance(answer, Exception) and now == before:
            checks.devices.cordoned.add(uuid)

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
    world.checks.devices.uncordon(uuid)
    leader.submit(lambda at: DeviceUncordoned(at, name, uuid))
    return True


def operator_parks_a_slot(world: World, rng: Random) -> bool:
    """Parks a slot."""
    leader = world.leader()
    slots = [] if leader is None else [s for s in _granted(leader.state) if _has_gpus(s)]
    if leader is None or not slots:
        return False
    slot = rng.choice(slots)
    devices = without_gpus(_requested(leader.state, slot))
    world.log(f"operator parks {slot.allocation_id}/{slot.generation}")
    _give_devices(leader, slot, devices, wait=rng.random() < 0.5)
    return True


def operator_unparks_a_slot(world: World, rng: Random) -> bool:
    """Unparks a slot that is parked or is being parked."""
    leader = world.leader()
    slots = [] if leader is None else _parked(leader.state)
    if leader is None or not slots:
        return False
    slot = rng.choice(slots)
    world.log(f"operator unparks {slot.allocation_id}/{slot.generation}")
    _give_devices(leader, slot, _requested(leader.state, slot), wait=rng.random() < 0.5)
    return True


def unpark_all(world: World) -> None:
    """Unparks every parked slot."""
    leader = world.leader()
    for slot in _parked(leader.state) if leader is not None else ():
        _give_devices(leader, slot, _requested(leader.state, slot), wait=True)  # type: ignore[union-attr, arg-type]


def _granted(state: State) -> list[Slot]:
    return [
        slot
        for slot in state.slots.values()
        if slot.state is SlotState.ALLOCATED
        and (request := state.requests.served_by(slot)) is not None
        and request.state is RequestState.GRANTED
    ]


def _has_gpus(slot: Slot) -> bool:
    return has_gpus((slot.wanted or slot.ordered or slot).profile.devices)


def _requested(state: State, slot: Slot) -> tuple[DeviceRequest, ...]:
    request = state.requests[slot.allocation_id]
    return request.spec.profile.devices if request.spec.profile is not None else ()


def _parked(state: State) -> list[Slot]:
    return [
        slot
        for slot in _granted(state)
        if has_gpus(_requested(state, slot)) and not _has_gpus(slot)
    ]


def _give_devices(
    leader: Manager, slot: Slot, devices: tuple[DeviceRequest, ...], *, wait: bool
) -> None:
    name, generation = slot.allocation_id, slot.generation
    last = slot.wanted or slot.ordered or slot
    profile, limit_milli = replace(last.profile, devices=devices), last.cpu_limit_milli
    leader.submit(
        lambda at: ResizeRequested(
            at, None, name, generation, 0, profile, limit_milli, wait, park=True
        )
    )


def heal_devices(world: World) -> None:
    """Brings all devices back. Executors find them at their next start."""
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
        world.checks.devices.uncordon(uuid)
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
    # A front that is down looks for devices when it starts. So it needs no restart.
    if executor.up:
        executor.crash(reboot=reboot)

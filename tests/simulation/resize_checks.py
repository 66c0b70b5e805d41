"""Checks resizes: numbers rise, nothing is booked twice, and all processes agree at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.devices.device import DeviceShare, shares_together
from finegrain.errors import Reason
from finegrain.resources import (
    ResourceProfile,
    fits,
    larger_of,
    subtract,
    total_of,
    total_of_devices,
)
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.devices.layout import layout_of
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.state import State
from task_executor.engine.slots import SlotKey
from tests.simulation.fair_checks import Limits

if TYPE_CHECKING:
    from tests.simulation.executor import Executor
    from tests.simulation.follower import Told
    from tests.simulation.slot_host import SlotHost

Key = tuple[str, int]
Size = tuple[ResourceProfile, int]
"""Profile and cpu limit."""


@dataclass
class ResizeChecks:
    """Records of the sizes of every slot."""

    _stored: dict[Key, int] = field(default_factory=dict)  # the last number that is on disk
    _asked: dict[Key, tuple[int, Size]] = field(default_factory=dict)  # last acknowledged resize
    _outlived: set[Key] = field(default_factory=set)  # slots from before a restore
    _overdue: set[Key] = field(default_factory=set)  # the slots that were overdue at the last tick
    _refused: dict[Key, int] = field(default_factory=dict)  # number of the last refused resize

    def acknowledged(self, slot: Slot) -> None:
        """A caller may rely on this resize until the slot ends."""
        key, last = (slot.allocation_id, slot.generation), slot.wanted or slot.ordered or slot
        if slot.resize_number >= self._asked.get(key, (0,))[0]:
            self._asked[key] = slot.resize_number, (last.profile, last.cpu_limit_milli)

    def begin(self) -> None:
        """A resource manager has started."""
        self._overdue.clear()

    def restored(self, slots: Iterable[Key]) -> None:
        """A backup replaced the database, so the checks forget all later changes.

        The numbers of resizes of these slots may be used again. Their executors may know later
        numbers.
        """
        self._outlived = set(slots)
        self._stored.clear()
        self._asked.clear()
        self._refused.clear()

    def books(self, state: State) -> Iterator[str]:
        """Checks the state that a resource manager has read; yields problems."""
        for key, (number, _) in self._asked.items():
            slot = state.slots.get(key)
            if slot is not None and slot.resize_number < number:
                yield f"change {number} of slot {key} was acknowledged, and is forgotten"
            elif slot is not None:
                yield from self._comes_to_nothing(key, slot)

    def stored(self, changes: Changes) -> Iterator[str]:
        """Checks a durable transaction: numbers only rise."""
        for event in changes.job_events:
            if event.reason == Reason.RESIZE_REFUSED and event.slot is not None:
                key = event.allocation_id, int(str(event.slot["generation"]))
                # The message begins with "change N to ...".
                self._refused[key] = int(event.message.split()[1])
        for slot in (*changes.slots, *changes.moved_slots):
            key = slot.allocation_id, slot.generation
            before = self._stored.get(key, 0)
            if slot.resize_number < before:
                yield f"slot {key} goes from change {before} to {slot.resize_number}"
            self._stored[key] = slot.resize_number
        for key in changes.deleted_slots:
            self._stored.pop(key, None)

    def decided(self, state: State) -> Iterator[str]:
        """Checks a batch; yields problems."""
        for host in state.hosts.values():
            yield from _booked(host)
            for slot in host.slots.values():
                yield from _numbered(slot)

    def healed(self, state: State) -> Iterator[str]:
        """Checks a healed cluster: each resize is done, refused, replaced, or lacks capacity."""
        for key, slot in state.slots.items():
            host = state.hosts[slot.executor_id]
            hold = host.resize_backoffs.get(key)
            if hold is not None and hold.active:
                yield f"slot {key} is held back: {hold}"
            yield from self._comes_to_nothing(key, slot)

    def _comes_to_nothing(self, key: Key, slot: Slot) -> Iterator[str]:
        number, size = self._asked.get(key, (0, None))
        if number != slot.resize_number or not number or slot.state is SlotState.FREEING:
            return
        if key in self._outlived:
            return
        latest = slot.wanted or slot.ordered or slot
        kept = size == (latest.profile, latest.cpu_limit_milli)
        if not kept and self._refused.get(key) != number:
            yield f"change {number} of slot {key} was acknowledged, and comes to nothing"

    def late(self, state: State, now_ms: int) -> Iterator[str]:
        """Yields slots whose backoff is over but were not tried again.

        Called after a tick, with the engine's clock.
        """
        overdue = {
            key
            for host in state.hosts.values()
            for key, hold in host.resize_backoffs.items()
            if hold.active and hold.until_ms < now_ms
        }
        for key in sorted(overdue & self._overdue):
            yield f"slot {key} is held back for longer than it was to be"
        self._overdue = overdue

    def waiting(self, state: State) -> Iterator[str]:
        """Yields resizes that wait although there is capacity for them."""
        if state.unfinished:
            return
        limits = Limits(state)
        for host in state.hosts.values():
            if not host.eligible:
                continue
            for slot in host.slots.values():
                if not _waits_for_room(state, host, slot):
                    continue
                if host.aligning or slot.assignment is not None:
                    continue  # amounts do not tell whether its cpus or NUMA nodes can grow
                more = _growth(host, slot)
                if fits(more, host.spare()) and not limits.stop(slot.job_id, [more]):
                    yield f"slot {slot.allocation_id} waits to grow, but {host.host_id} has room"


def _booked(host: Host) -> Iterator[str]:
    """Checks independently of the engine that the larger of both sizes is booked."""
    # The capacity of a revoked slot is booked for another request.
    booking = (slot for slot in host.slots.values() if not slot.revoked_for)
    real = total_of(_larger(host, slot) for slot in booking)
    if real != {name: amount for name, amount in host.booked.items() if amount}:
        yield f"{host.host_id} has booked {host.booked}, its slots may need {real}"


def _larger(host: Host, slot: Slot) -> dict[str, int]:
    best_effort = slot.assignment is not None and slot.assignment.qos is QosClass.BE
    now = host.booking_of(slot.profile, best_effort=best_effort)
    now = _on_present_devices(host, now, slot.assignment)
    if slot.ordered is None:
        return now
    then = host.booking_of(slot.ordered.profile, best_effort=best_effort)
    then = _on_present_devices(host, then, slot.ordered.assignment or slot.assignment)
    return {name: max(now.get(name, 0), then.get(name, 0)) for name in now.keys() | then.keys()}


def _on_present_devices(
    host: Host, booked: dict[str, int], assignment: CpuAssignment | None
) -> dict[str, int]:
    """Returns a booking without the shares of devices that the host does not announce now.

    The host's total lacks these devices as well. When the devices return, their shares count again.
    """
    announced = {each.uuid for each in layout_of(host.executor.registration.topology).host.devices}
    shares = assignment.devices if assignment is not None else ()
    return _without(booked, (each for each in shares if each.uuid not in announced))


def _without(booked: dict[str, int], shares: Iterable[DeviceShare]) -> dict[str, int]:
    """Returns a booking without these shares. A share has two memory amounts, and the booking has
    only one of them.
    """
    less = total_of_devices(shares)
    return subtract(booked, {name: less[name] for name in less.keys() & booked.keys()})


def _numbered(slot: Slot) -> Iterator[str]:
    numbers = [each.number for each in (slot.ordered, slot.wanted) if each is not None]
    if numbers != sorted(set(numbers)) or max(numbers, default=0) > slot.resize_number:
        yield f"slot {slot.allocation_id} counts {slot.resize_number} changes, and has {numbers}"


def _waits_for_room(state: State, host: Host, slot: Slot) -> bool:
    request = state.requests.served_by(slot)
    hold = host.resize_backoffs.get((slot.allocation_id, slot.generation))
    return (
        slot.wanted is not None
        and slot.ordered is None
        and (hold is None or not hold.active)
        and slot.state is SlotState.ALLOCATED
        and request is not None
        and request.state is RequestState.GRANTED
    )


def _growth(host: Host, slot: Slot) -> dict[str, int]:
    assert slot.wanted is not None
    then, now = host.booking_of(slot.wanted.profile), slot.booked
    return {name: more for name in then if (more := then[name] - now.get(name, 0)) > 0}


def in_use(executor: SlotHost, key: SlotKey) -> dict[str, int]:
    """Returns the amounts that a slot uses on its host, or will use once its size is enforced.

    Shares of devices that are absent do not count. `DeviceChecks` compares each device by itself.
    """
    slot, spec = executor.table.get(key), executor.on_host[key]
    real = executor.table.booking_of(spec)
    used = real if slot is None else larger_of(real, executor.table.booked_by(slot))
    sizes = [spec] if slot is None else [spec, slot.spec, slot.becoming or slot.spec]
    shares: tuple[DeviceShare, ...] = ()
    for each in sizes:
        its = each.assignment.devices if each.assignment is not None else ()
        shares = shares_together(shares, its)
    return _without(used, (each for each in shares if each.uuid in executor.absent))


def enforced_beyond_books(executor: SlotHost) -> Iterator[str]:
    """Yields slots that the kernel allows more than their executor has booked."""
    for key, spec in executor.on_host.items():
        slot = executor.table.get(key)
        if slot is None:
            continue
        real, booked = executor.table.booking_of(spec), executor.table.booked_by(slot)
        if not fits(real, booked):
            yield f"{executor.name} lets {key} have {real}, and has booked {booked}"


def sizes_agree(state: State, executor: Executor, told: dict[Key, Told]) -> Iterator[str]:
    """Checks a healed host: engine, table, kernel and job master agree on each slot's size."""
    host = state.hosts[executor.executor_id]
    for key, slot in host.slots.items():
        if slot.ordered is not None:
            yield f"slot {key} is ordered to change its size for ever"
        listed = executor.table.get(SlotKey(*key))
        sizes = {"books": (slot.profile, slot.cpu_limit_milli)}
        if listed is not None:
            sizes["table"] = (listed.spec.profile, listed.spec.cpu_limit_milli)
        if (real := executor.on_host.get(SlotKey(*key))) is not None:
            sizes["kernel"] = (real.profile, real.cpu_limit_milli)
        if (heard := told.get(key)) is not None and heard.slot is not None:
            profile = ResourceProfile.from_dict(heard.slot["profile"])  # type: ignore[arg-type]
            sizes["job master"] = (profile, int(str(heard.slot["cpu_limit_milli"])))
        if len(set(sizes.values())) > 1:
            yield f"slot {key} is of different sizes: {sizes}"

"""Reports conditions of devices to administrators and jobs: the health of a device, and its use by
processes that belong to no slot.

A device gets no new slots while it is not healthy, or while other processes use it. The present
slots on the device continue. Each change is written to the cluster's history, and each job that has
a slot on the device gets an event. There is one exception: if the work of a slot cannot continue,
and its request has `restart_on_device_loss`, the slot is ended. The request then returns to its old
place in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from finegrain.devices.condition import DeviceCondition, DeviceHealth
from finegrain.errors import Reason
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.gangs import GangMoves
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.queue.requests import Requests

DeviceKey = tuple[str, str]
"""Type and UUID of a device."""


@dataclass(frozen=True, slots=True)
class DeviceReporter:
    """Reports changed conditions of the devices of an executor."""

    journal: Journal
    requests: Requests
    gang_moves: GangMoves
    moves: RequestMoves

    def report(self, host: Host, before: tuple[DeviceCondition, ...]) -> None:
        """Writes events about changes, and ends slots whose work cannot continue.

        Args:
            host: the executor, with the conditions of its last report.
            before: the conditions of the previous report.
        """
        if host.executor.device_conditions != before:
            self._report_changes(host, before)
        # Lost work must be ended even if no condition has changed, because a slot can be confirmed
        # after its device has failed.
        self._end_lost_work(host)

    def _report_changes(self, host: Host, before: Iterable[DeviceCondition]) -> None:
        """Writes an event for each device whose health has changed, and for each device that
        processes outside slots began or ceased to use.
        """
        old_ones, new_ones = _by_key(before), _by_key(host.executor.device_conditions)
        for key in sorted(old_ones.keys() | new_ones.keys()):
            old = old_ones.get(key) or DeviceCondition(*key)
            new = new_ones.get(key) or DeviceCondition(*key)
            if new.health is not old.health:
                self._report_health(host, new)
            if bool(new.foreign_uses) != bool(old.foreign_uses):
                self._report_foreign_use(host, new)

    def _end_lost_work(self, host: Host) -> None:
        """Ends slots whose work cannot continue, if their requests have
        `restart_on_device_loss`.
        """
        for condition in host.executor.device_conditions:
            key = (condition.type, condition.uuid)
            message = f"{_name(host, key)}: {condition.problem}"
            for slot in list(_slots_on(host, key)) if condition.work_lost else ():
                request = self.requests.served_by(slot)
                # An earlier iteration possibly ended a slot of the same gang, and then this slot is
                # already being freed.
                if slot.state is SlotState.FREEING or request is None:
                    continue
                if request.spec.restart_on_device_loss:
                    reason = Reason.DEVICE_LOST
                    self.journal.slot_event("slot_lost", slot, reason=reason, message=message)
                    self.gang_moves.requeue(request, slot, reason, message)
                    self.moves.free(slot)

    def _report_health(self, host: Host, new: DeviceCondition) -> None:
        name = _name(host, (new.type, new.uuid))
        if new.health is DeviceHealth.PROBING:
            # Jobs get no event, because a probe changes nothing for their slots.
            message = f"{name}: {new.problem}"
            self.journal.cluster_event("device_probing", executor_id=host.host_id, message=message)
            return
        if new.health is DeviceHealth.HEALTHY:
            kind, reason, message = (
                "device_recovered",
                Reason.DEVICE_RECOVERED,
                f"{name} works again",
            )
        else:
            kind, reason = "device_unhealthy", Reason.DEVICE_UNHEALTHY
            message = f"{name}: {new.problem or new.health}"
        self.journal.cluster_event(kind, executor_id=host.host_id, reason=reason, message=message)
        for slot in _slots_on(host, (new.type, new.uuid)):
            request = self.requests.served_by(slot)
            if request is not None and request.state is RequestState.GRANTED:
                self.journal.job_event(request, reason=reason, message=message, slot=slot)

    def _report_foreign_use(self, host: Host, new: DeviceCondition) -> None:
        name = _name(host, (new.type, new.uuid))
        kind, message = "device_free_of_others", f"{name} is used by slots only"
        if new.foreign_uses:
            kind, message = "device_used_by_others", f"{name}: {new.foreign_text}"
        self.journal.cluster_event(kind, executor_id=host.host_id, message=message)


def _by_key(conditions: Iterable[DeviceCondition]) -> dict[DeviceKey, DeviceCondition]:
    return {(each.type, each.uuid): each for each in conditions}


def _slots_on(host: Host, key: DeviceKey) -> Iterator[Slot]:
    """Yields the slots that have a share of a device and are not being freed."""
    for slot in host.slots.values():
        if slot.state is SlotState.FREEING or slot.assignment is None:
            continue
        if any((each.type, each.uuid) == key for each in slot.assignment.devices):
            yield slot


def _name(host: Host, key: DeviceKey) -> str:
    """Returns the name of a device ("host-a/gpu3"), or its UUID if the device is not announced."""
    layout = host.cpus.devices.layout if host.cpus is not None else None
    if layout is None or key not in layout.position:
        return f"{host.host_id}/{key[1]}"
    return f"{host.host_id}/{layout.devices[layout.position[key]].name}"

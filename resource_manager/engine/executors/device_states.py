"""Applies the conditions of devices that executors report: health, and uses by others than slots.

A device that is not healthy, or that others use, gets no new work at once; its slots stay. Each
change is written to the cluster's history, and each job that has a slot there gets an event. If
work cannot go on, slots of requests with `restart_on_device_loss` are ended, and these requests
return to their old places in the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finegrain.devices.condition import DeviceCondition, DeviceHealth
from finegrain.errors import Reason
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.executors.cpu_states import settle_host
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.state import EventContext

DeviceKey = tuple[str, str]
"""Type and UUID of a device."""


def adopt_device_conditions(
    context: EventContext, host: Host, seen: tuple[DeviceCondition, ...]
) -> None:
    """Applies the conditions in a full report.

    Args:
        context: context of the event that brought the report.
        host: the executor.
        seen: the reported conditions; a device without one is as it was announced.
    """
    before = host.executor.device_conditions
    if seen != before:
        host.executor.device_conditions = seen
        settle_host(context, host)
        _report_changes(context, host, _by_key(before), _by_key(seen))
    # Also without a change: a slot may have been confirmed only after its device had failed.
    for condition in seen:
        if condition.work_lost:
            _end_slots(context, host, condition)


def _by_key(conditions: Iterable[DeviceCondition]) -> dict[DeviceKey, DeviceCondition]:
    return {(each.type, each.uuid): each for each in conditions}


def _report_changes(
    context: EventContext,
    host: Host,
    before: dict[DeviceKey, DeviceCondition],
    now: dict[DeviceKey, DeviceCondition],
) -> None:
    """Writes an event for each device whose health, or use by others, is another one now."""
    for key in sorted(before.keys() | now.keys()):
        old = before.get(key) or DeviceCondition(*key)
        new = now.get(key) or DeviceCondition(*key)
        name = f"{host.host_id}/{_name(host, key)}"
        if new.health is not old.health:
            _report_health(context, host, new, name)
        if bool(new.foreign_uses) != bool(old.foreign_uses):
            if new.foreign_uses:
                kind, message = "device_used_by_others", f"{name}: {new.foreign_text}"
            else:
                kind, message = "device_free_of_others", f"{name} is used by slots only"
            context.journal.cluster_event(kind, executor_id=host.host_id, message=message)


def _report_health(context: EventContext, host: Host, new: DeviceCondition, name: str) -> None:
    if new.health is DeviceHealth.HEALTHY:
        kind, reason, message = "device_recovered", Reason.DEVICE_RECOVERED, f"{name} works again"
    elif new.health is DeviceHealth.PROBING:
        # Not yet usable, so jobs are not told: nothing has changed for their slots.
        message = f"{name}: {new.problem}"
        context.journal.cluster_event("device_probing", executor_id=host.host_id, message=message)
        return
    else:
        kind, reason = "device_unhealthy", Reason.DEVICE_UNHEALTHY
        message = f"{name}: {new.problem or new.health}"
    context.journal.cluster_event(kind, executor_id=host.host_id, reason=reason, message=message)
    for slot in _slots_on(host, (new.type, new.uuid)):
        request = context.state.requests.served_by(slot)
        if request is not None and request.state is RequestState.GRANTED:
            context.journal.job_event(request, reason=reason, message=message, slot=slot)


def _end_slots(context: EventContext, host: Host, condition: DeviceCondition) -> None:
    """Ends the slots on a device whose requests want to be placed again."""
    state = context.state
    key = (condition.type, condition.uuid)
    for slot in list(_slots_on(host, key)):
        request = state.requests.served_by(slot)
        # Ending one slot may have taken others of its gang along.
        if (
            slot.state is SlotState.FREEING
            or request is None
            or not request.spec.restart_on_device_loss
        ):
            continue
        message = f"{host.host_id}/{_name(host, key)}: {condition.problem}"
        state_reason = Reason.DEVICE_LOST
        context.journal.slot_event("slot_lost", slot, reason=state_reason, message=message)
        state.gang_moves.requeue(request, slot, state_reason, message)
        state.moves.free(slot)


def _slots_on(host: Host, key: DeviceKey) -> Iterator[Slot]:
    """Yields the slots that have a device and are not being freed."""
    for slot in host.slots.values():
        if slot.state is SlotState.FREEING or slot.assignment is None:
            continue
        if any((each.type, each.uuid) == key for each in slot.assignment.devices):
            yield slot


def _name(host: Host, key: DeviceKey) -> str:
    """Returns the name of a device ("gpu3"), or its UUID if it is not announced."""
    ledger = host.cpus.devices if host.cpus is not None else None
    at = ledger.layout.position.get(key) if ledger is not None else None
    return key[1] if ledger is None or at is None else ledger.layout.devices[at].name

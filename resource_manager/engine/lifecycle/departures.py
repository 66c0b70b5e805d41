"""Executors that go: lost, or struck from the books. What becomes of their slots with them.

Lost means out of sight, not stopped: slots stay booked until the executor returns or is struck from
the books. When that may be, others decide.
"""

from __future__ import annotations

from finegrain.errors import Reason
from resource_manager.engine.context import EventContext
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle import usage
from resource_manager.engine.lifecycle.gangs import lose
from resource_manager.engine.lifecycle.moves import free, key_of, vanish
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import ExecutorState, HostSetting, Slot, SlotState
from resource_manager.engine.model.state_tables import RegistrationInput


def lose_executor(context: EventContext, host: Host, message: str) -> None:
    """An executor is lost, and so are its slots, as far as anybody knows."""
    executor, state = host.executor, context.state
    if executor.state is ExecutorState.UNCONFIRMED:
        state.rejection_clock.restart(context.now_ms)  # which does not run while one is unconfirmed
    state.transitions.move_executor(executor, RegistrationInput.FALL_SILENT)
    context.cluster_event("executor_lost", executor_id=host.host_id, message=message)
    take_all_away(context, host, Reason.EXECUTOR_LOST, message)
    host.start_conversation()
    state.changes.executor(executor)
    usage.total_changed(state.hosts, state.costs, host)


def strike(context: EventContext, host: Host) -> None:
    """Forgets an executor with all its slots: nothing of them is left, or ever will be."""
    state = context.state
    for slot in list(host.slots.values()):
        vanish(context, slot)
    state.numbers.keep_registration(host.executor.registration_number)
    state.hosts.forget(host)
    state.outbox.pop(host.host_id, None)
    state.rejection_clock.restart(context.now_ms)
    state.costs.count(host.host_id, {})
    state.changes.delete_executor(host.host_id)
    context.cluster_event("executor_forgotten", executor_id=host.host_id)


def take_all_away(context: EventContext, host: Host, reason: Reason, message: str) -> None:
    """Takes down whatever slots an executor has."""
    slots: list[Slot] = [
        slot for slot in host.slots.values() if slot.state is not SlotState.FREEING
    ]
    for slot in slots:
        if host.slots.get(key_of(slot)) is not slot or slot.state is SlotState.FREEING:
            continue  # it went with another one of its gang
        lose(context, slot, reason, message)
        free(context, slot)


def forget_settings(
    host_settings: dict[str, HostSetting], changes: ChangeTracker, executor_id: str
) -> None:
    """An executor is gone for good: nobody will ever have its id again."""
    if host_settings.pop(executor_id, None) is not None:
        changes.delete_host_setting(executor_id)

"""Executors' cpus as they are at present: what operators set for them, and what executors see.

Takes both in as it changes: what can be booked follows at once, and who waits looks again. Slots
that exist stay as they are; those whose own cpus vanished are named, once when that happens, and
once when they are back. Refuses to know which settings may be made (`host_settings.py`) and how the
layers add up (`hosts/allowed_cpus.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import CpuSet
from finegrain.values.states import SlotState
from resource_manager.engine.hosts.allowed_cpus import CLUSTER, announced_by, set_for
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.entities import NO_CPU_STATE, CpuState, HostSetting

if TYPE_CHECKING:
    from resource_manager.engine.context import EventContext
    from resource_manager.engine.hosts.host import Host
    from resource_manager.engine.model.entities import SlotKey


def adopt_settings(context: EventContext, host: Host) -> None:
    """What operators have set for the host, or for all, is not what it was."""
    state = context.state
    host.operator_policy = set_for(state.host_settings, host.host_id)
    host.cluster_policy = set_for(state.host_settings, CLUSTER)
    _settle(context, host)


def adopt_cpu_state(context: EventContext, host: Host, seen: CpuState | None) -> None:
    """What a full state of the executor says of its cpus; None: nothing out of the ordinary."""
    seen = seen or NO_CPU_STATE
    if seen == host.executor.cpu_state and not host.lost_cpus:
        return  # as with most states
    host.executor.cpu_state = seen
    _settle(context, host)
    report_lost_cpus(context.journal, host)


def policy_to_send(
    host_settings: Mapping[str, HostSetting], host: Host
) -> tuple[HostPolicy | None, int]:
    """What the executor is to be told that operators have set for it, with its number; (None, 0):
    it follows that.
    """
    setting = host_settings.get(host.host_id)
    if setting is None or host.executor.cpu_state.host_policy_number == setting.number:
        return None, 0
    return setting.policy, setting.number


def _settle(context: EventContext, host: Host) -> None:
    state = context.state
    if not host.settle_cpus():
        return
    state.usage.total_changed(host)
    state.rejection_clock.restart(context.now_ms)
    for refusal in host.refusals.values():
        if refusal.state_seen is not None:
            refusal.active = False  # it was about other cpus
    # Other cpus may suit those who wait although no amount has grown.
    state.hosts.indexes.log_growth(host, state.queue)


def report_lost_cpus(journal: Journal, host: Host) -> None:
    """Tells of slots that lack cpus of their own, unless it was told already."""
    before, host.lost_cpus = host.lost_cpus, lost_cpus(host)
    for key, cpus in host.lost_cpus.items():
        if before.get(key) != cpus:
            message = f"cpus {cpus} of the slot's own do not run any more, or are a kubelet's"
            journal.slot_event("cpus_lost", host.slots[key], message=message)
    for key, cpus in before.items():
        slot = host.slots.get(key)
        if slot is not None and key not in host.lost_cpus and slot.state is not SlotState.FREEING:
            journal.slot_event("cpus_returned", slot, message=f"cpus {cpus} are the slot's again")


def lost_cpus(host: Host) -> dict[SlotKey, CpuSet]:
    """Own cpus of slots that are not there for them, by slot; of those that are not being freed."""
    there = announced_by(host.executor.registration).slot_cpus - host.present.unavailable
    found: dict[SlotKey, CpuSet] = {}
    for key, slot in host.slots.items():
        if slot.assignment is None or slot.state is SlotState.FREEING:
            continue
        if lost := slot.assignment.cpus - there:
            found[key] = lost
    return found

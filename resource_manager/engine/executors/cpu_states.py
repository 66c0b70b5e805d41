"""Applies changes of hosts' cpus: settings of operators, and what executors report of their cpus.

Capacity follows at once, and queued requests are tried again. Slots that exist stay as they are. A
slot whose dedicated cpus vanish gets one event when that happens, and one when they are back.
`host_settings.py` checks settings, and `hosts/allowed_cpus.py` merges their layers.
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
    """Applies changed settings of the host, or of the cluster, to the host."""
    state = context.state
    host.operator_policy = set_for(state.host_settings, host.host_id)
    host.cluster_policy = set_for(state.host_settings, CLUSTER)
    _settle(context, host)


def adopt_cpu_state(context: EventContext, host: Host, seen: CpuState | None) -> None:
    """Applies what a full report of the executor says about its cpus.

    Args:
        context: of the event that brought the report.
        host: the executor.
        seen: what it reports; None: nothing unusual.
    """
    seen = seen or NO_CPU_STATE
    # Even without news, slots that lacked cpus may have ended or got them back.
    if seen == host.executor.cpu_state and not host.lost_cpus:
        return  # this is the case with most reports
    host.executor.cpu_state = seen
    _settle(context, host)
    report_lost_cpus(context.journal, host)


def policy_to_send(
    host_settings: Mapping[str, HostSetting], host: Host
) -> tuple[HostPolicy | None, int]:
    """Returns the operators' settings that the executor must get, with their number.

    (None, 0): the executor follows them already, or nothing was set.
    """
    setting = host_settings.get(host.host_id)
    if setting is None or host.executor.cpu_state.host_policy_number == setting.number:
        return None, 0
    return setting.policy, setting.number


def _settle(context: EventContext, host: Host) -> None:
    state = context.state
    if not host.settle_cpus():
        return  # capacity, queue and refusals need no update
    state.usage.total_changed(host)
    state.rejection_clock.restart(context.now_ms)
    for refusal in host.refusals.values():
        if refusal.state_seen is not None:
            refusal.active = False  # it was about other cpus
    # Other cpus may suit queued requests although no amount has grown.
    state.hosts.indexes.log_growth(host, state.queue)


def report_lost_cpus(journal: Journal, host: Host) -> None:
    """Writes events about slots that lack dedicated cpus or have them back, once for each
    change.
    """
    # Replaced first, so that each change is reported once and not with every report.
    before, host.lost_cpus = host.lost_cpus, lost_cpus(host)
    for key, cpus in host.lost_cpus.items():
        if before.get(key) != cpus:
            message = f"cpus {cpus} of the slot's own do not run any more, or are a kubelet's"
            journal.slot_event("cpus_lost", host.slots[key], message=message)
    for key, cpus in before.items():
        slot = host.slots.get(key)
        # A slot that has ended or is being freed has no use for its cpus any more.
        if slot is not None and key not in host.lost_cpus and slot.state is not SlotState.FREEING:
            journal.slot_event("cpus_returned", slot, message=f"cpus {cpus} are the slot's again")


def lost_cpus(host: Host) -> dict[SlotKey, CpuSet]:
    """Returns the dedicated cpus that slots lack, by slot. Slots that are being freed are left
    out.
    """
    # Reserved cpus are not lost: a slot that has them keeps them.
    there = announced_by(host.executor.registration).slot_cpus - host.present.unavailable
    found: dict[SlotKey, CpuSet] = {}
    for key, slot in host.slots.items():
        if slot.assignment is None or slot.state is SlotState.FREEING:
            continue
        if lost := slot.assignment.cpus - there:
            found[key] = lost
    return found

"""Applies changes that affect the cpus of hosts: settings of administrators, and the cpu states
that executors report.

The capacity of the host changes at once, and queued requests are tried again. Existing slots do not
change. If a slot loses dedicated cpus, one event reports the loss, and another event reports when
the cpus are back. `host_settings.py` checks settings, and `hosts/allowed_cpus.py` merges the layers
of settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import CpuSet
from finegrain.values.states import SlotState
from resource_manager.engine.hosts.allowed_cpus import (
    announced_by,
    cluster_policy,
    cordons_for,
    policy_for,
)
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.entities import NO_CPU_STATE, CpuState, HostSetting

if TYPE_CHECKING:
    from resource_manager.engine.hosts.host import Host
    from resource_manager.engine.model.entities import SlotKey
    from resource_manager.engine.state import State


def adopt_settings(state: State, host: Host) -> None:
    """Applies the present settings of the host and of the cluster to the host, after settings have
    changed.
    """
    host.operator_policy = policy_for(state.host_settings, host.host_id)
    host.cluster_policy = cluster_policy(state.host_settings, state.settings.cluster_policy)
    host.cordons = cordons_for(state.host_settings, host.host_id)
    settle_host(state, host)


def adopt_cpu_state(state: State, host: Host, seen: CpuState | None) -> None:
    """Applies the cpu state in a full report of the executor.

    Args:
        state: the state.
        host: the executor.
        seen: the reported state. It is None if no cpu is offline or taken by other programs, and
            the executor has no settings.
    """
    seen = seen or NO_CPU_STATE
    # If slots lacked cpus at the last report, the check is needed even if the state is the same,
    # because these slots have possibly ended.
    if seen == host.executor.cpu_state and not host.lost_cpus:
        return  # most reports end here
    host.executor.cpu_state = seen
    settle_host(state, host)
    report_lost_cpus(state.journal, host)


def policy_to_send(
    host_settings: Mapping[str, HostSetting], host: Host
) -> tuple[HostPolicy | None, int]:
    """Returns the settings of administrators that must be sent to the executor, with their number.

    Returns (None, 0) if there are no settings, or if the executor has already applied these
    settings.
    """
    setting = host_settings.get(host.host_id)
    if (
        setting is None
        or not setting.number
        or host.executor.cpu_state.host_policy_number == setting.number
    ):
        return None, 0
    return setting.policy, setting.number


def settle_host(state: State, host: Host) -> None:
    """Updates all values that depend on the set of cpus and devices that slots can get on a
    host.
    """
    if not host.settle_cpus():
        return  # nothing has changed, so capacity, queue and refusals need no update
    state.usage.total_changed(host)
    state.rejection_clock.restart(state.journal.now_ms)
    for refusal in host.refusals.values():
        if refusal.state_seen is not None:
            refusal.active = False  # the refusal was for the old set of cpus
    # Even if no amount has grown, the new cpus are possibly suitable for queued requests.
    state.hosts.indexes.log_growth(host, state.queue)


def report_lost_cpus(journal: Journal, host: Host) -> None:
    """Writes an event for each slot that has lost dedicated cpus, or has got them back."""
    # The lost cpus are compared with the lost cpus at the last report, so that each change is
    # reported only once.
    before, host.lost_cpus = host.lost_cpus, lost_cpus(host)
    for key, cpus in host.lost_cpus.items():
        if before.get(key) != cpus:
            message = f"dedicated cpus {cpus} of the slot are offline, or a kubelet has taken them"
            journal.slot_event("cpus_lost", host.slots[key], message=message)
    for key, cpus in before.items():
        slot = host.slots.get(key)
        # A slot that has ended or is being freed gets no event, because it does not use its cpus
        # any more.
        if slot is not None and key not in host.lost_cpus and slot.state is not SlotState.FREEING:
            message = f"the slot has its dedicated cpus {cpus} again"
            journal.slot_event("cpus_returned", slot, message=message)


def lost_cpus(host: Host) -> dict[SlotKey, CpuSet]:
    """Returns the lost dedicated cpus by slot. Slots that are being freed are left out."""
    # A cpu that an administrator reserves later is not lost, because the slot keeps the cpu. So
    # reserved cpus are not subtracted.
    there = announced_by(host.executor.registration).slot_cpus - host.present.unavailable
    found: dict[SlotKey, CpuSet] = {}
    for key, slot in host.slots.items():
        if slot.assignment is None or slot.state is SlotState.FREEING:
            continue
        if lost := slot.assignment.cpus - there:
            found[key] = lost
    return found

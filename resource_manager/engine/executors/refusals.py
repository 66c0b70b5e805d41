"""Stores which hosts refused slots although capacity was free, and when each of these hosts may be
tried again. Without this record, a host that always fails would be chosen again and again.

A refusal applies to one scheduling class on one host. The refusal ends when the host's reported
state changes, or after a pause. The pause doubles with each refusal. When a slot of the class is
granted on the host, the next pause is short again.
"""

from __future__ import annotations

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import Refusal
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.timers import Timer, backoff_ms
from resource_manager.engine.state import State


def remember_refusal(state: State, host: Host, slot: Slot) -> None:
    """Excludes a host from the choice for the slot's scheduling class until the refusal ends.

    If the slot belongs to a gang, only the end of the pause ends the refusal. A change of the
    host's reported state would end the refusal too early, because the reported state changes when
    the slots of the other members are freed.

    Args:
        state: the state.
        host: the host that refused.
        slot: the slot that the host could not carve, or that failed on the host.
    """
    request = state.requests.named(slot.allocation_id)
    if request is None:
        return
    settings = state.settings
    key = scheduling_key(request.spec)
    # Refusals that have ended stay in the dict, so that the next pause is twice as long.
    before = host.refusals.get(key)
    failures = before.failures if before is not None else 0
    delay = backoff_ms(failures, settings.refusal_backoff_min_ms, settings.refusal_backoff_max_ms)
    until_ms = state.journal.now_ms + delay
    state_seen = None if request.spec.gang_id else host.state_seen()
    host.refusals[key] = Refusal(failures + 1, until_ms, state_seen)
    state.hosts.refusing[host.host_id] = None
    state.timers.arm(Timer.REFUSAL, host.host_id, until_ms)


def refusal_timer_fired(state: State, executor_id: str) -> None:
    """Ends the refusals of an executor whose pause is over."""
    host = state.hosts.get(executor_id)
    if host is None:
        return
    # No capacity has grown. So without this call, the blocked requests would stay blocked.
    if host.end_refusals(state.journal.now_ms):
        state.hosts.indexes.log_growth(host, state.queue)
    # The pauses of the remaining refusals are not over yet.
    left = [refusal.until_ms for refusal in host.refusals.values() if refusal.active]
    if left:
        state.timers.arm(Timer.REFUSAL, executor_id, min(left))

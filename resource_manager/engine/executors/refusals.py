"""Remembers hosts that refused slots although capacity was free, and when they may be tried again.

Otherwise a host that always fails would be chosen again and again. A refusal applies to one
scheduling class on one host. It ends when the host's reported state changes, or after a pause. The
pause doubles with each refusal. It starts short again after a slot of the class was granted there.
"""

from __future__ import annotations

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import Refusal
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.model.timers import Timer, backoff_ms
from resource_manager.engine.state import EventContext


def remember_refusal(context: EventContext, host: Host, slot: Slot) -> None:
    """Excludes a host from the choice for the slot's scheduling class until the refusal ends.

    If the slot belongs to a gang, only the pause ends the refusal. The slots of other members are
    then freed, which changes the host's reported state for another reason.

    Args:
        context: context of the event that brought the refusal.
        host: the host that refused.
        slot: the slot that the host could not carve, or that broke there.
    """
    request = context.state.requests.named(slot.allocation_id)
    if request is None:
        return
    settings = context.state.settings
    key = scheduling_key(request.spec)
    # Ended refusals stay in the dict, so that the next pause is twice as long.
    before = host.refusals.get(key)
    failures = before.failures if before is not None else 0
    delay = backoff_ms(failures, settings.refusal_backoff_min_ms, settings.refusal_backoff_max_ms)
    until_ms = context.now_ms + delay
    state_seen = None if request.spec.gang_id else host.state_seen()
    host.refusals[key] = Refusal(failures + 1, until_ms, state_seen)
    context.state.hosts.refusing[host.host_id] = None
    context.state.timers.arm(Timer.REFUSAL, host.host_id, until_ms)


def refusal_timer_fired(context: EventContext, executor_id: str) -> None:
    """Ends the refusals of an executor whose pause is over."""
    host = context.state.hosts.get(executor_id)
    if host is None:
        return
    # No capacity has grown, so blocked requests must be unblocked here to try the host again.
    if host.end_refusals(context.now_ms):
        context.state.hosts.indexes.log_growth(host, context.state.queue)
    # The remaining refusals have longer pauses.
    left = [refusal.until_ms for refusal in host.refusals.values() if refusal.active]
    if left:
        context.state.timers.arm(Timer.REFUSAL, executor_id, min(left))

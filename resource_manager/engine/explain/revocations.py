"""Describes revocable slots in explanations: the slots that are being revoked for a request, and
the slots that could be revoked for a request.
"""

from __future__ import annotations

from datetime import UTC, datetime

from finegrain.values.states import SlotState
from resource_manager.engine.model.entities import Request, Slot
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.scheduling.revocation import Revocation
from resource_manager.engine.state import State

SHOWN_MAX = 5
"""A text names at most this many slots."""


def revoked_text(hosts: Hosts, slot: Slot) -> str:
    """Names the slots that are being revoked on the host of a pending slot. The pending slot waits
    for the end of these slots. The result is empty for a slot that is not pending.
    """
    host = hosts.of(slot)
    revoked = [host.slots[key] for key in host.revoked]
    if slot.state is not SlotState.PENDING or not revoked:
        return ""
    names = ", ".join(sorted(each.allocation_id for each in revoked)[:SHOWN_MAX])
    more = f" and {len(revoked) - SHOWN_MAX} more" if len(revoked) > SHOWN_MAX else ""
    until = [each.revoked_until_time_ms for each in revoked if each.revoked_until_time_ms]
    text = f"; waits for slots being revoked: {names}{more}"
    if until:
        text += f", until {datetime.fromtimestamp(max(until) / 1_000, UTC):%H:%M:%S} UTC"
    return text


def revocable_text(state: State, request: Request) -> str:
    """Names the revocable slots whose capacity a pending request would need. The result is empty if
    revocation is on, or if the request must not revoke slots.
    """
    spec = request.spec
    if state.settings.revocation or spec.revocable or spec.gang_id:
        return ""
    found = Revocation(state).least_set(request)
    if found is None:
        return ""
    names = ", ".join(slot.allocation_id for slot in found[1][:SHOWN_MAX])
    if len(found[1]) == 1:
        return f"would fit if revocable slot {names} was taken back; revocation is off"
    more = f" and {len(found[1]) - SHOWN_MAX} more" if len(found[1]) > SHOWN_MAX else ""
    return f"would fit if revocable slots {names}{more} were taken back; revocation is off"

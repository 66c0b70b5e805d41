"""Records in the cluster's history which newly accepted requests the first pass did not place."""

from __future__ import annotations

from finegrain.values.states import RequestState
from resource_manager.engine.context import EventContext
from resource_manager.engine.model.entities import Request
from resource_manager.engine.state import State


def record_newcomers(context: EventContext) -> None:
    """Records new requests that are still pending, with one entry for each part of a range. Stops
    when the journal of this step is full; the next call continues.
    """
    state, journal = context.state, context.journal
    while state.newcomers and not journal.is_full:
        request = state.newcomers.popleft()
        if request.state is RequestState.PENDING:
            journal.cluster_event(
                "request_pending",
                job_id=request.job_id,
                allocation_id=request.allocation_id,
                reason=_waiting_reason(state, request),
            )
    # Each part of a range is one entry, so all parts are recorded at once.
    for part in state.new_parts:
        waiting = len(part.waiting)
        if waiting:
            journal.cluster_event(
                "request_pending",
                job_id=part.row.job_id,
                allocation_id=part.id_of(part.waiting.first),
                reason=state.waiting_reasons.waiting_reason(
                    state.queue.class_of(part.spec.request)
                ),
                message=f"{waiting} members of range {part.spec.range_id}",
            )
    state.new_parts.clear()


def _waiting_reason(state: State, request: Request) -> str:
    if request.spec.gang_id:
        return state.waiting_reasons.member_reason(request)
    return state.waiting_reasons.waiting_reason(state.queue.class_of(request.spec))

"""The engine's explanation of a request, as a message."""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.dimensions import DimensionStatus
from resource_manager.engine.explain import Explanation
from resource_manager.engine.queries import slot_view
from resource_manager.engine.state import State
from resource_manager.service.to_wire import request_status, slot_status


def explanation(found: Explanation, state: State) -> rm_pb2.ExplainResponse:
    """Why a request waits, or what became of it."""
    views = [slot_view(state, slot) for slot in found.blocked_by]
    return rm_pb2.ExplainResponse(
        request=request_status(found.view),
        primary_reason=found.primary_reason,
        summary=found.summary,
        requests_ahead=found.requests_ahead,
        executors_considered=found.executors_considered,
        executors_fitting=found.executors_fitting,
        executors=[
            rm_pb2.ExecutorVerdict(
                executor_id=one.executor_id,
                fits=one.fits,
                blockers=one.blockers,
                dimensions=_dimensions(one.dimensions),
                message=one.message,
            )
            for one in found.executors
        ],
        dimensions=_dimensions(found.dimensions),
        would_fit_if=[
            rm_pb2.Counterfactual(
                executor_id=one.executor_id,
                at_most=_dimensions(one.at_most),
                message=one.message,
            )
            for one in found.would_fit_if
        ],
        blocked_by=[slot_status(view.slot, view.executor_address) for view in views],
        snapshot_number=found.snapshot_number,
    )


def _dimensions(many: Iterable[DimensionStatus]) -> list[rm_pb2.DimensionStatus]:
    return [
        rm_pb2.DimensionStatus(
            dimension=one.dimension,
            asked=one.asked,
            free=one.free,
            largest_hole=one.largest_hole,
            total=one.total,
        )
        for one in many
    ]

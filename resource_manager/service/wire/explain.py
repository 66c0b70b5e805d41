"""The engine's explanation of a request, as a message."""

from __future__ import annotations

from collections.abc import Iterable

from finegrain.rpc.wire import amounts_to_proto, timestamp_ms_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager.engine.cpus.refusals import CpuRefusal
from resource_manager.engine.explain.fairness import Step, Tally
from resource_manager.engine.explain.gangs import GangExplanation
from resource_manager.engine.explain.lists import slot_view
from resource_manager.engine.explain.remedies import DimensionStatus
from resource_manager.engine.explain.requests import Explanation
from resource_manager.engine.explain.reservations import ReservationView
from resource_manager.engine.fairness.flows import GROUP
from resource_manager.engine.state import State
from resource_manager.service.wire.encoding import request_status, slot_status_of_view
from resource_manager.service.wire.gangs import gang_message
from resource_manager.service.wire.resizes import resize_message


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
                cpu=_cpu_verdict(one.cpu) if one.cpu is not None else None,
            )
            for one in found.executors
        ],
        dimensions=_dimensions(found.dimensions),
        would_fit_if=[
            rm_pb2.Counterfactual(
                executor_id=one.executor_id,
                at_most=_dimensions(one.at_most),
                message=one.message,
                relaxed=one.relaxed,
            )
            for one in found.would_fit_if
        ],
        blocked_by=[slot_status_of_view(view) for view in views],
        snapshot_number=found.snapshot_number,
        gang=_gang(found.gang) if found.gang is not None else None,
        planned_on=found.planned_on,
        resizes=[
            rm_pb2.ResizeExplanation(
                resize=resize_message(one.resize, ordered=one.ordered, message=one.summary),
                dimensions=_dimensions(one.dimensions),
                summary=one.summary,
            )
            for one in found.resizes
        ],
        steps=[_step(one) for one in found.steps],
        limits=[
            rm_pb2.GroupLimit(
                group=one.group_id.removeprefix(GROUP),
                dimension=one.dimension,
                used=one.used,
                asked=one.need,
                maximum=one.maximum,
            )
            for one in found.limits
        ],
        reservation=reservation(found.reservation) if found.reservation is not None else None,
        held_for_others=[reservation(one) for one in found.held_for_others],
    )


def reservation(found: ReservationView) -> rm_pb2.Reservation:
    """What is held for somebody."""
    return rm_pb2.Reservation(
        allocation_id=found.allocation_id,
        job_id=found.job_id,
        gang_id=found.gang_id,
        executors=[
            rm_pb2.ReservedExecutor(
                executor_id=one.executor_id,
                held=amounts_to_proto(one.held),
                missing=amounts_to_proto(one.missing),
            )
            for one in found.executors
        ],
        since_time=timestamp_ms_to_proto(found.since_time_ms),
        passed_over_since_time=timestamp_ms_to_proto(found.passed_over_since_time_ms),
        summary=found.summary,
    )


def _cpu_verdict(found: CpuRefusal) -> rm_pb2.CpuVerdict:
    return rm_pb2.CpuVerdict(code=found.blocker, numbers=dict(found.numbers), message=found.text)


def _step(found: Step) -> rm_pb2.ChoiceStep:
    return rm_pb2.ChoiceStep(
        group=found.group,
        flow=_tally(found.flow),
        position=found.position,
        backlogged=found.backlogged,
        ahead=[_tally(one) for one in found.ahead],
        summary=found.summary,
    )


def _tally(found: Tally) -> rm_pb2.FlowTally:
    return rm_pb2.FlowTally(
        name=found.name,
        is_job=found.is_job,
        job_name=found.job_name,
        weight=found.weight,
        service=found.service,
        tally=found.tally,
        running=found.running,
        waiting=found.waiting,
        below_minimum=found.minimum_reached is not None,
    )


def _gang(found: GangExplanation) -> rm_pb2.GangExplanation:
    deadline_ms = found.deadline_time_ms
    return rm_pb2.GangExplanation(
        gang=gang_message(found.gang),
        members=found.members,
        placeable=found.placeable,
        spots=[rm_pb2.GangSpot(name=one.name, placeable=one.placeable) for one in found.spots],
        summary=found.summary,
        deadline_time=None if deadline_ms is None else timestamp_ms_to_proto(deadline_ms),
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

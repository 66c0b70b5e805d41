"""Turns what the RM says about why something waits into the values of `types/explain.py`."""

from __future__ import annotations

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.decoding import fairness as reading_fairness
from finegrain_client.decoding import status as reading
from finegrain_client.types import explain as types


def explanation(message: rm.ExplainResponse) -> types.Explanation:
    """Why a request waits."""
    return types.Explanation(
        request=reading.request(message.request),
        primary_reason=message.primary_reason,
        summary=message.summary,
        requests_ahead=message.requests_ahead,
        executors_considered=message.executors_considered,
        executors_fitting=message.executors_fitting,
        executors=tuple(
            types.ExecutorVerdict(
                executor_id=each.executor_id,
                fits=each.fits,
                blockers=tuple(each.blockers),
                dimensions=tuple(_dimension(one) for one in each.dimensions),
                message=each.message,
                cpu=_cpu_verdict(each.cpu) if each.HasField("cpu") else None,
            )
            for each in message.executors
        ),
        dimensions=tuple(_dimension(each) for each in message.dimensions),
        would_fit_if=tuple(
            types.Counterfactual(
                each.executor_id,
                tuple(_dimension(one) for one in each.at_most),
                each.message,
                tuple(each.relaxed),
            )
            for each in message.would_fit_if
        ),
        blocked_by=tuple(reading.slot(each) for each in message.blocked_by),
        snapshot_number=message.snapshot_number,
        gang=_gang_explanation(message.gang) if message.HasField("gang") else None,
        planned_on=message.planned_on,
        resizes=tuple(
            types.ResizeExplanation(
                resize=reading.resize(each.resize),
                dimensions=tuple(_dimension(one) for one in each.dimensions),
                summary=each.summary,
            )
            for each in message.resizes
        ),
        steps=tuple(reading_fairness.step(each) for each in message.steps),
        limits=tuple(reading_fairness.limit(each) for each in message.limits),
        reservation=(
            reading_fairness.reservation(message.reservation)
            if message.HasField("reservation")
            else None
        ),
        held_for_others=tuple(
            reading_fairness.reservation(each) for each in message.held_for_others
        ),
    )


def _cpu_verdict(message: rm.CpuVerdict) -> types.CpuVerdict:
    return types.CpuVerdict(message.code, dict(message.numbers), message.message)


def _gang_explanation(
    message: rm.GangExplanation,
) -> types.GangExplanation:
    return types.GangExplanation(
        gang=reading.gang(message.gang),
        members=message.members,
        placeable=message.placeable,
        spots=tuple(types.GangSpot(each.name, each.placeable) for each in message.spots),
        summary=message.summary,
        deadline_time=reading.moment(message, "deadline_time"),
    )


def _dimension(message: rm.DimensionStatus) -> types.Dimension:
    return types.Dimension(
        message.dimension, message.asked, message.free, message.largest_hole, message.total
    )

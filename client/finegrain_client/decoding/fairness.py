"""Turns what the RM says about the order of service, and about capacity that is held, into the
values of `types/fairness.py`.
"""

from __future__ import annotations

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.decoding.status import amounts, moment
from finegrain_client.types import fairness as types


def step(message: rm.ChoiceStep) -> types.ChoiceStep:
    """One step of the choice who is served next."""
    return types.ChoiceStep(
        group=message.group,
        flow=_tally(message.flow),
        position=message.position,
        backlogged=message.backlogged,
        ahead=tuple(_tally(each) for each in message.ahead),
        summary=message.summary,
    )


def limit(message: rm.GroupLimit) -> types.GroupLimit:
    """A maximum that stops a request."""
    return types.GroupLimit(
        message.group, message.dimension, message.used, message.asked, message.maximum
    )


def reservation(message: rm.Reservation) -> types.Reservation:
    """What is held for somebody."""
    return types.Reservation(
        allocation_id=message.allocation_id,
        job_id=message.job_id,
        gang_id=message.gang_id,
        executors=tuple(
            types.ReservedExecutor(each.executor_id, amounts(each.held), amounts(each.missing))
            for each in message.executors
        ),
        since_time=moment(message, "since_time"),
        passed_over_since_time=moment(message, "passed_over_since_time"),
        summary=message.summary,
    )


def _tally(message: rm.FlowTally) -> types.FlowTally:
    return types.FlowTally(
        name=message.name,
        is_job=message.is_job,
        job_name=message.job_name,
        weight=message.weight,
        service=message.service,
        tally=message.tally,
        running=message.running,
        waiting=message.waiting,
        below_minimum=message.below_minimum,
    )

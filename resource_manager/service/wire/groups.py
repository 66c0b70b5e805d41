"""Resource groups as messages, and back. Reads views, decides nothing about groups."""

from __future__ import annotations

from collections.abc import Mapping

from finegrain.errors import InvalidArgument
from finegrain.resources import EXTENDED_PREFIX
from finegrain.rpc.wire import (
    EXTENDED_NAME_PATTERN,
    amounts_to_proto,
    duration_ms_to_proto,
    timestamp_ms_to_proto,
)
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.groups import FlowView, GroupView
from resource_manager.engine.explain.reservations import ReservationView
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import GroupSet
from resource_manager.engine.model.settings import Fairness
from resource_manager.service.wire.explain import reservation

NO_LIMIT = -1
"""An amount that takes a limit away."""

DIMENSIONS_MAX = 64
"""Kinds of resources that one group may limit."""


def groups_message(
    views: list[GroupView], held: list[ReservationView], fairness: Fairness
) -> cluster_pb2.ListGroupsResponse:
    """All groups, how service is counted, and what is held for whom."""
    message = cluster_pb2.ListGroupsResponse(
        groups=[group_status(view) for view in views],
        service_measure=fairness.usage_measure,
        reservations=[reservation(each) for each in held],
    )
    if fairness.half_life_ms is not None:
        message.half_life.CopyFrom(duration_ms_to_proto(fairness.half_life_ms))
    return message


def group_status(view: GroupView) -> cluster_pb2.GroupStatus:
    """One group."""
    group, flow = view.group, view.flow
    message = cluster_pb2.GroupStatus(
        name=group.name,
        parent=group.parent,
        description=group.description,
        weight=group.weight,
        minimum=group.minimum,
        maximum=group.maximum,
        used=amounts_to_proto(view.used),
        share_entitled=view.share_entitled,
        share_now=flow.share_now,
        service=flow.service,
        tally=flow.tally,
        running=view.running,
        waiting=view.waiting,
        jobs=view.jobs,
    )
    if flow.oldest_wait_time_ms is not None:
        message.oldest_wait_time.CopyFrom(timestamp_ms_to_proto(flow.oldest_wait_time_ms))
    return message


def fill_job(message: cluster_pb2.JobStatus, flow: FlowView) -> None:
    """Adds what a job has received and gets."""
    message.service, message.share_now = flow.service, flow.share_now
    if flow.oldest_wait_time_ms is not None:
        message.oldest_wait_time.CopyFrom(timestamp_ms_to_proto(flow.oldest_wait_time_ms))


def group_wish(request: cluster_pb2.SetGroupRequest, at: Instant) -> GroupSet:
    """What is to become of a group; whether that may be, the engine knows.

    Raises:
        InvalidArgument: a limit that is none.
    """
    return GroupSet(
        at,
        request.name,
        weight=request.weight if request.HasField("weight") else None,
        parent=request.parent if request.HasField("parent") else None,
        description=request.description if request.HasField("description") else None,
        minimum=_limits("minimum", request.minimum),
        maximum=_limits("maximum", request.maximum),
    )


def _limits(field: str, given: Mapping[str, int]) -> dict[str, int | None]:
    if len(given) > DIMENSIONS_MAX:
        raise InvalidArgument(field, f"{len(given)} dimensions", f"at most {DIMENSIONS_MAX}")
    for name, amount in given.items():
        resource = name.removeprefix(EXTENDED_PREFIX)
        if (
            resource != name
            and amount != NO_LIMIT
            and not EXTENDED_NAME_PATTERN.fullmatch(resource)
        ):
            expected = f"{EXTENDED_PREFIX} and a name that matches {EXTENDED_NAME_PATTERN.pattern}"
            raise InvalidArgument(f"{field} of a dimension", name, expected)
    return {name: None if amount == NO_LIMIT else amount for name, amount in given.items()}

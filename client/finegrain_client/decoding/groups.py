"""Turns what the RM says about resource groups into the values of `types/groups.py`."""

from __future__ import annotations

from finegrain.v1 import cluster_pb2
from finegrain_client.decoding.fairness import reservation
from finegrain_client.decoding.status import amounts, moment, seconds
from finegrain_client.types import groups as types


def groups(message: cluster_pb2.ListGroupsResponse) -> types.Groups:
    """All of them."""
    return types.Groups(
        groups=tuple(group(each) for each in message.groups),
        service_measure=message.service_measure,
        half_life_s=seconds(message, "half_life"),
        reservations=tuple(reservation(each) for each in message.reservations),
    )


def group(message: cluster_pb2.GroupStatus) -> types.GroupStatus:
    """One group."""
    return types.GroupStatus(
        name=message.name,
        parent=message.parent,
        description=message.description,
        weight=message.weight,
        minimum=dict(message.minimum),
        maximum=dict(message.maximum),
        used=amounts(message.used),
        share_entitled=message.share_entitled,
        share_now=message.share_now,
        service=message.service,
        tally=message.tally,
        running=message.running,
        waiting=message.waiting,
        oldest_wait_time=moment(message, "oldest_wait_time"),
        jobs=message.jobs,
    )

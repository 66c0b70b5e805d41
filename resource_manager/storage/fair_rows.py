"""Ranges, groups and tallies to rows and back: one pair of functions per table.

Decides how each is spelled in columns, in the order of `tables.py`. Refuses to know any SQL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from resource_manager.engine.model.entities import (
    Group,
    RangeSpec,
    RequestRange,
    RequestSpec,
    Tally,
)
from resource_manager.storage import tables
from resource_manager.storage.codecs import Codec, Row
from resource_manager.storage.texts import (
    cpu_policy_of,
    cpu_policy_text,
    ended_of,
    ended_text,
    json_text,
    labels_of,
    labels_text,
    profile_of,
    profile_text,
)


def _encode_range(part: RequestRange) -> Row:
    spec, request = part.spec, part.spec.request
    return (
        spec.range_id,
        spec.first_index,
        spec.count,
        part.job_id,
        part.arrival_number,
        part.create_time_ms,
        None if request.profile is None else profile_text(request.profile),
        request.cpu_limit_milli,
        request.pids_max,
        labels_text(request.required_labels),
        request.allow_pending,
        request.restart_on_loss,
        ended_text(part.ended),
        cpu_policy_text(request.cpu_policy),
    )


def _decode_range(row: Sequence[Any]) -> RequestRange:
    request = RequestSpec(
        allocation_id=row[0],
        profile=None if row[6] is None else profile_of(row[6]),
        cpu_limit_milli=row[7],
        pids_max=row[8],
        required_labels=labels_of(row[9]),
        allow_pending=bool(row[10]),
        restart_on_loss=bool(row[11]),
        cpu_policy=cpu_policy_of(row[13]),
    )
    return RequestRange(
        spec=RangeSpec(request, first_index=row[1], count=row[2]),
        job_id=row[3],
        arrival_number=row[4],
        create_time_ms=row[5],
        ended=ended_of(row[12]),
    )


def _encode_group(group: Group) -> Row:
    return (
        group.name,
        group.parent,
        repr(group.weight),
        json_text(dict(group.minimum)),
        json_text(dict(group.maximum)),
        group.description,
        group.create_time_ms,
    )


def _decode_group(row: Sequence[Any]) -> Group:
    return Group(
        name=row[0],
        parent=row[1],
        weight=float(row[2]),
        minimum=json.loads(row[3]),
        maximum=json.loads(row[4]),
        description=row[5],
        create_time_ms=row[6],
    )


def _encode_tally(tally: Tally) -> Row:
    return (
        tally.flow_id,
        tally.measure,
        repr(tally.service),
        repr(tally.raised),
        tally.time_ms,
        tally.durations,
    )


def _decode_tally(row: Sequence[Any]) -> Tally:
    return Tally(
        flow_id=row[0],
        measure=row[1],
        service=float(row[2]),
        raised=float(row[3]),
        time_ms=row[4],
        durations=row[5],
    )


RANGES = Codec(tables.request_ranges, _encode_range, _decode_range)
GROUPS = Codec(tables.groups, _encode_group, _decode_group)
TALLIES = Codec(tables.tallies, _encode_tally, _decode_tally)

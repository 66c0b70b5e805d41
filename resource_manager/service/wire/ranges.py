"""Decodes ranges of requests and members of ranges, and checks the form of every field."""

from __future__ import annotations

import re
from collections.abc import Sequence

from finegrain.errors import InvalidArgument
from finegrain.v1 import slots_pb2
from resource_manager.engine.model.entities import RangeSpec
from resource_manager.engine.model.events import Members
from resource_manager.engine.queue.ranges import INDEX_END
from resource_manager.service.wire.decoding import slot_request

RANGES_MAX = 100  # maximum number of ranges in one call
MEMBERS_MAX = 1_000_000  # maximum number of members of a range in one call
RANGE_ID_LENGTH_MAX = 100

_RANGE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_range_count(ranges: Sequence[object]) -> None:
    """Raises InvalidArgument if there are more than `RANGES_MAX` ranges."""
    if len(ranges) > RANGES_MAX:
        raise InvalidArgument("ranges", f"{len(ranges)} items", f"at most {RANGES_MAX} items")


def request_ranges(messages: Sequence[slots_pb2.RequestRange]) -> tuple[RangeSpec, ...]:
    """Decodes the ranges of a call.

    Raises:
        InvalidArgument: a field is malformed, or not allowed for ranges.
    """
    check_range_count(messages)
    return tuple(_request_range(each, f"ranges[{at}]") for at, each in enumerate(messages))


def range_members(messages: Sequence[slots_pb2.RangeMembers]) -> tuple[Members, ...]:
    """Decodes members of ranges: (range id, first index, count).

    Raises:
        InvalidArgument: a field is malformed.
    """
    check_range_count(messages)
    return tuple(_range_members(each, f"ranges[{at}]") for at, each in enumerate(messages))


def _request_range(message: slots_pb2.RequestRange, field: str) -> RangeSpec:
    range_id = _range_id(message.range_id, field)
    count = message.count
    if not 1 <= count <= MEMBERS_MAX:
        raise InvalidArgument(f"{field}.count", count, f"1 to {MEMBERS_MAX}")
    first = _first_index(message.first_index, count, field)
    if not message.HasField("request"):
        raise InvalidArgument(f"{field}.request", "absent", "the slot request of each member")
    template = message.request
    for name in ("allocation_id", "gang_id", "target_address"):
        if value := getattr(template, name):
            raise InvalidArgument(f"{field}.request.{name}", value, "empty for a range")
    # Decode the range as one request that has the range's id.
    request = slots_pb2.SlotRequest()
    request.CopyFrom(template)
    request.allocation_id = range_id
    return RangeSpec(slot_request(request, f"{field}.request"), first, count)


def _range_members(message: slots_pb2.RangeMembers, field: str) -> Members:
    range_id = _range_id(message.range_id, field)
    count = message.count
    if not 1 <= count <= INDEX_END:
        raise InvalidArgument(f"{field}.count", count, f"1 to {INDEX_END}")
    return range_id, _first_index(message.first_index, count, field), count


def _range_id(range_id: str, field: str) -> str:
    if not _RANGE_ID.fullmatch(range_id):
        raise InvalidArgument(
            f"{field}.range_id",
            range_id,
            f"1 to {RANGE_ID_LENGTH_MAX} characters out of A-Z a-z 0-9 . _ - that start with a"
            " letter or digit",
        )
    return range_id


def _first_index(first: int, count: int, field: str) -> int:
    if not 0 <= first <= INDEX_END - count:
        raise InvalidArgument(
            f"{field}.first_index", first, f"0 to {INDEX_END - count}, for {count} members"
        )
    return first

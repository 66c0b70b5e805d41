"""Decodes ReuseSlots calls: slots, and for each slot the request that it must serve next. Decodes
also the reports about the threads of work in slots.

This module checks the form. The engine decides whether a slot can be reused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.mapping.fields import members_of
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import ThreadEnd
from resource_manager.engine.model.entities import Instant, RangeSpec
from resource_manager.engine.model.events import Event, SlotsReuseRequested
from resource_manager.service.wire import decoding

FINISHED_BEFORE_MAX = 1_000_000

_THREAD_ENDS = members_of(ThreadEnd, rm_pb2.ThreadEnd.DESCRIPTOR)

ReusePart = tuple[tuple[str, int, str], ...]
"""Slots: (id, generation, id of the request that the slot serves next)."""


def slot_reuses(messages: Sequence[rm_pb2.SlotReuse]) -> ReusePart:
    """Decodes a batch of slots.

    Raises:
        InvalidArgument: a field is missing or malformed, or an id occurs twice.
    """
    decoding.check_batch("slots", messages)
    slots: list[tuple[str, int, str]] = []
    named: dict[str, str] = {}
    for index, each in enumerate(messages):
        field = f"slots[{index}]"
        allocation_id = check_id(f"{field}.allocation_id", each.allocation_id)
        if each.generation < 1:
            raise InvalidArgument(f"{field}.generation", each.generation, "1 or more")
        for_id = check_id(f"{field}.for_allocation_id", each.for_allocation_id)
        for name, value in (("allocation_id", allocation_id), ("for_allocation_id", for_id)):
            # Ids of slots and of requests are in one table, because an id must not be both, and
            # must not occur twice.
            earlier = named.setdefault(value, f"{field}.{name}")
            if earlier != f"{field}.{name}":
                raise InvalidArgument(
                    f"{field}.{name}", value, f"an id that {earlier} does not have"
                )
        slots.append((allocation_id, each.generation, for_id))
    return tuple(slots)


def thread_reports(
    messages: Sequence[rm_pb2.SlotRelease | rm_pb2.SlotReuse],
) -> dict[str, ThreadReport]:
    """Returns what the job master reports about the threads of work in slots, by allocation id.
    Slots without a report are not included.

    Raises:
        InvalidArgument: a `thread_end` is not known, or a `finished_before` is out of bounds.
    """
    found: dict[str, ThreadReport] = {}
    for index, each in enumerate(messages):
        number, before = each.thread_end, each.finished_before
        if number and number not in _THREAD_ENDS:
            raise InvalidArgument(f"slots[{index}].thread_end", number, "a known ThreadEnd")
        if not 0 <= before <= FINISHED_BEFORE_MAX:
            allowed = f"0 to {FINISHED_BEFORE_MAX:,}"
            raise InvalidArgument(f"slots[{index}].finished_before", before, allowed)
        if number or before:
            found[each.allocation_id] = ThreadReport(_THREAD_ENDS.get(number), before)
    return found


def reuse_events(
    job_id: str,
    parts: Sequence[ReusePart],
    grace_ms: int | None,
    ranges: tuple[RangeSpec, ...] = (),
    reports: Mapping[str, ThreadReport] | None = None,
) -> list[Callable[[Instant], Event]]:
    """Returns a function for each part of the batch, which creates the event from the current time.

    Args:
        job_id: the job that calls.
        parts: the batch, in parts.
        grace_ms: milliseconds between SIGTERM and SIGKILL; None: the executor's default.
        ranges: new ranges. If there are any, the batch must have only one part.
        reports: the reports about the threads of work in the slots; see `thread_reports`.
    """
    return [
        partial(
            SlotsReuseRequested,
            job_id=job_id,
            slots=part,
            grace_ms=grace_ms,
            ranges=ranges,
            thread_reports=reports or {},
        )
        for part in parts
    ]

"""Reuses finished slots for further requests of their job.

The resource manager decides which slots may be reused, and releases all other slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.v1 import slots_pb2
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain_client.call_limits import BATCH_ITEMS_MAX
from finegrain_client.decoding import read
from finegrain_client.durations import grace
from finegrain_client.job.context import JobContext


class Reusable(Protocol):
    """The attributes of a request that `reuse` needs."""

    @property
    def allocation_id(self) -> str:
        """Identity of the request."""


class Finished(Reusable, Protocol):
    """A slot whose work is done."""

    @property
    def generation(self) -> int:
        """Generation of the slot; see `Slot.generation`."""

    def mark_released(self) -> None:
        """Records that the resource manager has released the slot."""


Reuse: TypeAlias = tuple[Finished, Reusable | str]
"""A slot, and the request that reuses it (or the allocation id of this request)."""


def thread_end_number(report: ThreadReport) -> rm.ThreadEnd.ValueType:
    """Returns the number of a report about the last thread of a slot in the protocol."""
    return rm.ThreadEnd.Value(f"THREAD_END_{report.end or 'UNSPECIFIED'}")


async def reuse(
    context: JobContext,
    pairs: Sequence[Reuse],
    grace_s: float | None,
    reports: Mapping[str, ThreadReport],
) -> list[ItemOutcome]:
    """Reuses slots; see `Job.reuse`. `reports` has a report for each slot, by allocation id."""
    outcomes: list[ItemOutcome] = []
    for start in range(0, len(pairs), BATCH_ITEMS_MAX):
        some = pairs[start : start + BATCH_ITEMS_MAX]
        outcomes += (await reuse_once(context, some, reports, grace_s))[0]
    return outcomes


async def reuse_once(
    context: JobContext,
    pairs: Sequence[Reuse],
    reports: Mapping[str, ThreadReport],
    grace_s: float | None = None,
    ranges: Sequence[slots_pb2.RequestRange] = (),
) -> tuple[list[ItemOutcome], list[ItemOutcome]]:
    """Reuses slots in one call, also for requests of new ranges.

    Args:
        context: the job.
        pairs: the pairs, at most as many as one call may contain.
        reports: what happened to the threads of work in the slots, by allocation id of the slot.
        grace_s: see `Job.reuse`.
        ranges: ranges that are submitted in the same call.

    Returns:
        The outcomes of the pairs, and the outcomes of the ranges. If the resource manager has an
        older version, which ignores the ranges, there are no outcomes of ranges.
    """
    message = rm.ReuseSlotsRequest(
        job_id=context.job_id,
        slots=[
            rm.SlotReuse(
                allocation_id=slot.allocation_id,
                generation=slot.generation,
                for_allocation_id=_id_of(request),
                thread_end=thread_end_number(reports[slot.allocation_id]),
                finished_before=reports[slot.allocation_id].finished_before,
            )
            for slot, request in pairs
        ],
        grace=grace(grace_s),
        ranges=ranges,
    )
    answer = await context.call_manager(
        lambda manager, timeout_s: manager.ReuseSlots(message, timeout=timeout_s)
    )
    outcomes: list[ItemOutcome] = []
    for (slot, _), result in zip(pairs, answer.results, strict=True):
        outcome = read(ItemOutcome, result)
        if not outcome.ok:
            slot.mark_released()
        outcomes.append(outcome)
    return outcomes, [read(ItemOutcome, each) for each in answer.range_results]


def _id_of(request: Reusable | str) -> str:
    return request if isinstance(request, str) else request.allocation_id

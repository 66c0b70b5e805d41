"""Releases many slots in batched calls to the resource manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.values.outcomes import ItemOutcome, ThreadReport
from finegrain_client.call_limits import id_batches
from finegrain_client.decoding import read
from finegrain_client.durations import grace
from finegrain_client.job.context import JobContext
from finegrain_client.slot.reusing import thread_end_number

if TYPE_CHECKING:
    from finegrain_client.slot.slot import Slot


async def release(
    context: JobContext,
    slots: Sequence[Slot],
    grace_s: float | None,
    reports: Mapping[str, ThreadReport],
) -> list[ItemOutcome]:
    """Releases slots; see `Job.release`. `reports` has a report for each slot, by allocation id."""
    outcomes: list[ItemOutcome] = []
    by_id = {each.allocation_id: each for each in slots}
    for ids in id_batches(list(by_id)):
        message = rm.ReleaseSlotsRequest(
            job_id=context.job_id,
            slots=[
                rm.SlotRelease(
                    allocation_id=each,
                    generation=by_id[each].generation,
                    thread_end=thread_end_number(reports[each]),
                    finished_before=reports[each].finished_before,
                )
                for each in ids
            ],
            grace=grace(grace_s),
        )
        answer = await context.call_manager(
            lambda manager, timeout_s, message=message: manager.ReleaseSlots(  # type: ignore[misc]
                message, timeout=timeout_s
            )
        )
        outcomes += read.each(ItemOutcome, answer.results)
    for outcome in outcomes:
        if outcome.ok and outcome.id in by_id:
            # Mark the slot only on success: a slot that was not released still runs its tasks.
            by_id[outcome.id].mark_released()
    return outcomes

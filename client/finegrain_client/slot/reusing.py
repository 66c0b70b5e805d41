"""Slots whose work is done and that may do the work of further requests of their job.

Decides how batches are cut, and that a slot which may not is one that was given back. Refuses to
know who may: the RM says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain_client.decoding import status as reading
from finegrain_client.job.context import JobContext
from finegrain_client.specs import BATCH_ITEMS_MAX
from finegrain_client.types.status import ItemOutcome

if TYPE_CHECKING:
    from finegrain_client.job.request import Request
    from finegrain_client.slot.slot import Slot

Reuse: TypeAlias = "tuple[Slot, Request | str]"
"""A slot, and the request (or its allocation id) whose work it is to do."""


async def reuse(
    context: JobContext, wishes: Sequence[Reuse], grace_s: float | None
) -> list[ItemOutcome]:
    """See `Job.reuse`."""
    outcomes: list[ItemOutcome] = []
    for start in range(0, len(wishes), BATCH_ITEMS_MAX):
        some = wishes[start : start + BATCH_ITEMS_MAX]
        message = rm.ReuseSlotsRequest(
            job_id=context.job_id,
            slots=[
                rm.SlotReuse(
                    allocation_id=slot.allocation_id,
                    generation=slot.generation,
                    for_allocation_id=wish if isinstance(wish, str) else wish.allocation_id,
                )
                for slot, wish in some
            ],
            grace=None if grace_s is None else reading.duration(grace_s),
        )
        answer = await context.connection.call_manager(
            lambda manager, timeout_s, message=message: manager.ReuseSlots(  # type: ignore[misc]
                message, timeout=timeout_s, metadata=context.metadata
            )
        )
        for (slot, _), result in zip(some, answer.results, strict=True):
            outcome = reading.outcome(result)
            if not outcome.ok:
                slot.mark_released()
            outcomes.append(outcome)
    return outcomes

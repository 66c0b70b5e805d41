"""Reuses finished slots for further requests of their job.

The resource manager decides which slots may be reused, and releases all other slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from finegrain.v1 import resource_manager_pb2 as rm
from finegrain.values.outcomes import ItemOutcome
from finegrain_client.decoding import read
from finegrain_client.durations import duration
from finegrain_client.job.context import JobContext
from finegrain_client.specs import BATCH_ITEMS_MAX


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


async def reuse(
    context: JobContext, pairs: Sequence[Reuse], grace_s: float | None
) -> list[ItemOutcome]:
    """Reuses slots; see `Job.reuse`."""
    outcomes: list[ItemOutcome] = []
    for start in range(0, len(pairs), BATCH_ITEMS_MAX):
        some = pairs[start : start + BATCH_ITEMS_MAX]
        message = rm.ReuseSlotsRequest(
            job_id=context.job_id,
            slots=[
                rm.SlotReuse(
                    allocation_id=slot.allocation_id,
                    generation=slot.generation,
                    for_allocation_id=_id_of(request),
                )
                for slot, request in some
            ],
            grace=duration(grace_s),
        )
        answer = await context.connection.call_manager(
            lambda manager, timeout_s, message=message: manager.ReuseSlots(  # type: ignore[misc]
                message, timeout=timeout_s
            )
        )
        for (slot, _), result in zip(some, answer.results, strict=True):
            outcome = read(ItemOutcome, result)
            if not outcome.ok:
                slot.mark_released()
            outcomes.append(outcome)
    return outcomes


def _id_of(request: Reusable | str) -> str:
    return request if isinstance(request, str) else request.allocation_id

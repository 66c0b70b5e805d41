"""Which moves requests and slots may make. Everything not listed is a bug and raises
`IllegalTransition`.

Theory of operation. A request waits (PENDING), is placed (ALLOCATING), is confirmed by its
executor (GRANTED) and ends. A placement that fails sends it back to PENDING, as often as it takes.
A slot is the other side of one placement: it exists from the moment that capacity is booked until
the executor's processes are known to be gone, whatever became of its request meanwhile; that is
why a slot can be FREEING without a living request, and only then.

What the tables cannot express, `invariants/all.py` checks: that request and slot move together, and
that a request which waits stands in the queue.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from finegrain.errors import IllegalTransition
from resource_manager.engine.model.entities import Request, RequestState, Slot, SlotState

STORY_LENGTH = 4_000
"""Moves kept over all entities, for the message of an `IllegalTransition`."""

STORY_SHOWN = 8
"""Moves of the entity concerned that such a message shows."""


class RequestInput(StrEnum):
    """What can happen to a request."""

    PLACE = "PLACE"  # capacity was booked for it
    CONFIRM = "CONFIRM"  # its executor carved the slot
    REQUEUE = "REQUEUE"  # the placement failed or the slot was lost; back to its old place in line
    RECLAIM = (
        "RECLAIM"  # a lost executor came back with the slot before the request was placed anew
    )
    CANCEL = "CANCEL"  # taken back before it was granted
    RELEASE = "RELEASE"  # the granted slot was given back
    REUSE = "REUSE"  # a slot that its job has already does its work
    DECLINE = "DECLINE"  # the executor's direct offer was not accepted
    REJECT = "REJECT"  # it may not wait any longer
    LOSE = "LOSE"  # the granted slot was lost, and no other one is wanted


class SlotInput(StrEnum):
    """What can happen to a slot."""

    CONFIRM = "CONFIRM"  # its executor carved it
    FREE = "FREE"  # it is to be taken down, or its executor is out of sight
    RECLAIM = "RECLAIM"  # its executor came back with it and it is wanted
    VANISH = "VANISH"  # it is known not to exist (any more); capacity returns


_R = RequestState
REQUEST_MOVES: dict[tuple[RequestState, RequestInput], RequestState] = {
    (_R.PENDING, RequestInput.PLACE): _R.ALLOCATING,
    (_R.PENDING, RequestInput.CANCEL): _R.CANCELLED,
    (_R.PENDING, RequestInput.RECLAIM): _R.GRANTED,
    (_R.PENDING, RequestInput.REUSE): _R.RELEASED,
    (_R.PENDING, RequestInput.REJECT): _R.REJECTED,
    (_R.ALLOCATING, RequestInput.CONFIRM): _R.GRANTED,
    (_R.ALLOCATING, RequestInput.REQUEUE): _R.PENDING,
    (_R.ALLOCATING, RequestInput.CANCEL): _R.CANCELLED,
    (_R.ALLOCATING, RequestInput.DECLINE): _R.RELEASED,
    (_R.GRANTED, RequestInput.REQUEUE): _R.PENDING,
    (_R.GRANTED, RequestInput.RELEASE): _R.RELEASED,
    (_R.GRANTED, RequestInput.DECLINE): _R.RELEASED,
    (_R.GRANTED, RequestInput.LOSE): _R.LOST,
}

SLOT_MOVES: dict[tuple[SlotState, SlotInput], SlotState | None] = {
    (SlotState.PENDING, SlotInput.CONFIRM): SlotState.ALLOCATED,
    (SlotState.PENDING, SlotInput.FREE): SlotState.FREEING,
    (SlotState.PENDING, SlotInput.VANISH): None,
    (SlotState.ALLOCATED, SlotInput.FREE): SlotState.FREEING,
    (SlotState.ALLOCATED, SlotInput.VANISH): None,
    (SlotState.FREEING, SlotInput.RECLAIM): SlotState.ALLOCATED,
    (SlotState.FREEING, SlotInput.VANISH): None,
}
"""None: the slot exists no longer."""


class Story:
    """The latest moves of all entities, so that an illegal one can be understood."""

    def __init__(self) -> None:
        self._moves: deque[tuple[str, str, str, str]] = deque(maxlen=STORY_LENGTH)

    def of(self, entity: str) -> list[str]:
        """The latest moves of one entity, oldest first, as "PENDING -PLACE-> ALLOCATING"."""
        moves = [
            f"{before} -{what}-> {after}"
            for name, before, what, after in self._moves
            if name == entity
        ]
        return moves[-STORY_SHOWN:]

    def move_request(self, request: Request, what: RequestInput) -> None:
        """Moves a request.

        Raises:
            IllegalTransition: the table does not list the move.
        """
        entity = request.spec.allocation_id
        before = request.state
        after = REQUEST_MOVES.get((before, what))
        if after is None:
            raise self._illegal(f"request {entity}", entity, before, what)
        self._moves.append((entity, before, what, after))
        request.state = after

    def move_slot(self, slot: Slot, what: SlotInput) -> None:
        """Moves a slot. One that vanishes keeps its last state; the caller strikes it from the
        books.

        Raises:
            IllegalTransition: the table does not list the move.
        """
        entity = f"{slot.allocation_id}/{slot.generation}"
        before = slot.state
        if (before, what) not in SLOT_MOVES:
            raise self._illegal(f"slot {entity} on {slot.executor_id}", entity, before, what)
        after = SLOT_MOVES[before, what]
        self._moves.append((entity, before, what, after or "gone"))
        if after is not None:
            slot.state = after

    def _illegal(self, title: str, entity: str, before: str, what: str) -> IllegalTransition:
        story = "; ".join(self.of(entity)) or "no moves on record"
        return IllegalTransition(
            f"{title} is {before}, which does not allow {what}. Recent moves: {story}",
            details={"entity": entity, "state": before, "input": what},
        )

"""Keeps all slots of all hosts."""

from __future__ import annotations

from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Request, Slot, SlotKey


class Slots(dict[SlotKey, Slot]):
    """Slots by allocation id and generation.

    Attributes:
        superseded: slots that are being freed although their request is live, by allocation id. The
            request waits for another slot, or already has another slot.
    """

    def __init__(self) -> None:
        super().__init__()
        self.superseded: dict[str, list[Slot]] = {}

    def of(self, request: Request) -> Slot | None:
        """Returns the slot of a request in state ALLOCATING or GRANTED. The result is None in other
        states.
        """
        if request.state in (RequestState.ALLOCATING, RequestState.GRANTED):
            return self[request.spec.allocation_id, request.generation]
        return None

    def mark_superseded(self, slot: Slot) -> None:
        """Records that a slot is being freed, and that its request must get another slot."""
        self.superseded.setdefault(slot.allocation_id, []).append(slot)

    def unmark_superseded(self, slot: Slot) -> bool:
        """Records that a slot was deleted, or serves its request again.

        Returns:
            True if the slot was marked as superseded.
        """
        slots = self.superseded.get(slot.allocation_id, [])
        if slot not in slots:
            return False
        slots.remove(slot)
        if not slots:
            del self.superseded[slot.allocation_id]
        return True

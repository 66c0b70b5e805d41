"""All slots, on whichever host they are."""

from __future__ import annotations

from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Request, Slot, SlotKey


class Slots(dict[SlotKey, Slot]):
    """Slots by allocation id and generation.

    Attributes:
        superseded: slots that are being taken down, by the request that lives on without them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.superseded: dict[str, list[Slot]] = {}

    def of(self, request: Request) -> Slot | None:
        """The slot of a request that is allocating or granted."""
        if request.state in (RequestState.ALLOCATING, RequestState.GRANTED):
            return self[request.spec.allocation_id, request.generation]
        return None

    def mark_superseded(self, slot: Slot) -> None:
        """A slot is being taken down; its request lives on, and is to have another one."""
        self.superseded.setdefault(slot.allocation_id, []).append(slot)

    def unmark_superseded(self, slot: Slot) -> bool:
        """A slot that may have been left behind is gone, or its request's again; True: it had been
        left behind.
        """
        slots = self.superseded.get(slot.allocation_id, [])
        if slot not in slots:
            return False
        slots.remove(slot)
        if not slots:
            del self.superseded[slot.allocation_id]
        return True

"""All slots, on whichever host they are."""

from __future__ import annotations

from finegrain.values.states import RequestState
from resource_manager.engine.model.entities import Request, Slot, SlotKey


class Slots(dict[SlotKey, Slot]):
    """Slots by allocation id and generation.

    Attributes:
        left_behind: slots that are being taken down, by the request that lives on without them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left_behind: dict[str, list[Slot]] = {}

    def of(self, request: Request) -> Slot | None:
        """The slot of a request that is allocating or granted."""
        if request.state in (RequestState.ALLOCATING, RequestState.GRANTED):
            return self[request.spec.allocation_id, request.generation]
        return None

    def leave_behind(self, slot: Slot) -> None:
        """A slot is being taken down; its request lives on, and is to have another one."""
        self.left_behind.setdefault(slot.allocation_id, []).append(slot)

    def no_longer_behind(self, slot: Slot) -> bool:
        """A slot that may have been left behind is gone, or its request's again; True: it had been
        left behind.
        """
        slots = self.left_behind.get(slot.allocation_id, [])
        if slot not in slots:
            return False
        slots.remove(slot)
        if not slots:
            del self.left_behind[slot.allocation_id]
        return True

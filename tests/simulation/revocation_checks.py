"""Checks that only revocable slots are revoked, and that capacity is not promised twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finegrain.resources import total_of
from finegrain.values.states import ExecutorState, RequestState, SlotState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.effects import Effect, PublishClusterEvent
from resource_manager.engine.model.entities import Request, RequestSpec, Slot
from resource_manager.engine.state import State


class RevocationChecks:
    """Counts revoked and spared slots."""

    def __init__(self) -> None:
        self.revoked = self.spared = 0

    def decided(self, state: State, effects: Iterable[Effect]) -> Iterator[str]:
        """Checks a batch; yields problems."""
        events = [each.event for each in effects if isinstance(each, PublishClusterEvent)]
        for event in events:
            if event.kind != "slot_revoked":
                continue
            self.revoked += 1
            request = state.requests.get(event.allocation_id)
            if request is not None and not request.spec.revocable:
                yield f"{event.allocation_id} was revoked, but is not revocable"
            # Its place in the queue may have been served again in the same batch.
            if request is not None and request.state is RequestState.GRANTED:
                self.spared += 1
        if self.revoked:
            for host in state.hosts.values():
                yield from _ordered_twice(host)


def only_by_revocation(state: State, request: Request, waiting: RequestSpec) -> bool:
    """Returns whether slots were revoked for a placed request, and a waiting request must not
    revoke slots. Then the placed request can be served before the waiting one.
    """
    return waiting.revocable and any(
        slot.revoked_for == request.allocation_id for slot in state.slots.values()
    )


def _ordered_twice(host: Host) -> Iterator[str]:
    """Yields hosts whose executor was ordered more slots than it has room for."""
    if host.executor.state is not ExecutorState.ACTIVE or host.shrunk:
        return
    ordered = [slot for key, slot in host.slots.items() if key not in host.to_allocate]
    booked = total_of(_size_of(host, slot) for slot in ordered)
    for name, amount in booked.items():
        if amount > host.total.get(name, 0):
            revoked = [slot.allocation_id for slot in ordered if slot.revoked_for]
            if revoked:
                yield (
                    f"{host.host_id} has {host.total.get(name, 0)} of {name}, and was ordered"
                    f" {amount}; {revoked} are being revoked"
                )


def _size_of(host: Host, slot: Slot) -> dict[str, int]:
    """Returns what a slot really takes: its capacity is possibly booked for another request, and an
    order to resize it is possibly not sent yet.
    """
    is_revoked = slot.state is SlotState.FREEING and slot.revoked_for
    if is_revoked or (slot.allocation_id, slot.generation) in host.to_resize:
        booked = host.booking_of(slot.profile, best_effort=slot.best_effort)
        return host.without_vanished(booked, slot.assignment)
    return dict(slot.booked)

"""Tests which states a request and its slots have after a restart: they are not stored twice."""

from __future__ import annotations

import pytest

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.effects import Snapshot
from resource_manager.engine.model.entities import (
    Executor,
    Instant,
    Job,
    Registration,
    Request,
    RequestSpec,
    Slot,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State

SMALL = ResourceProfile(100, 64 * MIB)
R, S = RequestState, SlotState


def restored(stored: tuple[RequestState, int], slots: dict[int, SlotState]) -> State:
    """Returns a state with one stored request (state, generation) and its slots."""
    registration = Registration("host-a", "i", "127.0.0.1:1", {"cpu_milli": 4000}, {}, SMALL)
    spec = RequestSpec("r", SMALL)
    ended = None if stored[0] in (R.PENDING, R.ALLOCATING, R.GRANTED) else 5
    request = Request(spec, "j", 2, 1, stored[0], "WHY", "because", stored[1], ended)
    snapshot = Snapshot(
        rm_epoch=2,
        jobs=[Job("j", "j", "default", None, "s", "r", 1, 1, specified=True)],
        requests=[request],
        slots=[
            Slot("r", number, "j", "host-a", SMALL, 100, 0, state=state)
            for number, state in slots.items()
        ],
        executors=[Executor(registration, 1)],
        counters={"arrival_number": 2},
    )
    state = restore(snapshot, EngineSettings(), Instant(1, 1))
    assert check_invariants(state) == []
    return state


@pytest.mark.parametrize(
    ("stored", "slots", "state", "generation"),
    [
        # The request was placed after it was stored, for the first time or again; its slot was
        # carved or not.
        ((R.PENDING, 0), {1: S.PENDING}, R.ALLOCATING, 1),
        ((R.PENDING, 0), {1: S.ALLOCATED}, R.GRANTED, 1),
        ((R.PENDING, 3), {5: S.ALLOCATED}, R.GRANTED, 5),
        # Stored together with its placement.
        ((R.ALLOCATING, 1), {1: S.PENDING}, R.ALLOCATING, 1),
        ((R.ALLOCATING, 1), {1: S.ALLOCATED}, R.GRANTED, 1),
        ((R.GRANTED, 2), {2: S.ALLOCATED}, R.GRANTED, 2),
        # Two slots: the older one is being freed.
        ((R.PENDING, 1), {1: S.ALLOCATED, 2: S.PENDING}, R.ALLOCATING, 2),
    ],
)
def test_a_request_stands_where_its_newest_slot_says(
    stored: tuple[RequestState, int],
    slots: dict[int, SlotState],
    state: RequestState,
    generation: int,
) -> None:
    books = restored(stored, slots)
    request = books.requests["r"]
    assert (request.state, request.generation) == (state, generation)
    assert (request.reason, request.message) == ("", "")
    assert request not in books.queue
    for number, slot in ((key[1], slot) for key, slot in books.slots.items()):
        assert slot.state is (slots[number] if number == generation else S.FREEING)


@pytest.mark.parametrize("stored_slot", [S.PENDING, S.ALLOCATED, S.FREEING])
@pytest.mark.parametrize(
    "stored", [(R.PENDING, 4), (R.RELEASED, 4), (R.CANCELLED, 4), (R.LOST, 4), (R.PENDING, 9)]
)
def test_a_slot_that_no_living_request_has_is_being_taken_down(
    stored: tuple[RequestState, int], stored_slot: SlotState
) -> None:
    books = restored(stored, {4: stored_slot})
    assert books.slots["r", 4].state is S.FREEING
    request = books.requests["r"]
    assert (request.state, request.generation, request.reason) == (*stored, "WHY")
    assert (request in books.queue) == (stored[0] is R.PENDING)

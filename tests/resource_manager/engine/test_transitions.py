"""Every state against every input: what the tables list happens, everything else is refused."""

from __future__ import annotations

import pytest

from finegrain.errors import IllegalTransition
from finegrain.resources import ResourceProfile
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Request,
    RequestSpec,
    RequestState,
    Slot,
    SlotState,
)
from resource_manager.engine.model.transitions import (
    REQUEST_MOVES,
    SLOT_MOVES,
    RequestInput,
    SlotInput,
    Story,
)

REQUEST_TABLE = """
           PLACE      CONFIRM REQUEUE RECLAIM CANCEL    RELEASE  REUSE    DECLINE  REJECT   LOSE
PENDING    ALLOCATING -       -       GRANTED CANCELLED -        RELEASED -        REJECTED -
ALLOCATING -          GRANTED PENDING -       CANCELLED -        -        RELEASED -        -
GRANTED    -          -       PENDING -       -         RELEASED -        RELEASED -        LOST
CANCELLED  -          -       -       -       -         -        -        -        -        -
REJECTED   -          -       -       -       -         -        -        -        -        -
RELEASED   -          -       -       -       -         -        -        -        -        -
LOST       -          -       -       -       -         -        -        -        -        -
"""

SLOT_TABLE = """
           CONFIRM    FREE     RECLAIM    VANISH
PENDING    ALLOCATED  FREEING  -          gone
ALLOCATED  -          FREEING  -          gone
FREEING    -          -        ALLOCATED  gone
"""


def cells(table: str) -> list[tuple[str, str, str]]:
    header, *rows = (line.split() for line in table.strip().splitlines())
    return [
        (state, what, after)
        for state, *afters in rows
        for what, after in zip(header, afters, strict=True)
    ]


def request_in(state: str) -> Request:
    return Request(RequestSpec("r1", None), "job", 1, 0, state=RequestState(state))


def slot_in(state: str) -> Slot:
    return Slot("r1", 2, "job", "host-a", ResourceProfile(), 0, 0, state=SlotState(state))


@pytest.mark.parametrize(("state", "what", "after"), cells(REQUEST_TABLE))
def test_request_moves(state: str, what: str, after: str) -> None:
    request = request_in(state)
    if after == "-":
        with pytest.raises(IllegalTransition, match=f"request r1 is {state}"):
            Story().move_request(request, RequestInput(what))
        assert request.state == state
    else:
        Story().move_request(request, RequestInput(what))
        assert request.state == after


@pytest.mark.parametrize(("state", "what", "after"), cells(SLOT_TABLE))
def test_slot_moves(state: str, what: str, after: str) -> None:
    slot = slot_in(state)
    if after == "-":
        with pytest.raises(IllegalTransition, match=f"slot r1/2 on host-a is {state}"):
            Story().move_slot(slot, SlotInput(what))
        assert slot.state == state
    else:
        Story().move_slot(slot, SlotInput(what))
        assert slot.state == (state if after == "gone" else after)


def test_the_tables_here_name_every_state_and_every_input() -> None:
    assert {cell[:2] for cell in cells(REQUEST_TABLE)} == {
        (state, what) for state in RequestState for what in RequestInput
    }
    assert {cell[:2] for cell in cells(SLOT_TABLE)} == {
        (state, what) for state in SlotState for what in SlotInput
    }
    assert len(REQUEST_MOVES) == sum(cell[2] != "-" for cell in cells(REQUEST_TABLE))
    assert len(SLOT_MOVES) == sum(cell[2] != "-" for cell in cells(SLOT_TABLE))


def test_ended_requests_stay_ended() -> None:
    assert not {state for state, _ in REQUEST_MOVES} & ENDED_REQUEST_STATES


def test_an_illegal_move_tells_the_recent_story_of_its_entity() -> None:
    story = Story()
    request = request_in("PENDING")
    other = Request(RequestSpec("r2", None), "job", 2, 0)
    story.move_request(request, RequestInput.PLACE)
    story.move_request(other, RequestInput.CANCEL)
    story.move_request(request, RequestInput.CONFIRM)
    with pytest.raises(IllegalTransition) as caught:
        story.move_request(request, RequestInput.PLACE)
    assert caught.value.message == (
        "request r1 is GRANTED, which does not allow PLACE. Recent moves:"
        " PENDING -PLACE-> ALLOCATING; ALLOCATING -CONFIRM-> GRANTED"
    )

"""Tests every state table, state and input.

Listed inputs have the listed effect; all others are refused and change nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import IllegalTransition
from finegrain.resources import ResourceProfile
from finegrain.values.states import ExecutorState, RequestState, SlotState
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Executor,
    Gang,
    GangSpec,
    GangState,
    Job,
    JobState,
    Registration,
    Request,
    RequestSpec,
    Resize,
    Slot,
)
from resource_manager.engine.model.state_tables import (
    DRAIN,
    GANG,
    JOB,
    REACH,
    REGISTRATION,
    REQUEST,
    RESIZE,
    SLOT,
    TABLES,
    DrainInput,
    DrainState,
    GangInput,
    JobInput,
    Reachability,
    ReachInput,
    RegistrationInput,
    RequestInput,
    ResizeInput,
    SlotInput,
    StateTable,
)
from resource_manager.engine.model.transitions import Transitions, resize_state
from tests.support.components import REPOSITORY

# The tables are written here a second time, so that an error in one of the two copies is found.
BY_HAND = {
    "request": """
           PLACE      CONFIRM REQUEUE RECLAIM CANCEL    RELEASE  REUSE    DECLINE  REJECT   LOSE
PENDING    ALLOCATING -       -       GRANTED CANCELLED -        RELEASED -        REJECTED -
ALLOCATING -          GRANTED PENDING -       CANCELLED -        -        RELEASED -        -
GRANTED    -          -       PENDING -       -         RELEASED -        RELEASED -        LOST
CANCELLED  -          -       -       -       -         -        -        -        -        -
REJECTED   -          -       -       -       -         -        -        -        -        -
RELEASED   -          -       -       -       -         -        -        -        -        -
LOST       -          -       -       -       -         -        -        -        -        -
""",
    "slot": """
           CONFIRM    FREE     RECLAIM    VANISH
PENDING    ALLOCATED  FREEING  -          gone
ALLOCATED  -          FREEING  -          gone
FREEING    -          -        ALLOCATED  gone
""",
    "resize": """
                    ASK                 WITHDRAW ORDER   CONFIRM REFUSE  RETRY
NONE                WAITING             -        -       -       -       WAITING
WAITING             -                   NONE     ORDERED -       -       -
ORDERED             ORDERED_AND_WAITING -        -       NONE    NONE    -
ORDERED_AND_WAITING -                   ORDERED  -       WAITING WAITING -
""",
    "gang": """
           PLACE      GRANT   BREAK   END
WAITING    ALLOCATING -       -       ENDED
ALLOCATING -          GRANTED WAITING ENDED
GRANTED    -          -       WAITING -
ENDED      -          -       -       -
""",
    "job": """
       END
ACTIVE ENDED
ENDED  -
""",
    "registration of an executor": """
            REGISTER DISTRUST    FALL_SILENT
UNCONFIRMED ACTIVE   -           LOST
ACTIVE      ACTIVE   UNCONFIRMED LOST
LOST        ACTIVE   -           -
""",
    "drain of an executor": """
         DRAIN    UNDRAIN
OPEN     DRAINING -
DRAINING DRAINING OPEN
""",
    "reachability of an executor": """
            FAIL        ANSWER
REACHABLE   UNREACHABLE -
UNREACHABLE -           REACHABLE
""",
}

SIZE = Resize(1, ResourceProfile(), 0)


@dataclass
class Machine:
    """One entity, with functions that read its state and apply an input."""

    table: StateTable[Any, Any]
    read: Callable[[], str]
    move: Callable[[str], None]
    put: Callable[[str], None]


def machines(story: Transitions) -> dict[str, Machine]:
    """Returns a new entity of each kind."""
    request = Request(RequestSpec("r1", None), "job", 1, 0)
    slot = Slot("r1", 2, "job", "host-a", ResourceProfile(), 0, 0)
    sized = Slot("r2", 1, "job", "host-a", ResourceProfile(), 0, 0)
    gang = Gang(GangSpec("g"), "job", 1, 0)
    job = Job("job", "", "", None, "", "", 1, 0)
    registration = Registration("host-a", "i", "h:1", {}, {}, ResourceProfile())
    executor = Executor(registration, 1)
    drained = Executor(registration, 1)
    reach = {"unreachable": False}

    def put_size(state: str) -> None:
        sized.wanted = SIZE if state in {"WAITING", "ORDERED_AND_WAITING"} else None
        sized.ordered = SIZE if state.startswith("ORDERED") else None

    def move_size(what: str) -> None:
        after = RESIZE.moves.get((resize_state(sized), ResizeInput(what)))
        with story.moving_resize(sized, ResizeInput(what)):
            put_size(after or "")

    def move_reach(what: str) -> None:
        reach["unreachable"] = story.move_reach(
            "host-a", unreachable=reach["unreachable"], what=ReachInput(what)
        )

    def put(thing: Any, states: Any) -> Callable[[str], None]:
        return lambda state: setattr(thing, "state", states(state))

    def put_reach(state: str) -> None:
        reach["unreachable"] = state == Reachability.UNREACHABLE

    def put_drain(state: str) -> None:
        drained.draining = state == DrainState.DRAINING

    return {
        machine.table.title: machine
        for machine in (
            Machine(
                REQUEST,
                lambda: request.state,
                lambda what: story.move_request(request, RequestInput(what)),
                put(request, RequestState),
            ),
            Machine(
                SLOT,
                lambda: slot.state,
                lambda what: story.move_slot(slot, SlotInput(what)),
                put(slot, SlotState),
            ),
            Machine(RESIZE, lambda: resize_state(sized), move_size, put_size),
            Machine(
                GANG,
                lambda: gang.state,
                lambda what: story.move_gang(gang, GangInput(what)),
                put(gang, GangState),
            ),
            Machine(
                JOB,
                lambda: job.state,
                lambda what: story.move_job(job, JobInput(what)),
                put(job, JobState),
            ),
            Machine(
                REGISTRATION,
                lambda: executor.state,
                lambda what: story.move_executor(executor, RegistrationInput(what)),
                put(executor, ExecutorState),
            ),
            Machine(
                DRAIN,
                lambda: "DRAINING" if drained.draining else "OPEN",
                lambda what: story.move_drain(drained, DrainInput(what)),
                put_drain,
            ),
            Machine(
                REACH,
                lambda: "UNREACHABLE" if reach["unreachable"] else "REACHABLE",
                move_reach,
                put_reach,
            ),
        )
    }


def cells() -> list[tuple[str, str, str, str]]:
    """Returns (machine, state, input, state after) of all tables by hand."""
    found = []
    for title, table in BY_HAND.items():
        header, *rows = (line.split() for line in table.strip().splitlines())
        for state, *afters in rows:
            found += [
                (title, state, what, after) for what, after in zip(header, afters, strict=True)
            ]
    return found


@pytest.mark.parametrize(("title", "state", "what", "after"), cells())
def test_every_input_in_every_state(title: str, state: str, what: str, after: str) -> None:
    machine = machines(Transitions())[title]
    machine.put(state)
    if after == "-":
        with pytest.raises(IllegalTransition):
            machine.move(what)
        assert machine.read() == state
        return
    machine.move(what)
    assert machine.read() == (state if after == "gone" else after)


def test_the_tables_by_hand_name_every_machine_state_and_input() -> None:
    assert set(BY_HAND) == {table.title for table in TABLES} == set(machines(Transitions()))
    assert {cell[:3] for cell in cells()} == {
        (table.title, state, what)
        for table in TABLES
        for state in table.states
        for what in table.inputs
    }
    for table in TABLES:
        listed = sum(cell[0] == table.title and cell[3] != "-" for cell in cells())
        assert len(table.moves) == listed


@given(st.lists(st.tuples(st.sampled_from(sorted(BY_HAND)), st.integers(0, 9)), max_size=60))
def test_whatever_happens_in_whatever_order(happenings: list[tuple[str, int]]) -> None:
    """From its first state, an entity reaches only states that the tables allow."""
    story = Transitions()
    all_machines = machines(story)
    gone = set()
    for title, number in happenings:
        machine = all_machines[title]
        inputs = list(machine.table.inputs.__members__.values())
        what, before = inputs[number % len(inputs)], machine.read()
        if title in gone:
            continue
        move = (machine.table.states(before), what)
        if move not in machine.table.moves:
            with pytest.raises(IllegalTransition):
                machine.move(what)
            assert machine.read() == before
            continue
        machine.move(what)
        after = machine.table.moves[move]
        assert machine.read() == (before if after is None else after)
        if after is None:
            gone.add(title)


def test_new_things_stand_where_their_tables_begin() -> None:
    for machine in machines(Transitions()).values():
        assert machine.read() == machine.table.initial


def test_ended_requests_stay_ended() -> None:
    assert not {state for state, _ in REQUEST.moves} & ENDED_REQUEST_STATES


def test_rows_are_restored_only_where_their_tables_allow() -> None:
    registration = Registration("host-a", "i", "h:1", {}, {}, ResourceProfile())
    executor = Executor(registration, 1)
    Transitions().restore_executor(executor, ExecutorState.LOST)
    assert executor.state is ExecutorState.LOST
    with pytest.raises(IllegalTransition, match="ACTIVE, which does not allow RESTORE"):
        Transitions().restore_executor(executor, ExecutorState.ACTIVE)


def test_a_change_of_size_has_to_come_to_what_its_table_says() -> None:
    slot = Slot("r1", 2, "job", "host-a", ResourceProfile(), 0, 0)
    forgetful = Transitions().moving_resize(slot, ResizeInput.ASK)
    with pytest.raises(IllegalTransition, match="resize r1/2 is NONE"), forgetful:
        pass  # and nothing waits


def test_lost_follows_from_the_state_that_is_stored() -> None:
    registration = Registration("host-a", "i", "h:1", {}, {}, ResourceProfile())
    executor = Executor(registration, 1)
    Transitions().move_executor(executor, RegistrationInput.FALL_SILENT)
    assert executor.lost
    Transitions().move_executor(executor, RegistrationInput.REGISTER)
    assert not executor.lost


def test_nothing_else_in_the_engine_sets_a_state() -> None:
    """`provisions.py` has a separate table. Resizes are checked where they change."""
    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in sorted((REPOSITORY / "resource_manager/engine").rglob("*.py"))
        if path.name not in {"transitions.py", "provisions.py"}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute) and target.attr in {"state", "draining", "lost"}
    ]
    assert [each for each in found if "self.state = state" not in each] == []


def test_an_illegal_move_tells_the_recent_story_of_its_entity() -> None:
    story = Transitions()
    request = Request(RequestSpec("r1", None), "job", 1, 0)
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


def test_the_recent_history_of_everything_that_moves_is_kept_under_its_own_name() -> None:
    history = Transitions()
    executor = Executor(Registration("host-a", "i", "h:1", {}, {}, ResourceProfile()), 1)
    slot = Slot("r1", 2, "job", "host-a", ResourceProfile(), 0, 0)
    with history.moving_resize(slot, ResizeInput.ASK):
        slot.wanted = SIZE
    history.move_slot(slot, SlotInput.CONFIRM)
    assert history.of("r1/2") == ["NONE -ASK-> WAITING", "PENDING -CONFIRM-> ALLOCATED"]
    history.move_gang(Gang(GangSpec("g"), "job", 1, 0), GangInput.PLACE)
    assert history.of("g") == ["WAITING -PLACE-> ALLOCATING"]
    history.move_job(Job("job", "job", "default", None, "s", "r", 1, 0), JobInput.END)
    assert history.of("job") == ["ACTIVE -END-> ENDED"]
    history.move_executor(executor, RegistrationInput.REGISTER)
    history.move_drain(executor, DrainInput.DRAIN)
    history.move_reach("host-a", unreachable=False, what=ReachInput.FAIL)
    assert history.of("host-a") == [
        "UNCONFIRMED -REGISTER-> ACTIVE",
        "OPEN -DRAIN-> DRAINING",
        "REACHABLE -FAIL-> UNREACHABLE",
    ]

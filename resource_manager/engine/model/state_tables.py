"""The states of all entities, and what moves them: one table for each state machine. A move that is
not listed is a bug and raises `IllegalTransition`.

- A request is pending (PENDING), is placed (ALLOCATING), is confirmed by its executor (GRANTED) and
  ends. If a placement fails, it goes back to PENDING, any number of times.
- A slot is one placement of a request. It exists from when capacity is booked until the executor's
  processes are known to be gone, whatever happens to the request meanwhile. So a slot may be
  without a request; then it is FREEING.
- A resize of a slot waits, is ordered from the executor, and is confirmed or refused. While one is
  ordered, the next one may wait.
- A gang moves as a whole until all its slots are granted. Then its members move independently,
  except that they go back to the queue together.
- An executor is three machines: whether it has registered and reports, whether it is drained, and
  whether it can be dialled.

Every table also lists the states that a row may be restored in. `invariants/all.py` checks what
tables cannot express: that request and slot move together, and that every pending request is in the
queue. Reservations have no states. Those of requested executors are in `lifecycle/provisions.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from finegrain.values.states import ExecutorState, RequestState, SlotState
from resource_manager.engine.model.entities import GangState, JobState

StateT = TypeVar("StateT", bound=StrEnum)
InputT = TypeVar("InputT", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class StateTable(Generic[StateT, InputT]):
    """One state machine.

    Attributes:
        title: its name, for people.
        states: all states.
        inputs: everything that can happen.
        initial: the state of a new entity.
        moves: next state by state and input; None: the entity is deleted.
        restored: states that an entity may be restored in.
    """

    title: str
    states: type[StateT]
    inputs: type[InputT]
    initial: StateT
    moves: Mapping[tuple[StateT, InputT], StateT | None]
    restored: frozenset[StateT]


class RequestInput(StrEnum):
    """What can happen to a request."""

    PLACE = "PLACE"  # capacity was booked for it
    CONFIRM = "CONFIRM"  # its executor carved the slot
    # the placement failed or the slot was lost: back to its old place in the queue
    REQUEUE = "REQUEUE"
    # a lost executor came back with the slot before the request was placed again
    RECLAIM = "RECLAIM"
    CANCEL = "CANCEL"  # withdrawn before it was granted
    RELEASE = "RELEASE"  # the granted slot was given back
    REUSE = "REUSE"  # a slot that its job has already does its work
    DECLINE = "DECLINE"  # the executor's direct offer was not accepted
    REJECT = "REJECT"  # it must not wait any longer
    LOSE = "LOSE"  # the granted slot was lost, and no other one is wanted


_R = RequestState
REQUEST = StateTable(
    "request",
    RequestState,
    RequestInput,
    _R.PENDING,
    {
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
    },
    frozenset(RequestState),
)


class SlotInput(StrEnum):
    """What can happen to a slot."""

    CONFIRM = "CONFIRM"  # its executor carved it
    FREE = "FREE"  # it must be taken down, or its executor is lost
    RECLAIM = "RECLAIM"  # its executor came back with it, and it is needed
    VANISH = "VANISH"  # it is known not to exist (any more); its capacity is free


SLOT = StateTable(
    "slot",
    SlotState,
    SlotInput,
    SlotState.PENDING,
    {
        (SlotState.PENDING, SlotInput.CONFIRM): SlotState.ALLOCATED,
        (SlotState.PENDING, SlotInput.FREE): SlotState.FREEING,
        (SlotState.PENDING, SlotInput.VANISH): None,
        (SlotState.ALLOCATED, SlotInput.FREE): SlotState.FREEING,
        (SlotState.ALLOCATED, SlotInput.VANISH): None,
        (SlotState.FREEING, SlotInput.RECLAIM): SlotState.ALLOCATED,
        (SlotState.FREEING, SlotInput.VANISH): None,
    },
    frozenset(SlotState),
)


class ResizeState(StrEnum):
    """The state of a slot's resizes; it follows from `Slot.wanted` and `Slot.ordered`."""

    NONE = "NONE"
    WAITING = "WAITING"  # queued, or in a back-off after a refusal
    ORDERED = "ORDERED"  # sent or to be sent to the executor; outcome unknown
    ORDERED_AND_WAITING = "ORDERED_AND_WAITING"  # the same, and a later one waits


class ResizeInput(StrEnum):
    """What can happen to the resizes of a slot."""

    ASK = "ASK"  # another size is requested
    WITHDRAW = "WITHDRAW"  # the waiting one is withdrawn or replaced
    ORDER = "ORDER"  # it needs no more room, or its growth was booked
    CONFIRM = "CONFIRM"  # the executor enforces the ordered size, or a later one
    REFUSE = "REFUSE"  # the executor did not carry it out
    RETRY = "RETRY"  # a refused one goes back to its old place in the queue


_Z = ResizeState
RESIZE = StateTable(
    "resize",
    ResizeState,
    ResizeInput,
    _Z.NONE,
    {
        (_Z.NONE, ResizeInput.ASK): _Z.WAITING,
        (_Z.NONE, ResizeInput.RETRY): _Z.WAITING,
        (_Z.WAITING, ResizeInput.WITHDRAW): _Z.NONE,
        (_Z.WAITING, ResizeInput.ORDER): _Z.ORDERED,
        (_Z.ORDERED, ResizeInput.ASK): _Z.ORDERED_AND_WAITING,
        (_Z.ORDERED, ResizeInput.CONFIRM): _Z.NONE,
        (_Z.ORDERED, ResizeInput.REFUSE): _Z.NONE,
        (_Z.ORDERED_AND_WAITING, ResizeInput.WITHDRAW): _Z.ORDERED,
        (_Z.ORDERED_AND_WAITING, ResizeInput.CONFIRM): _Z.WAITING,
        (_Z.ORDERED_AND_WAITING, ResizeInput.REFUSE): _Z.WAITING,
    },
    frozenset(ResizeState),
)


class GangInput(StrEnum):
    """What can happen to a gang."""

    PLACE = "PLACE"  # capacity was booked for all its members that have not ended
    GRANT = "GRANT"  # the last of their slots was carved
    BREAK = "BREAK"  # a slot was lost or refused: all members go back to their place in the queue
    END = "END"  # its members are cancelled or rejected


_G = GangState
GANG = StateTable(
    "gang",
    GangState,
    GangInput,
    _G.WAITING,
    {
        (_G.WAITING, GangInput.PLACE): _G.ALLOCATING,
        (_G.WAITING, GangInput.END): _G.ENDED,
        (_G.ALLOCATING, GangInput.GRANT): _G.GRANTED,
        (_G.ALLOCATING, GangInput.BREAK): _G.WAITING,
        (_G.ALLOCATING, GangInput.END): _G.ENDED,
        (_G.GRANTED, GangInput.BREAK): _G.WAITING,
    },
    frozenset(GangState),
)


class JobInput(StrEnum):
    """What can happen to a job."""

    END = "END"  # its owner or an operator ends it, or its lease has lapsed


JOB = StateTable(
    "job",
    JobState,
    JobInput,
    JobState.ACTIVE,
    {(JobState.ACTIVE, JobInput.END): JobState.ENDED},
    frozenset(JobState),
)


class RegistrationInput(StrEnum):
    """What can happen to an executor's registration."""

    REGISTER = "REGISTER"  # it reports what it has and what it runs
    DISTRUST = "DISTRUST"  # commands do not arrive, or are refused: it must register again
    FALL_SILENT = "FALL_SILENT"  # nothing was received from it for too long, or it has ended


_E = ExecutorState
REGISTRATION = StateTable(
    "registration of an executor",
    ExecutorState,
    RegistrationInput,
    _E.UNCONFIRMED,
    {
        (_E.UNCONFIRMED, RegistrationInput.REGISTER): _E.ACTIVE,
        (_E.UNCONFIRMED, RegistrationInput.FALL_SILENT): _E.LOST,
        (_E.ACTIVE, RegistrationInput.REGISTER): _E.ACTIVE,
        (_E.ACTIVE, RegistrationInput.DISTRUST): _E.UNCONFIRMED,
        (_E.ACTIVE, RegistrationInput.FALL_SILENT): _E.LOST,
        (_E.LOST, RegistrationInput.REGISTER): _E.ACTIVE,
    },
    frozenset({_E.UNCONFIRMED, _E.LOST}),
)


class DrainState(StrEnum):
    """Whether an executor takes new slots, as set by operators and by scaling."""

    OPEN = "OPEN"
    DRAINING = "DRAINING"


class DrainInput(StrEnum):
    """What operators and scaling set."""

    DRAIN = "DRAIN"  # also again, with another reason or deadline
    UNDRAIN = "UNDRAIN"


DRAIN = StateTable(
    "drain of an executor",
    DrainState,
    DrainInput,
    DrainState.OPEN,
    {
        (DrainState.OPEN, DrainInput.DRAIN): DrainState.DRAINING,
        (DrainState.DRAINING, DrainInput.DRAIN): DrainState.DRAINING,
        (DrainState.DRAINING, DrainInput.UNDRAIN): DrainState.OPEN,
    },
    frozenset(DrainState),
)


class Reachability(StrEnum):
    """Whether the resource manager can dial an executor."""

    REACHABLE = "REACHABLE"
    UNREACHABLE = "UNREACHABLE"


class ReachInput(StrEnum):
    """The results of calls to an executor."""

    FAIL = "FAIL"  # commands do not arrive although it reports
    ANSWER = "ANSWER"  # a probe was answered


REACH = StateTable(
    "reachability of an executor",
    Reachability,
    ReachInput,
    Reachability.REACHABLE,
    {
        (Reachability.REACHABLE, ReachInput.FAIL): Reachability.UNREACHABLE,
        (Reachability.UNREACHABLE, ReachInput.ANSWER): Reachability.REACHABLE,
    },
    frozenset({Reachability.REACHABLE}),
)

TABLES = (REQUEST, SLOT, RESIZE, GANG, JOB, REGISTRATION, DRAIN, REACH)
"""All state machines."""

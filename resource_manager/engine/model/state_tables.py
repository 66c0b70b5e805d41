"""The states and inputs of all entities: one table for each state machine. A move that is not
listed is a bug and raises `IllegalTransition`.

- A request is pending (PENDING), then placed (ALLOCATING), then confirmed by its executor
  (GRANTED), and then it ends. If the placement fails, the request becomes PENDING again.
- A slot is one placement of a request. A slot begins when its capacity is booked. A slot ends when
  its processes on the executor have certainly ended. If its request ends or loses the slot earlier,
  the slot is FREEING until its processes have ended.
- A resize of a slot first waits, is then ordered from the executor, and is then confirmed or
  refused. While one resize is ordered, the next resize can wait.
- A gang moves as a whole until all its slots are granted. After that, its members move
  independently. But members that must be placed again are queued together.
- An executor has three state machines. The first shows whether the executor has registered and
  reports, the second shows whether it is drained, and the third shows whether the resource manager
  can connect to it.

Every table also lists the states in which an entity can be restored after a restart. Tables cannot
express some rules: a request and its slot move together, and every pending request is queued.
`invariants/all.py` checks these rules. Reservations have no states. The table of provisions is in
`lifecycle/provisions.py`.
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
        title: name of the machine, for people.
        states: all states.
        inputs: all inputs.
        initial: the state of a new entity.
        moves: the next state for each pair of state and input; None: the entity is deleted.
        restored: states in which an entity can be restored after a restart.
    """

    title: str
    states: type[StateT]
    inputs: type[InputT]
    initial: StateT
    moves: Mapping[tuple[StateT, InputT], StateT | None]
    restored: frozenset[StateT]


class RequestInput(StrEnum):
    """The inputs of the state machine of requests."""

    PLACE = "PLACE"  # capacity was booked for the request
    CONFIRM = "CONFIRM"  # the executor has carved the slot
    # the placement failed or the slot was lost, so the request returns to its old place in the
    # queue
    REQUEUE = "REQUEUE"
    # a lost executor returned with the slot before the request was placed again
    RECLAIM = "RECLAIM"
    CANCEL = "CANCEL"  # the request was withdrawn before it was granted
    RELEASE = "RELEASE"  # the granted slot was given back
    REUSE = "REUSE"  # another slot of the job is reused for the work of this request
    DECLINE = "DECLINE"  # the executor's direct offer was not accepted
    REJECT = "REJECT"  # the request must not wait any longer, for example if it is infeasible
    LOSE = "LOSE"  # the granted slot was lost, and the request does not want another slot


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
    """The inputs of the state machine of slots."""

    CONFIRM = "CONFIRM"  # the executor has carved the slot
    FREE = "FREE"  # the slot must be freed, or its executor is lost
    # the lost executor returned with the slot while its request was still queued
    RECLAIM = "RECLAIM"
    VANISH = "VANISH"  # the slot does not exist on its executor, so its capacity is free


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
    """The state of a slot's resizes; it is derived from `Slot.wanted` and `Slot.ordered`."""

    NONE = "NONE"
    WAITING = "WAITING"  # the resize is queued, or in a back-off after a refusal
    ORDERED = "ORDERED"  # the executor has not confirmed or refused the ordered resize yet
    ORDERED_AND_WAITING = "ORDERED_AND_WAITING"  # a resize is ordered, and a later resize waits


class ResizeInput(StrEnum):
    """The inputs of the state machine of a slot's resizes."""

    ASK = "ASK"  # another size is requested
    WITHDRAW = "WITHDRAW"  # the waiting resize is withdrawn or replaced
    ORDER = "ORDER"  # the waiting resize needs no more capacity, or this capacity was booked
    CONFIRM = "CONFIRM"  # the executor enforces the ordered size, or a later size
    REFUSE = "REFUSE"  # the executor did not carry out the ordered resize
    RETRY = "RETRY"  # a refused resize goes back to its old place in the queue


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
    """The inputs of the state machine of gangs."""

    PLACE = "PLACE"  # capacity was booked for all members that have not ended
    GRANT = "GRANT"  # the last slot of the members was carved
    BREAK = "BREAK"  # a slot was lost or refused, so all members return to their place in the queue
    END = "END"  # the members are cancelled or rejected


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
    """The inputs of the state machine of jobs."""

    END = "END"  # the job master or an administrator ends the job, or the lease has expired


JOB = StateTable(
    "job",
    JobState,
    JobInput,
    JobState.ACTIVE,
    {(JobState.ACTIVE, JobInput.END): JobState.ENDED},
    frozenset(JobState),
)


class RegistrationInput(StrEnum):
    """The inputs of the state machine of an executor's registration."""

    REGISTER = "REGISTER"  # the executor registers, with its capacity and slots
    # commands do not arrive or are refused, so the executor must register again
    DISTRUST = "DISTRUST"
    FALL_SILENT = "FALL_SILENT"  # the executor has sent no message for too long, or has ended


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
    """Whether an executor gets new slots. Administrators and the automatic scaling change this
    state.
    """

    OPEN = "OPEN"
    DRAINING = "DRAINING"


class DrainInput(StrEnum):
    """The inputs of the state machine of drains. They come from administrators and from the
    automatic scaling.
    """

    DRAIN = "DRAIN"  # can be repeated with another reason or deadline
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
    """Whether the resource manager can connect to an executor."""

    REACHABLE = "REACHABLE"
    UNREACHABLE = "UNREACHABLE"


class ReachInput(StrEnum):
    """The results of calls to an executor."""

    FAIL = "FAIL"  # commands do not arrive, although the executor reports
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

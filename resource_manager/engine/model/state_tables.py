"""Which states the things of the books have, and what moves them: one table for each machine.
Everything not listed is a bug and raises `IllegalTransition`.

- A request waits (PENDING), is placed (ALLOCATING), is confirmed by its executor (GRANTED) and
  ends. A placement that fails sends it back to PENDING, as often as it takes.
- A slot is the other side of one placement: it exists from the moment that capacity is booked until
  the executor's processes are known to be gone, whatever became of its request meanwhile; that is
  why a slot can be FREEING without a living request, and only then.
- A change of a slot's size waits, is ordered from the executor, and is confirmed or refused. While
  one is ordered, the next one may wait.
- A gang moves as a whole until all its slots are granted; then its members go their own ways, but
  for going back into line together.
- An executor is three machines: whether it has registered and reports, whether it is being drained,
  and whether it can be dialled.

Every table says as well in which states a row may be restored. What the tables cannot express,
`invariants/all.py` checks: that request and slot move together, and that a request which waits
stands in the queue. Reservations have no states, and those of executors that were asked for stand
in `lifecycle/provisions.py`.
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
    """One machine.

    Attributes:
        title: what it is, for people.
        states: all of them.
        inputs: all that can happen.
        initial: the state of a new one.
        moves: what follows on which input in which state; None: it exists no longer.
        restored: states in which the books may be restored.
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
    REQUEUE = "REQUEUE"  # the placement failed or the slot was lost; back to its old place in line
    RECLAIM = "RECLAIM"  # a lost executor came back with the slot before it was placed again
    CANCEL = "CANCEL"  # taken back before it was granted
    RELEASE = "RELEASE"  # the granted slot was given back
    REUSE = "REUSE"  # a slot that its job has already does its work
    DECLINE = "DECLINE"  # the executor's direct offer was not accepted
    REJECT = "REJECT"  # it may not wait any longer
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
    FREE = "FREE"  # it is to be taken down, or its executor is out of sight
    RECLAIM = "RECLAIM"  # its executor came back with it and it is wanted
    VANISH = "VANISH"  # it is known not to exist (any more); capacity returns


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
    """Where changes of a slot's size stand; it follows from `Slot.wanted` and `Slot.ordered`."""

    NONE = "NONE"
    WAITING = "WAITING"  # in line, or pausing after it was refused
    ORDERED = "ORDERED"  # the executor has it or gets it; outcome unknown
    ORDERED_AND_WAITING = "ORDERED_AND_WAITING"  # likewise, and a later one waits


class ResizeInput(StrEnum):
    """What can happen to the changes of a slot's size."""

    ASK = "ASK"  # another size is asked for
    WITHDRAW = "WITHDRAW"  # the one that waits is wanted no more, or replaced
    ORDER = "ORDER"  # it takes no more room, or its growth has been booked
    CONFIRM = "CONFIRM"  # the executor enforces the ordered size, or a later one
    REFUSE = "REFUSE"  # the executor did not carry it out
    RETRY = "RETRY"  # what was refused goes back to its old place in line


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

    PLACE = "PLACE"  # capacity was booked for all its living members
    GRANT = "GRANT"  # the last of their slots was carved
    BREAK = "BREAK"  # a slot was lost or refused; all members go back to their place in line
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

    REGISTER = "REGISTER"  # it says what it has and what it runs
    DISTRUST = "DISTRUST"  # commands do not arrive, or are refused: it has to register again
    FALL_SILENT = "FALL_SILENT"  # nothing was heard of it for too long, or it has ended


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
    """Whether new slots are welcome on an executor, as operators and scaling say."""

    OPEN = "OPEN"
    DRAINING = "DRAINING"


class DrainInput(StrEnum):
    """What operators and scaling say of it."""

    DRAIN = "DRAIN"  # once more: with another reason or deadline
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
    """Whether the RM can dial an executor."""

    REACHABLE = "REACHABLE"
    UNREACHABLE = "UNREACHABLE"


class ReachInput(StrEnum):
    """What calls to an executor come to."""

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
"""All machines."""

"""Defines the scheduler's data: slots of the batch, running attempts, and actions to carry out."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from finegrain import intervals
from finegrain.intervals import IntervalSet
from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import ThreadEnd
from finegrain_client.batch.rows import Changes
from finegrain_client.batch.values import ThreadResult

SlotKey = tuple[str, int]
"""Allocation id and generation: one placement of one request."""

AttemptKey = tuple[int, int]
"""Thread and attempt."""


class Phase(Enum):
    """The next action that is possible with a slot of the batch."""

    # can run a thread: the slot was just granted, the resource manager has agreed to its reuse, or
    # its time slice has not ended
    FREE = auto()
    BUSY = auto()  # runs a thread
    # has run a thread; the resource manager must agree before the slot runs another thread
    USED = auto()
    SPENT = auto()  # can only be released
    AWAITING_REUSE = auto()  # waits for the answer whether the slot may be reused
    RELEASING = auto()  # is being released


@dataclass(slots=True)
class HeldSlot:
    """A slot of the batch."""

    allocation_id: str
    generation: int
    member: int  # index of the slot's request in the range
    executor_id: str
    phase: Phase = Phase.FREE
    run: AttemptKey | None = None
    uses: int = 0
    # when the first attempt since the grant or the last reuse started; None: no attempt has run
    slice_start_time: float | None = None  # seconds since 1970
    finished: int = 0  # threads that have finished since the grant or the last reuse
    last_finished: bool = False  # whether the last attempt finished its thread

    @property
    def key(self) -> SlotKey:
        """Allocation id and generation of the slot."""
        return self.allocation_id, self.generation

    @property
    def report(self) -> ThreadReport:
        """The threads that have run since the grant or the last reuse."""
        if self.last_finished:
            return ThreadReport(ThreadEnd.FINISHED, self.finished - 1)
        return ThreadReport(ThreadEnd.UNFINISHED, self.finished)

    def begin_slice(self) -> None:
        """Records that the resource manager has agreed to a reuse."""
        self.slice_start_time, self.finished, self.last_finished = None, 0, False


@dataclass(slots=True)
class RunningAttempt:
    """An attempt in progress."""

    slot: SlotKey
    start_time: float  # seconds since 1970


class Ending(Enum):
    """How an attempt ended."""

    OK = auto()
    FAILED = auto()
    REFUSED = auto()  # the command of the attempt could not be executed
    # The slot of the attempt was lost, so it is unknown whether the attempt has done its work.
    LOST = auto()
    CANCELLED = auto()  # the attempt was cancelled


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """The outcome of an attempt. `result` is complete except for the number of attempts."""

    ending: Ending
    result: ThreadResult | None = None
    message: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """The action to run a thread in a slot. If `again` is true, the attempt already runs in this
    slot and continues.
    """

    slot: SlotKey
    thread: int
    attempt: int
    again: bool = False


@dataclass(slots=True)
class Actions:
    """The actions that the session carries out after it has written `changes` to disk."""

    changes: Changes = field(default_factory=Changes)
    start: list[Start] = field(default_factory=list)
    cancel: list[AttemptKey] = field(default_factory=list)
    reuse: list[tuple[SlotKey, int]] = field(default_factory=list)  # pairs of slot and member
    # what happened to the threads in the slots of `reuse` and `release`
    reports: dict[SlotKey, ThreadReport] = field(default_factory=dict)
    # members of `reuse` that are requested in the same call: first, count
    reuse_new: tuple[int, int] | None = None
    release: list[SlotKey] = field(default_factory=list)
    ask: tuple[int, int] | None = None  # members to request: first, count
    give_up: list[tuple[int, int]] = field(
        default_factory=list
    )  # waiting members to cancel: first, count
    # attempts whose output becomes the output of the thread
    publish: list[AttemptKey] = field(default_factory=list)
    discard: list[AttemptKey] = field(default_factory=list)  # attempts whose output is deleted


def take_last(numbers: IntervalSet, count: int) -> list[intervals.Run]:
    """Removes the largest `count` numbers, or all numbers if there are fewer. Returns the removed
    numbers as intervals.
    """
    taken: list[intervals.Run] = []
    # Iterate over a copy, because the set changes in the loop.
    for start, end in reversed(list(numbers.runs())):
        if count <= 0:
            break
        first = max(start, end - count)
        numbers.remove_run(first, end)
        taken.append((first, end))
        count -= end - first
    return taken

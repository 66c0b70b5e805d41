"""What the scheduler of a batch keeps: slots that are held, attempts that run, what is to be done.

Plain data, and nothing that decides. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from finegrain import intervals
from finegrain.intervals import IntervalSet
from finegrain_client.batch.rows import Changes
from finegrain_client.batch.values import ThreadResult

SlotKey = tuple[str, int]
"""Allocation id and generation: one placement of one request."""

AttemptKey = tuple[int, int]
"""Thread and attempt."""


class Phase(Enum):
    """What a slot that is held may do."""

    FREE = auto()  # run a thread: it was granted just now, or its reuse was agreed to
    BUSY = auto()  # it runs one
    USED = auto()  # it has run one: the resource manager is to be asked before it runs another
    SPENT = auto()  # be given back, and nothing else
    AWAITING_REUSE = auto()  # wait for an answer whether it may be reused
    RELEASING = auto()  # it is being given back


@dataclass(slots=True)
class HeldSlot:
    """A slot that is held."""

    allocation_id: str
    generation: int
    member: int  # its index in the range
    executor_id: str
    phase: Phase = Phase.FREE
    run: AttemptKey | None = None
    uses: int = 0

    @property
    def key(self) -> SlotKey:
        """Which slot it is."""
        return self.allocation_id, self.generation


@dataclass(slots=True)
class RunningAttempt:
    """An attempt that is under way."""

    slot: SlotKey
    start_time: float  # seconds since 1970


class Ending(Enum):
    """How an attempt ended."""

    OK = auto()
    FAILED = auto()
    REFUSED = auto()  # its command could not be executed
    LOST = auto()  # its slot is gone; what it did is unknown
    CANCELLED = auto()  # somebody ended it


@dataclass(frozen=True, slots=True)
class AttemptOutcome:
    """What came of an attempt; `result` is complete but for the count of attempts."""

    ending: Ending
    result: ThreadResult | None = None
    message: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """A thread is to be run in a slot; again: the same attempt as before, in the same slot."""

    slot: SlotKey
    thread: int
    attempt: int
    again: bool = False


@dataclass(slots=True)
class Actions:
    """What is to be done, after `changes` are on disk."""

    changes: Changes = field(default_factory=Changes)
    start: list[Start] = field(default_factory=list)
    cancel: list[AttemptKey] = field(default_factory=list)
    reuse: list[tuple[SlotKey, int]] = field(default_factory=list)  # slot, member
    release: list[SlotKey] = field(default_factory=list)
    ask: tuple[int, int] | None = None  # first member, count
    give_up: list[tuple[int, int]] = field(default_factory=list)  # likewise, those that wait
    publish: list[AttemptKey] = field(default_factory=list)  # whose output is the thread's
    discard: list[AttemptKey] = field(default_factory=list)  # whose output nobody wants


def take_last(numbers: IntervalSet, count: int) -> list[intervals.Run]:
    """Takes out the largest `count` numbers, or all if there are fewer; returns them as runs."""
    taken: list[intervals.Run] = []
    for start, end in reversed(list(numbers.runs())):
        if count <= 0:
            break
        first = max(start, end - count)
        numbers.remove_run(first, end)
        taken.append((first, end))
        count -= end - first
    return taken

"""What a batch shows of itself: plain frozen values.

See `finegrain/mapping/value.py` for the JSON form.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from finegrain.errors import FinegrainError, Reason
from finegrain.mapping.value import Value


class ThreadState(StrEnum):
    """How a thread of work came out, for good."""

    DONE = "DONE"  # its command ended by itself with exit code 0
    FAILED = "FAILED"  # it did not, and will not be tried again


class BatchState(StrEnum):
    """Where a batch stands."""

    OPEN = "OPEN"  # to be worked on: by the runner that lives, or by the next one
    STOPPING = "STOPPING"  # starts nothing more; what runs finishes
    STOPPED = "STOPPED"  # by its policy, or because it could not go on; a new runner takes it up
    CANCELLED = "CANCELLED"  # by its owner; a new runner takes it up
    ENDED = "ENDED"  # every thread has its result


@dataclass(frozen=True, slots=True)
class ThreadResult(Value):
    """How one thread of work came out; there is exactly one per thread, whatever ran twice."""

    index: int
    state: ThreadState
    attempts: int  # how often its command was started, lost slots and second runs included
    attempt: int  # the one that counts
    exit_code: int  # counts when signal is 0 and it was started
    signal: int
    oom_killed: bool
    timed_out: bool
    reason: str  # why it never ran (COMMAND_NOT_FOUND, ...) or was given up; else empty
    message: str  # how it ended, for people
    executor_id: str
    start_time: datetime | None
    end_time: datetime | None
    duration_s: float
    cpu_time_s: float
    peak_memory_bytes: int
    stdout_bytes: int  # written, those that were not kept included
    stderr_bytes: int
    dropped_bytes: int
    stdout_tail: bytes = b""  # the last that it wrote
    stderr_tail: bytes = b""

    @property
    def ok(self) -> bool:
        """True where its command ended by itself with exit code 0."""
        return self.state is ThreadState.DONE


def unknown_result(thread: int, message: str, reason: str = "") -> ThreadResult:
    """The result of a thread of which nothing is known but that it was given up."""
    return ThreadResult(
        index=thread,
        state=ThreadState.FAILED,
        attempts=0,
        attempt=0,
        exit_code=0,
        signal=0,
        oom_killed=False,
        timed_out=False,
        reason=reason,
        message=message,
        executor_id="",
        start_time=None,
        end_time=None,
        duration_s=0.0,
        cpu_time_s=0.0,
        peak_memory_bytes=0,
        stdout_bytes=0,
        stderr_bytes=0,
        dropped_bytes=0,
    )


@dataclass(frozen=True, slots=True)
class Estimate(Value):
    """When a batch will probably end; `basis` says in words what that goes by."""

    remaining_s: float
    end_time: datetime
    basis: str


@dataclass(frozen=True, slots=True)
class Progress(Value):
    """How far a batch is: done + failed + running + queued = threads."""

    state: BatchState
    threads: int
    done: int
    failed: int  # for good
    running: int
    queued: int  # for a slot, or (`delayed` of them) for their next try
    delayed: int = 0
    slots: int = 0  # held now
    requests_waiting: int = 0  # in line at the resource manager
    retries: int = 0  # attempts that failed and were, or will be, tried again
    lost: int = 0  # attempts whose slot was lost
    speculative: int = 0  # second runs, under way now
    share: float | None = None  # of the cluster that its slots have, 0 to 1; None: not known
    elapsed_s: float = 0.0  # since the batch was first begun
    estimate: Estimate | None = None  # None: nothing to go by yet
    message: str = ""  # why it stopped, or what it waits for
    update_time: datetime | None = None

    @property
    def ended(self) -> int:
        """Threads that have their result."""
        return self.done + self.failed


@dataclass(frozen=True, slots=True)
class BatchOutcome(Value):
    """How a run of a batch came out."""

    state: BatchState
    threads: int
    done: int
    failed: int
    left: int  # have no result: the batch was stopped or cancelled before
    elapsed_s: float
    message: str = ""
    failures: tuple[ThreadResult, ...] = ()  # the first ones, by index

    @property
    def ok(self) -> bool:
        """True where every thread is done."""
        return self.done == self.threads

    def check(self) -> BatchOutcome:
        """The outcome itself.

        Raises:
            BatchFailed: not every thread is done.
        """
        if not self.ok:
            raise BatchFailed(self)
        return self


class BatchFailed(FinegrainError):
    """Not every thread of a batch is done; `outcome` tells."""

    default_reason = Reason.TASK_ENDED

    def __init__(self, outcome: BatchOutcome) -> None:
        first = outcome.failures[0] if outcome.failures else None
        why = outcome.message or (f"thread {first.index} {first.message}" if first else "")
        super().__init__(
            f"{outcome.done} of {outcome.threads} done, {outcome.failed} failed, "
            f"{outcome.left} left: {why}",
            details={"done": outcome.done, "failed": outcome.failed, "left": outcome.left},
        )
        self.outcome = outcome

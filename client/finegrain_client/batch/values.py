"""Defines the plain and frozen values that a batch reports. `finegrain/mapping/value.py` describes
their JSON form.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from finegrain.errors import FinegrainError, Reason
from finegrain.mapping.value import Value


class ThreadState(StrEnum):
    """The final state of a thread of work."""

    DONE = "DONE"  # the command ended by itself with exit code 0
    FAILED = "FAILED"  # the command failed in another way or never ran, and is not tried again


class BatchState(StrEnum):
    """The state of a batch."""

    OPEN = "OPEN"  # not ended: a runner works on it, or the next runner will
    STOPPING = "STOPPING"  # no more threads are started; running threads finish
    # stopped by its policy, or because the runner could not continue; a new runner can resume the
    # batch
    STOPPED = "STOPPED"
    CANCELLED = "CANCELLED"  # cancelled by its owner; a new runner can resume the batch
    ENDED = "ENDED"  # every thread has its result


@dataclass(frozen=True, slots=True)
class ThreadResult(Value):
    """The result of one thread of work. A thread has exactly one result, even if it ran twice."""

    index: int
    state: ThreadState
    attempts: int  # number of starts, including lost slots and second runs
    attempt: int  # the attempt that counts
    exit_code: int  # valid if signal is 0 and the command was started
    signal: int
    oom_killed: bool
    timed_out: bool
    # The reason why the command never ran (COMMAND_NOT_FOUND, ...) or was ended; otherwise empty.
    reason: str
    message: str  # how the thread ended, as a text for people
    executor_id: str
    start_time: datetime | None
    end_time: datetime | None
    duration_s: float
    cpu_time_s: float
    peak_memory_bytes: int
    stdout_bytes: int  # number of bytes written, including bytes that were not kept
    stderr_bytes: int
    dropped_bytes: int
    stdout_tail: bytes = b""  # the last bytes of this output stream
    stderr_tail: bytes = b""

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with exit code 0."""
        return self.state is ThreadState.DONE


def unknown_result(thread: int, message: str, reason: str = "") -> ThreadResult:
    """Returns the result of a thread that is not tried again although its outcome is unknown.

    Args:
        thread: index of the thread.
        message: the reason why the thread is not tried again, as a text for people.
        reason: stable code of the reason, or empty.
    """
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
    """The probable end of a batch. `basis` explains the estimate in words."""

    remaining_s: float
    end_time: datetime
    basis: str


@dataclass(frozen=True, slots=True)
class Progress(Value):
    """The progress of a batch: done + failed + running + queued = threads."""

    state: BatchState
    threads: int
    done: int
    failed: int  # failed threads without retries left
    running: int
    queued: int  # threads that wait for a slot or for the next try
    delayed: int = 0
    slots: int = 0  # number of slots that the batch has now
    requests_waiting: int = 0  # number of requests that are queued at the resource manager
    retries: int = 0  # number of failed attempts that were or will be tried again
    lost: int = 0  # number of attempts whose slot was lost
    speculative: int = 0  # number of second runs in progress
    # fraction of the cluster that the slots of the batch have; None if it is unknown
    share: float | None = None
    elapsed_s: float = 0.0  # time since the batch was first started
    estimate: Estimate | None = None  # None if there is too little data yet
    message: str = ""  # the reason why the batch stopped, or what the batch waits for
    update_time: datetime | None = None

    @property
    def ended(self) -> int:
        """Number of threads that have a result."""
        return self.done + self.failed


@dataclass(frozen=True, slots=True)
class BatchOutcome(Value):
    """The outcome of a run of a batch."""

    state: BatchState
    threads: int
    done: int
    failed: int
    left: int  # threads without a result, because the batch was stopped or cancelled
    elapsed_s: float
    message: str = ""
    failures: tuple[ThreadResult, ...] = ()  # the failed threads with the lowest indexes

    @property
    def ok(self) -> bool:
        """True if every thread is done."""
        return self.done == self.threads

    def check(self) -> BatchOutcome:
        """Returns this outcome.

        Raises:
            BatchFailed: not every thread is done.
        """
        if not self.ok:
            raise BatchFailed(self)
        return self


class BatchFailed(FinegrainError):
    """Not every thread of a batch is done. `outcome` has the details."""

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

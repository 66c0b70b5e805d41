"""Defines the rows of a batch's state file, except results: jobs, submissions, attempts. The rows
are plain data.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain_client.batch.values import ThreadResult, ThreadState


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job that was registered for a batch."""

    number: int
    job_id: str
    range_id: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class SubmittedRow:
    """Requests that were submitted as members of the job's range."""

    first_index: int
    count: int


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """An attempt at a thread whose command was submitted, or is being submitted."""

    thread: int
    attempt: int
    job: int
    allocation_id: str
    generation: int
    executor_id: str
    start_time: float


@dataclass(slots=True)
class Changes:
    """The rows and values that one transaction writes."""

    begun: list[AttemptRow] = field(default_factory=list)
    reopened: list[tuple[int, int]] = field(default_factory=list)  # pairs of thread and attempt
    # Tuples of thread, attempt, outcome and message.
    ended: list[tuple[int, int, str, str]] = field(default_factory=list)
    results: list[ThreadResult] = field(default_factory=list)
    submitted: list[SubmittedRow] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any((self.begun, self.reopened, self.ended, self.results, self.submitted, self.meta))


@dataclass(slots=True)
class Known:
    """The state with which a runner starts: open attempts, and counts of earlier attempts."""

    final: dict[int, ThreadState] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)  # number of attempts so far, by thread
    failures: dict[int, int] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=dict)
    durations_s: list[float] = field(default_factory=list)  # durations of threads that are done
    job: JobRow | None = None  # the last job of the batch
    # The fields below describe the last job. They are empty if this job is known to have ended.
    submitted: list[SubmittedRow] = field(default_factory=list)
    # attempts of which it is unknown whether they have ended
    open: list[AttemptRow] = field(default_factory=list)
    lost: list[AttemptRow] = field(default_factory=list)
    used: set[tuple[str, int]] = field(default_factory=set)  # slots that have run a thread

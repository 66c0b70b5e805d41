"""Defines the values that a job's runner returns: the progress and the outcome of the job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from finegrain.mapping.value import Value


class GraphState(StrEnum):
    """State of a job that runs a plan."""

    OPEN = "OPEN"  # the job has not ended, and a runner can continue it
    FINISHED = "FINISHED"  # all regions have finished
    FAILED = "FAILED"  # a region failed too often, or its slots can never be granted
    CANCELLED = "CANCELLED"  # a user cancelled the job


@dataclass(frozen=True, slots=True)
class GraphProgress(Value):
    """The progress of a job.

    `tasks_done` counts finished tasks. These tasks run again only if more output is lost.
    """

    regions: int
    regions_finished: int
    tasks: int
    tasks_done: int
    tasks_running: int
    slots: int
    restarts: int
    message: str = ""  # what the job waits for, with the last failure if there was one


@dataclass(frozen=True, slots=True)
class GraphOutcome(Value):
    """How a job ended."""

    state: GraphState
    message: str  # the reason why the job did not finish; empty if the job finished
    elapsed_s: float
    restarts: int

    @property
    def ok(self) -> bool:
        """True if all regions have finished."""
        return self.state is GraphState.FINISHED

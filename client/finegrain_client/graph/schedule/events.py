"""Events of a job: what a runner reports to the schedule.

Events about a request, slot, task or delay that the schedule has given up are allowed, and change
nothing: they crossed an effect on their way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from finegrain_client.graph.schedule.slots import TaskId


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The runner is ready. The first event, and only then."""


@dataclass(frozen=True, slots=True)
class SlotsGranted:
    """All slots of a request were granted.

    Attributes:
        request: number of the request.
        first_slot: number of the first slot, as in the request.
        hosts: executor of each slot, in order of the slot numbers.
    """

    request: int
    first_slot: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """A request can never be granted.

    Attributes:
        request: number of the request.
        message: why, for people.
    """

    request: int
    message: str


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """A task ended with success."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task ended without success, or was cancelled.

    Attributes:
        message: why, for people.
        input_missing: the edge ("map -> reduce") whose data the task did not find; empty: another
            cause.
    """

    task: TaskId
    message: str = ""
    input_missing: str = ""


@dataclass(frozen=True, slots=True)
class HostLost:
    """An executor is lost, with its slots, tasks and the output that lies on it."""

    host: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """One slot was lost or taken away; the output on its host is still there."""

    slot: int


@dataclass(frozen=True, slots=True)
class DelayOver:
    """The delay before a restart is over."""

    region: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelOrdered:
    """A user ends the job."""


Event: TypeAlias = (
    JobStarted
    | SlotsGranted
    | RequestRejected
    | TaskEnded
    | TaskFailed
    | HostLost
    | SlotLost
    | DelayOver
    | CancelOrdered
)

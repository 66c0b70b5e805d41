"""Defines the events of a job, which a runner reports to the schedule.

Events and effects can cross. So an event can be about a request, slot, task or delay that the
schedule has already given up. Such an event changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from finegrain_client.graph.schedule.slots import TaskId


@dataclass(frozen=True, slots=True)
class JobStarted:
    """The runner is ready. This event is the first event of a job, and comes only once."""


@dataclass(frozen=True, slots=True)
class SlotsGranted:
    """All slots of a request were granted.

    Attributes:
        request: number of the request.
        first_slot: number of the first slot, as in the request.
        hosts: the executor of each slot, in the order of the slot numbers.
    """

    request: int
    first_slot: int
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RequestRejected:
    """A request can never be granted.

    Attributes:
        request: number of the request.
        message: the reason, for people.
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
        message: the reason, for people.
        input_missing: the edge ("map -> reduce") whose data the task did not find. It is empty if
            the task failed for another reason.
    """

    task: TaskId
    message: str = ""
    input_missing: str = ""


@dataclass(frozen=True, slots=True)
class HostLost:
    """An executor is lost, with its slots, its tasks, and the output on its host."""

    host: str


@dataclass(frozen=True, slots=True)
class SlotLost:
    """A slot was lost, but its host was not lost: the output on the host still exists."""

    slot: int


@dataclass(frozen=True, slots=True)
class SlotRevoked:
    """The resource manager took a revocable slot back for another request. This does not count
    towards the limits of losses and failures.
    """

    slot: int


@dataclass(frozen=True, slots=True)
class DelayOver:
    """The delay before a restart is over."""

    region: int
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelOrdered:
    """A user cancels the job."""


Event: TypeAlias = (
    JobStarted
    | SlotsGranted
    | RequestRejected
    | TaskEnded
    | TaskFailed
    | HostLost
    | SlotLost
    | SlotRevoked
    | DelayOver
    | CancelOrdered
)

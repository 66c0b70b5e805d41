"""Effects of a schedule, which the runner must carry out in order. All may be repeated safely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from finegrain_client.graph.schedule.slots import SlotPlace, TaskId


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Request slots, all or none.

    Attributes:
        request: number of the request.
        region: number of the region that needs the slots.
        places: places of the slots in the plan. The group of a place has the slot's profile.
        first_slot: number of the first slot; the others are numbered consecutively.
    """

    request: int
    region: int
    places: tuple[SlotPlace, ...]
    first_slot: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel a request. If it was granted meanwhile, the schedule releases its slots."""

    request: int


@dataclass(frozen=True, slots=True)
class PassSlot:
    """From now on, a slot serves another place. No task runs in the slot."""

    slot: int
    place: SlotPlace


@dataclass(frozen=True, slots=True)
class DeployTask:
    """Start a task in a slot."""

    task: TaskId
    slot: int


@dataclass(frozen=True, slots=True)
class CancelTask:
    """End a task. The runner then reports TaskEnded or TaskFailed."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Release a slot, in which no task runs."""

    slot: int


@dataclass(frozen=True, slots=True)
class StartDelay:
    """Report DelayOver after this time."""

    region: int
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job has ended: no task runs, and all slots are released.

    Attributes:
        ok: whether all regions have finished.
        message: for people: why the job has not finished; empty if `ok`.
    """

    ok: bool
    message: str = ""


Effect: TypeAlias = (
    RequestSlots
    | CancelRequest
    | PassSlot
    | DeployTask
    | CancelTask
    | ReleaseSlot
    | StartDelay
    | JobEnded
)

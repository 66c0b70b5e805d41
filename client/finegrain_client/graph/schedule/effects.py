"""Effects of a schedule: what the runner must do, in this order. Each may be repeated safely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from finegrain_client.graph.schedule.slots import SlotPlace, TaskId


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Request slots, all or none.

    Attributes:
        request: number of the request.
        region: number of the region that they are for.
        places: where they belong in the plan; a group's profile says what each needs.
        first_slot: number of the first slot; the others follow in order.
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
    """A slot serves another place from now on; nothing runs in it."""

    slot: int
    place: SlotPlace


@dataclass(frozen=True, slots=True)
class DeployTask:
    """Start a task in a slot."""

    task: TaskId
    slot: int


@dataclass(frozen=True, slots=True)
class CancelTask:
    """End a task; its end is reported by TaskEnded or TaskFailed."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class ReleaseSlot:
    """Release a slot; nothing of the job runs in it."""

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
        message: why not, for people.
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

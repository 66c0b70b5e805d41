"""Defines the effects of a schedule, which the runner must carry out in order. It is safe to repeat
all effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from finegrain_client.graph.schedule.slots import SlotPlace, TaskId


@dataclass(frozen=True, slots=True)
class RequestSlots:
    """Request slots, which are granted all together or not at all.

    Attributes:
        request: number of the request.
        region: number of the region that needs the slots.
        places: places of the slots in the plan. The group of a place has the slot's profile.
        first_slot: number of the first slot. The other slots have the numbers that follow.
    """

    request: int
    region: int
    places: tuple[SlotPlace, ...]
    first_slot: int


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """Cancel a request. If the request was granted in the meantime, the schedule releases its
    slots.
    """

    request: int


@dataclass(frozen=True, slots=True)
class PassSlot:
    """Use a slot, in which no task runs, for another place from now on."""

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
    """Release a slot, in which no task runs. `finished` is True if a region that used the slot has
    finished.
    """

    slot: int
    finished: bool = False


@dataclass(frozen=True, slots=True)
class StartDelay:
    """Report DelayOver after the delay."""

    region: int
    attempt: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job has ended: no task runs, and all slots are released.

    Attributes:
        ok: True if all regions have finished.
        message: the reason why the job has not finished, as a text for people; empty if `ok`.
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

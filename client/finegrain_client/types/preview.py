"""Defines values about previews of actions. `status.py` describes the form of all values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from finegrain.mapping.value import Value


class PreviewedAction(StrEnum):
    """An action that can be previewed."""

    DRAIN = "DRAIN"
    CORDON = "CORDON"
    RELEASE = "RELEASE"
    END_JOB = "END_JOB"
    SET_GROUP = "SET_GROUP"
    SET_HOST_POLICY = "SET_HOST_POLICY"


@dataclass(frozen=True, slots=True)
class PreviewedSlot(Value):
    """A slot that an action concerns."""

    allocation_id: str
    generation: int
    job_id: str
    job_name: str
    group: str
    executor_id: str
    pids: int  # measured processes and threads; 0 if none, or if not measured
    other_executor_id: str  # executor with room for the slot now; empty if none, or if not sought


@dataclass(frozen=True, slots=True)
class PreviewedShare(Value):
    """The shares of a group before and after an action, 0 to 1."""

    group: str
    share_now: float  # the group's part of the present usage
    before: float  # the share to which the group is entitled now
    after: float
    exceeded: tuple[str, ...]  # dimensions in which the group uses more than its new maximum
    # dimensions in which the group uses less than its new minimum
    below_minimum: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PreviewedSetting(Value):
    """A setting of hosts before and after an action, as text."""

    name: str  # as in HostPolicy, or "strictly_reserved_cpus"
    before: str  # empty if there are no cpus
    after: str
    executors: int  # number of executors with these two values


@dataclass(frozen=True, slots=True)
class Preview(Value):
    """What an action would change."""

    slots: tuple[PreviewedSlot, ...]  # at most 1,000
    slots_total: int
    jobs: int
    waiting: int  # queued requests that the action would cancel
    moving: int  # slots for which another executor has room now
    shares: tuple[PreviewedShare, ...]
    summary: str  # one sentence
    on_other_devices: int  # CORDON: slots of the executor with other devices only
    without_devices: int  # CORDON: slots of the executor without devices
    settings: tuple[PreviewedSetting, ...] = ()  # settings in effect that would change
    executors: int = 0  # executors on which a setting would change

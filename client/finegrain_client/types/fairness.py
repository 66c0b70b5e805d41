"""Values about fairness and reserved capacity; see `status.py` for the form of all values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class FlowStatus(Value):
    """A flow (a resource group or a job) as the scheduler compares it with its siblings."""

    name: str  # of the group, or the job's id
    is_job: bool
    job_name: str  # empty: a group
    weight: float
    service: float  # recent usage: cost times seconds, decayed
    tally: float  # virtual time; the flow with the smallest is served first
    running: int  # slots
    waiting: int  # requests
    below_minimum: bool  # below its guaranteed minimum, so it is served first


@dataclass(frozen=True, slots=True)
class ChoiceStep(Value):
    """One level of the fairness tree: which of the flows with queued work in one group is next."""

    group: str  # empty: the top level
    flow: FlowStatus  # the one that the request belongs to
    position: int  # of that flow; 1 is next
    backlogged: int  # number of flows with queued work
    ahead: tuple[FlowStatus, ...]  # the first few flows before it, next first
    summary: str


@dataclass(frozen=True, slots=True)
class GroupLimit(Value):
    """A maximum of a resource group that blocks a request."""

    group: str
    dimension: str
    used: int  # by the group's slots
    asked: int  # by the request
    maximum: int


@dataclass(frozen=True, slots=True)
class ReservedExecutor(Value):
    """The capacity reserved on one executor, and the part of it that is not free yet."""

    executor_id: str
    held: Mapping[str, int]
    missing: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reservation(Value):
    """Capacity reserved for a starved request or gang."""

    allocation_id: str  # of a gang: of its first member
    job_id: str
    gang_id: str  # empty: no gang
    executors: tuple[ReservedExecutor, ...]
    since_time: datetime | None
    passed_over_since_time: datetime | None
    summary: str

"""What the client returns about who is served before whom, and about capacity that is held for
somebody; see `status.py` for the shape of all values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class FlowStatus(Value):
    """A flow (a resource group, or a job) as the choice who is served next sees it."""

    name: str  # of the group, or the job's id
    is_job: bool
    job_name: str  # empty: a group
    weight: float
    service: float  # received lately: cost times seconds, decayed
    tally: float  # what is compared; the least is served first
    running: int  # slots
    waiting: int  # requests
    below_minimum: bool  # its guaranteed minimum is not reached, so it comes first


@dataclass(frozen=True, slots=True)
class ChoiceStep(Value):
    """One step of the choice: of all that have work waiting below one group, who is next."""

    group: str  # empty: at the top
    flow: FlowStatus  # the one that the request belongs to
    position: int  # of it, 1 is next
    backlogged: int  # how many have work waiting
    ahead: tuple[FlowStatus, ...]  # who comes before it, next first; only the first few
    summary: str


@dataclass(frozen=True, slots=True)
class GroupLimit(Value):
    """A maximum of a resource group that stops a request."""

    group: str
    dimension: str
    used: int  # what its slots have
    asked: int  # what the request needs
    maximum: int


@dataclass(frozen=True, slots=True)
class ReservedExecutor(Value):
    """What is held on one executor, and what of it is not free yet."""

    executor_id: str
    held: Mapping[str, int]
    missing: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reservation(Value):
    """Capacity that is held for a request, or a gang, which was passed over for too long."""

    allocation_id: str  # of a gang, of its first member
    job_id: str
    gang_id: str  # empty: no gang
    executors: tuple[ReservedExecutor, ...]
    since_time: datetime | None
    passed_over_since_time: datetime | None
    summary: str

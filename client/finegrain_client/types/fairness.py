"""Defines values about fairness and reserved capacity. `status.py` describes the form of all
values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class FlowStatus(Value):
    """A flow (a resource group or a job) as the scheduler compares it with its siblings."""

    name: str  # name of the group, or id of the job
    is_job: bool
    job_name: str  # empty if the flow is a group
    weight: float
    service: float  # recent usage: cost times seconds, decayed
    tally: float  # virtual time; the flow with the lowest virtual time is served first
    running: int  # number of slots
    waiting: int  # number of queued requests
    # True if the flow is below its guaranteed minimum; it is then served before other flows
    below_minimum: bool


@dataclass(frozen=True, slots=True)
class ChoiceStep(Value):
    """One level of the fairness tree: the order of the flows with queued work in one group."""

    group: str  # name of the group; empty at the top level
    flow: FlowStatus  # the flow to which the request belongs
    position: int  # position of this flow in the order; 1 is served next
    backlogged: int  # number of flows with queued work
    ahead: tuple[FlowStatus, ...]  # the first flows of the order that come before this flow
    summary: str


@dataclass(frozen=True, slots=True)
class GroupLimit(Value):
    """A maximum that blocks a request. It is the maximum of a resource group (`group`), of the
    owner of the job (`user`), or of the whole cluster (`group` and `user` are empty).
    """

    group: str
    dimension: str
    used: int  # amount that the group's slots have
    asked: int  # amount that the request needs
    maximum: int
    user: str = ""


@dataclass(frozen=True, slots=True)
class ReservedExecutor(Value):
    """The capacity that one executor reserves, and the part of this capacity that is not free
    yet.
    """

    executor_id: str
    held: Mapping[str, int]
    missing: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Reservation(Value):
    """Capacity reserved for a starved request or gang."""

    allocation_id: str  # id of the request, or of the first member of the gang
    job_id: str
    gang_id: str  # empty if the request is not in a gang
    executors: tuple[ReservedExecutor, ...]
    since_time: datetime | None
    passed_over_since_time: datetime | None
    summary: str
    # when the request will probably be placed; None if it is not known how long slots will run
    start_time: datetime | None = None

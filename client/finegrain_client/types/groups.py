"""Defines values about resource groups. `status.py` describes the form of all values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from finegrain.mapping.value import Value
from finegrain.values.group_rules import GroupRule
from finegrain_client.types.fairness import Reservation


@dataclass(frozen=True, slots=True)
class GroupStatus(Value):
    """One resource group. Shares are fractions of all current usage, 0 to 1."""

    name: str
    parent: str  # empty if the group has no parent
    description: str
    weight: float
    minimum: Mapping[str, int]  # guaranteed amounts; an absent dimension has no minimum
    maximum: Mapping[str, int]  # limits; an absent dimension has no limit
    used: Mapping[str, int]
    share_entitled: float  # share by weight, among groups that have slots or queued requests now
    share_now: float
    service: float  # recent usage: cost times seconds, decayed
    tally: float  # virtual time; the sibling with the lowest virtual time is served next
    running: int  # number of slots
    waiting: int  # number of queued requests
    oldest_wait_time: datetime | None  # arrival time of the group's oldest queued request
    jobs: int  # number of active jobs, including jobs of child groups
    users: tuple[str, ...] = ()  # the identities that may use the group; "*" means all users
    rules: tuple[GroupRule, ...] = ()  # rules that put jobs into the group, by order
    # CPU and memory that the slots really use, without zeros
    measured: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserStatus(Value):
    """The limits of one user, and the resources that its jobs use. The user "*" stands for each
    user without separate limits.
    """

    user: str
    own_limits: bool
    # Limits of all jobs of the user together; an absent dimension has no limit.
    maximum: Mapping[str, int]
    used: Mapping[str, int]
    slots: int
    jobs: int  # jobs that have not ended, or still have slots
    requests: int  # requests that have not ended


@dataclass(frozen=True, slots=True)
class Groups(Value):
    """All resource groups: parents before their children, siblings by name."""

    groups: tuple[GroupStatus, ...]
    service_measure: str  # "dominant", "slots" or "cpu"
    # past usage counts half after this time; None if usage does not decay
    half_life_s: float | None
    reservations: tuple[Reservation, ...] = ()  # reservations for starved requests

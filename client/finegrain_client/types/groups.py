"""What the client returns about resource groups; see `status.py` for the shape of all values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from finegrain.mapping.value import Value
from finegrain_client.types.fairness import Reservation


@dataclass(frozen=True, slots=True)
class GroupStatus(Value):
    """One resource group. Shares are parts of all service that is being received, 0 to 1."""

    name: str
    parent: str  # empty: it is at the top
    description: str
    weight: float
    minimum: Mapping[str, int]  # guaranteed; an absent dimension has none
    maximum: Mapping[str, int]  # an absent dimension has no limit
    used: Mapping[str, int]
    share_entitled: float  # by weight, among those that wait or run at the moment
    share_now: float
    service: float  # received lately: cost times seconds, decayed
    tally: float  # what it is compared by with its siblings; the least is served next
    running: int  # slots
    waiting: int  # requests
    oldest_wait_time: datetime | None  # since when the one waits that has waited longest
    jobs: int  # that live, in groups below it as well


@dataclass(frozen=True, slots=True)
class Groups(Value):
    """All resource groups, parents before their parts, by name among siblings."""

    groups: tuple[GroupStatus, ...]
    service_measure: str  # "dominant", "slots" or "cpu"
    half_life_s: float | None  # service counts half after that; None: for ever
    reservations: tuple[Reservation, ...] = ()  # what is held for those passed over for too long

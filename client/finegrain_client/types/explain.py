"""Values about why something waits; see `status.py` for the form of all values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from finegrain.mapping.value import Value
from finegrain.values.explanations import Counterfactual, Dimension, GangSpot
from finegrain_client.types.fairness import ChoiceStep, GroupLimit, Reservation
from finegrain_client.types.status import Gang, RequestStatus, SlotResize, SlotStatus


@dataclass(frozen=True, slots=True)
class CpuVerdict(Value):
    """Why the cpus and NUMA nodes of an executor do not suit a request."""

    code: str  # stable, such as "NUMA_UNALIGNED"
    numbers: Mapping[str, int]  # the numbers behind the code, by name
    message: str


@dataclass(frozen=True, slots=True)
class ExecutorVerdict(Value):
    """What one executor lacks for a request."""

    executor_id: str
    fits: bool
    blockers: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    message: str
    cpu: CpuVerdict | None = None  # None: its cpus and NUMA nodes suit the request
    more_fit: int = 0  # how many slots like this fit there now


@dataclass(frozen=True, slots=True)
class GangExplanation(Value):
    """The state of a gang that waits."""

    gang: Gang
    members: int  # those that have not ended
    placeable: int  # the most that could be placed together now
    spots: tuple[GangSpot, ...]  # best first
    summary: str
    deadline_time: datetime | None  # the gang is rejected then if it is not placed; None: never


@dataclass(frozen=True, slots=True)
class ResizeExplanation(Value):
    """Why a resize of a slot waits. For each dimension that grows, `asked` is the growth."""

    resize: SlotResize
    dimensions: tuple[Dimension, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Explanation(Value):
    """Why a request waits, or how it ended. It describes one moment and reserves nothing.

    Attributes:
        gang: present while the request's gang waits.
        planned_on: the pending executor that the request is planned on, and waits for.
        resizes: pending changes of a granted slot.
        steps: for a waiting request, its place in the fairness tree, from the top.
        limits: maxima of resource groups that block a waiting request.
        reservation: capacity reserved for the waiting request.
        held_for_others: capacity reserved for others on executors where it would fit otherwise.
        more_fit: how many more slots like this fit now, if nothing else is queued. Reserved
            capacity does not count, and maxima of groups are not applied.
        more_may_fit: not all executors were counted.
    """

    request: RequestStatus
    primary_reason: str
    summary: str
    requests_ahead: int
    executors_considered: int
    executors_fitting: int
    executors: tuple[ExecutorVerdict, ...]
    dimensions: tuple[Dimension, ...]
    would_fit_if: tuple[Counterfactual, ...]
    blocked_by: tuple[SlotStatus, ...]
    snapshot_number: int
    gang: GangExplanation | None = None
    planned_on: str = ""
    resizes: tuple[ResizeExplanation, ...] = ()
    steps: tuple[ChoiceStep, ...] = ()
    limits: tuple[GroupLimit, ...] = ()
    reservation: Reservation | None = None
    held_for_others: tuple[Reservation, ...] = ()
    more_fit: int = 0
    more_may_fit: bool = False

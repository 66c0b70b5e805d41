"""Defines explanations of waiting requests and resizes. `status.py` describes the form of all
values.
"""

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
    """The reason why the cpus and NUMA nodes of an executor do not suit a request."""

    code: str  # a stable code, for example "NUMA_UNALIGNED"
    numbers: Mapping[str, int]  # the numbers that belong to the code, by name
    message: str


@dataclass(frozen=True, slots=True)
class ExecutorVerdict(Value):
    """The obstacles for a request on one executor."""

    executor_id: str
    fits: bool
    blockers: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    message: str
    cpu: CpuVerdict | None = None  # None if the executor's cpus and NUMA nodes suit the request
    more_fit: int = 0  # number of slots of this size that fit on the executor now


@dataclass(frozen=True, slots=True)
class GangExplanation(Value):
    """The state of a gang that waits."""

    gang: Gang
    members: int  # number of members that have not ended
    placeable: int  # largest number of members that could be placed together now
    spots: tuple[GangSpot, ...]  # possible places, the best place first
    summary: str
    # time at which a waiting gang is rejected; None if there is no deadline
    deadline_time: datetime | None


@dataclass(frozen=True, slots=True)
class ResizeExplanation(Value):
    """The reason why a resize of a slot waits. In each dimension, `asked` is the growth of the
    slot.
    """

    resize: SlotResize
    dimensions: tuple[Dimension, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Explanation(Value):
    """The reason why a request waits, or how it ended. An explanation describes one moment, and
    reserves nothing.

    Attributes:
        gang: the request's gang, while the gang waits.
        planned_on: the pending executor on which the request is planned.
        resizes: pending changes of a granted slot.
        steps: the place of a waiting request in the fairness tree. Each step is one level, from the
            top down.
        limits: maxima of resource groups that block the waiting request.
        reservation: capacity reserved for the waiting request.
        held_for_others: capacity reserved for other requests, on executors where this request would
            fit without the reservation.
        more_fit: number of slots of this size that would fit now if no other request were queued.
            Reserved capacity does not count as free. Maxima of groups are ignored.
        more_may_fit: True if `more_fit` does not count all executors.
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

"""What the client returns about why something waits; see `status.py` for the shape of values."""

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
    numbers: Mapping[str, int]  # behind it, by name
    message: str


@dataclass(frozen=True, slots=True)
class ExecutorVerdict(Value):
    """What one executor lacks for a request."""

    executor_id: str
    fits: bool
    blockers: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    message: str
    cpu: CpuVerdict | None = None  # None: its cpus and NUMA nodes would do


@dataclass(frozen=True, slots=True)
class GangExplanation(Value):
    """How a gang that waits stands."""

    gang: Gang
    members: int  # that live
    placeable: int  # the most of them that could be placed together now
    spots: tuple[GangSpot, ...]  # best first
    summary: str
    deadline_time: datetime | None  # when it ends if it is not placed; None: never


@dataclass(frozen=True, slots=True)
class ResizeExplanation(Value):
    """Why a change of a slot's size waits; per dimension that grows, `asked` is by how much."""

    resize: SlotResize
    dimensions: tuple[Dimension, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Explanation(Value):
    """Why a request waits, or what became of it. True of one moment; not a reservation.

    `gang` is there while the gang of the request waits, `planned_on` names the executor that was
    asked for and that it waits for, `resizes` are the changes of a granted slot that wait. Of a
    request that waits, `steps` are those of the choice who is served next, from the top, `limits`
    the maxima of resource groups that stop it, `reservation` is what is held for it, and
    `held_for_others` what is held on executors where it would fit otherwise.
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

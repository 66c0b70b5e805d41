"""What the rules of a cluster that grows and shrinks keep in mind between two looks: shapes, their
back-off, the last plan. Nothing here is durable; after a restart it is found out anew.

Which executors were asked for is in `State.provisions`, durable, and not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    Amounts,
    booking,
    has_separate_pools,
)
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import Executor, Provision, Registration
from resource_manager.engine.model.scheduling_key import SLOTS, in_grains
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from resource_manager.engine.placement.constraint import HostView, Obstacle
from resource_manager.engine.placement.fit import CPUS, LABELS, Fit
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

UNBOUNDED = 1 << 53
"""Stands for "no limit" where a number is needed."""

NUMBER = "provision_number"
"""Counter of all executors that were ever asked for."""

PENDING = (ProvidedExecutorState.ASKED, ProvidedExecutorState.STARTED)
"""They were asked for and have not come."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor has that could be asked for, or is empty, in columns of the capacity index,
    `SLOTS` included; `default` is what one default slot takes of it, without its slot. `separate`:
    it has a memory pool per part.
    """

    amounts: Amounts
    default: Amounts = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    separate: bool = False


@dataclass(slots=True)
class Backoff:
    """Executors of a shape failed to come: not asked for again before `until_ms` (monotonic)."""

    failures: int = 0  # in a row; those of one interval count as one
    until_ms: int = 0
    until_time_ms: int = 0  # the same for people
    last_failure: str = ""


@dataclass(slots=True)
class Content:
    """What is planned on one executor: waiting requests by shape, and members of gangs by gang and
    place of their wish among those of the gang.
    """

    shapes: dict[SchedulingClass, int] = field(default_factory=dict)
    members: dict[tuple[str, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.shapes or self.members)

    @property
    def gangs(self) -> dict[str, int]:
        """How many members of which gang."""
        counts: dict[str, int] = {}
        for (gang_id, _), count in self.members.items():
            counts[gang_id] = counts.get(gang_id, 0) + count
        return counts

    @property
    def requests(self) -> int:
        """How many requests that are."""
        return sum(self.shapes.values()) + sum(self.members.values())


@dataclass(slots=True)
class LastPlan:
    """What the last look at those who wait came to; what it says of shapes is about those who wait
    longest with them.

    Attributes:
        on: what is planned on which executor that has not come.
        left: requests that are planned nowhere, by shape.
        gangs_left: gangs that are planned nowhere.
        counted_on: executors that are there and that planned gangs count on.
        stopped: requests that the maximum of a group would not admit, by shape.
        gangs_stopped: likewise gangs.
        places: where each of a shape is planned, as of a state of the queue, once somebody asked.
    """

    on: dict[str, Content] = field(default_factory=dict)
    left: dict[SchedulingClass, int] = field(default_factory=dict)
    gangs_left: list[str] = field(default_factory=list)
    counted_on: set[str] = field(default_factory=set)
    stopped: dict[SchedulingClass, int] = field(default_factory=dict)
    gangs_stopped: list[str] = field(default_factory=list)
    places: dict[SchedulingClass, tuple[int, dict[int, str]]] = field(default_factory=dict)
    _by_owner: tuple[dict[SchedulingClass, dict[str, int]], dict[str, list[str]]] | None = None

    def planned(self, shape: SchedulingClass) -> dict[str, int]:
        """How many requests of a shape are planned on which executor, oldest first."""
        return self._sorted_out()[0].get(shape, {})

    def planned_gang(self, gang_id: str) -> list[str]:
        """The executors that a gang waits for."""
        return self._sorted_out()[1].get(gang_id, [])

    def drop(self, executor_id: str) -> Content | None:
        """Nothing is planned on an executor any more; what was, if anything."""
        self.places.clear()
        self._by_owner = None
        return self.on.pop(executor_id, None)

    def _sorted_out(self) -> tuple[dict[SchedulingClass, dict[str, int]], dict[str, list[str]]]:
        """By shape and by gang: everybody may be asked about, of thousands on a thousand."""
        if self._by_owner is None:
            shapes: dict[SchedulingClass, dict[str, int]] = {}
            gangs: dict[str, list[str]] = {}
            for name, content in self.on.items():
                for shape, count in content.shapes.items():
                    shapes.setdefault(shape, {})[name] = count
                for gang_id in content.gangs:
                    gangs.setdefault(gang_id, []).append(name)
            self._by_owner = shapes, gangs
        return self._by_owner


class Elastic:
    """Shapes and what happened to them, the last plan, and when the next look is due."""

    def __init__(self, provisioning: Provisioning) -> None:
        self.provisioning = provisioning
        self.shapes: Mapping[str, ExecutorShape] = {each.name: each for each in provisioning.shapes}
        self.capacities = {each.name: capacity_of(each) for each in provisioning.shapes}
        self.backoffs = {each.name: Backoff() for each in provisioning.shapes}
        self.plan = LastPlan()
        self.number = 0  # of the last executor that was asked for
        self.version = 0  # rises with every change of what was asked for
        self.next_pass_ms: int | None = None
        self.looked_at: object = None  # the state of everything that the last plan hangs on
        self.arrived: dict[str, str] = {}  # registered since the last decision: whose plan it gets
        self.resumes = False  # what is under way has to be taken up after a restart
        self.surplus: set[str] = set()  # pending ones that nobody needed at the last look
        self.lost_since_ms: dict[str, int] = {}
        self.verdicts: dict[str, bool] = {}  # of use: True for good, False so far not
        self.idle_marks: dict[str, tuple[int, int]] = {}  # registration and last command, when idle
        self.asked_up_to: dict[str, int] = {}  # totals of what was asked for last, then
        self.present: tuple[int, dict[str, int]] | None = None  # by version of the cluster
        self.seen: dict[str, Host] = {}  # by shape: the last one that came, as if it were empty
        # by shape: an executor of it, as if it were empty; nothing is known of its cpus
        self._promised = {each.name: HostView.empty(host_of(each)) for each in provisioning.shapes}

    def ask_for(self, shape: ExecutorShape) -> bool:
        """True if one of this shape may ever be asked for."""
        limits = self.provisioning.total_max
        return all(shape.total.get(name, 0) <= limit for name, limit in limits.items())

    def fits_a_shape(self, request: ResourceRequest, *, labels: bool = True) -> bool:
        """Returns True if an executor that could be ordered could serve such a request when empty.

        Args:
            request: what is asked for.
            labels: False: whatever labels it carries.
        """
        fit = Fit(request)
        return any(
            self.ask_for(shape) and self.obstacle(name, fit, labels=labels) is None
            for name, shape in self.shapes.items()
        )

    def obstacle(self, name: str, fit: Fit, *, labels: bool = True) -> Obstacle | None:
        """Returns why an executor of a shape could not serve a request even when empty; None: it
        could, as far as is known. Its cpus and NUMA nodes are taken for those of the last one that
        came.

        Args:
            name: the shape.
            fit: compares the request with hosts.
            labels: False: whatever labels it carries.
        """
        besides = (CPUS,) if labels else (CPUS, LABELS)
        found = fit.size_obstacle(self._promised[name], besides=besides)
        if found is None and name in self.seen:
            return CPUS.obstacle(fit.request, HostView.empty(self.seen[name]))
        return found


def host_of(shape: ExecutorShape) -> Host:
    """Returns the ledger of an executor of a shape. Unless the shape says otherwise, it offers all
    its cpu to best-effort slots once more, as executors do.
    """
    total = {BEST_EFFORT_CPU_MILLI: shape.total.get(CPU_MILLI, 0), **shape.total}
    registration = Registration(
        executor_id=shape.name,
        instance_id="",
        address="",
        total=total,
        reserved={},
        default_profile=shape.default_profile,
        labels=shape.labels,
        slots_max=shape.slots_max,
    )
    return Host.of(Executor(registration, registration_number=0))


def capacity_of(shape: ExecutorShape) -> Capacity:
    """What an executor of a shape has when it is empty, in columns of the capacity index. Unless it
    says otherwise it offers all its cpu to best-effort slots once more, as executors do.
    """
    separate = has_separate_pools(shape.total)
    total = {BEST_EFFORT_CPU_MILLI: shape.total.get(CPU_MILLI, 0), **shape.total}
    return Capacity(
        amounts={**in_grains(total), SLOTS: shape.slots_max or UNBOUNDED},
        default=in_grains(booking(shape.default_profile, separate_pools=separate)),
        labels=dict(shape.labels),
        separate=separate,
    )


def of_shape(provisions: Mapping[str, Provision], name: str) -> int:
    """How many of a shape were asked for and are not known to be gone."""
    return sum(each.shape == name for each in provisions.values())

"""Keeps the state of scaling between two planning passes: executor shapes, their back-off and the
last plan.

This state is not stored, but computed again after a restart. The ordered executors themselves are
stored (`State.provisions`).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
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
"""Name of the durable counter of all executors that were ever ordered."""

PENDING = (ProvidedExecutorState.ASKED, ProvidedExecutorState.STARTED)
"""States of executors that were ordered and have not registered."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of an executor that could be ordered, or of a registered executor without slots.

    Attributes:
        amounts: the amounts of the executor in columns of the capacity index, including `SLOTS`.
        default: the amounts that one default slot books on it, without `SLOTS`.
        labels: the labels of the executor.
        separate: True if the executor has a separate memory pool for each memory part.
    """

    amounts: Amounts
    default: Amounts = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    separate: bool = False


@dataclass(slots=True)
class Backoff:
    """The back-off of a shape whose executors failed: no more executors are ordered before
    `until_ms` (monotonic).
    """

    failures: int = 0  # consecutive failures; all failures within one interval count as one
    until_ms: int = 0
    until_time_ms: int = 0  # `until_ms` as wall clock time, for people
    last_failure: str = ""


@dataclass(slots=True)
class Content:
    """The requests that are planned on one executor.

    Attributes:
        classes: number of queued requests by scheduling class.
        members: number of gang members, by gang id and position of their request in the gang.
    """

    classes: dict[SchedulingClass, int] = field(default_factory=dict)
    members: dict[tuple[str, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.classes or self.members)

    @property
    def gangs(self) -> dict[str, int]:
        """Number of members by gang id."""
        counts: dict[str, int] = {}
        for (gang_id, _), count in self.members.items():
            counts[gang_id] = counts.get(gang_id, 0) + count
        return counts

    @property
    def requests(self) -> int:
        """Number of all requests and members."""
        return sum(self.classes.values()) + sum(self.members.values())


@dataclass(slots=True)
class LastPlan:
    """Result of the last planning pass. If the plan has a number of requests of a class, these are
    the oldest requests of the class.

    Attributes:
        on: the requests planned on each pending executor.
        left: number of requests that are not planned on any executor, by scheduling class.
        gangs_left: gangs that are not planned.
        counted_on: registered executors on which the plan places members of gangs.
        blocked: number of requests that the maximum of a group blocks, by scheduling class.
        gangs_blocked: gangs that the maximum of a group blocks.
        places: cache of the executor on which each request of a class is planned, by arrival
            number, with the state of the queue (`WaitingQueue.moves`) for which it is valid.
    """

    on: dict[str, Content] = field(default_factory=dict)
    left: dict[SchedulingClass, int] = field(default_factory=dict)
    gangs_left: list[str] = field(default_factory=list)
    counted_on: set[str] = field(default_factory=set)
    blocked: dict[SchedulingClass, int] = field(default_factory=dict)
    gangs_blocked: list[str] = field(default_factory=list)
    places: dict[SchedulingClass, tuple[int, dict[int, str]]] = field(default_factory=dict)
    _by_owner: tuple[dict[SchedulingClass, dict[str, int]], dict[str, list[str]]] | None = None

    def planned(self, scheduling_class: SchedulingClass) -> dict[str, int]:
        """Returns how many requests of a class are planned on each executor. The executor of the
        oldest requests comes first.
        """
        return self._by_class_and_gang()[0].get(scheduling_class, {})

    def planned_gang(self, gang_id: str) -> list[str]:
        """Returns the executors on which a gang is planned."""
        return self._by_class_and_gang()[1].get(gang_id, [])

    def drop(self, executor_id: str) -> Content | None:
        """Removes an executor from the plan, and returns the requests planned on it; None if it had
        no planned requests.
        """
        # Both caches are computed from `on`, so they are now outdated.
        self.places.clear()
        self._by_owner = None
        return self.on.pop(executor_id, None)

    def _by_class_and_gang(
        self,
    ) -> tuple[dict[SchedulingClass, dict[str, int]], dict[str, list[str]]]:
        """Returns the plan by scheduling class and by gang. It is cached, because thousands of
        requests may need it.
        """
        if self._by_owner is None:
            classes: dict[SchedulingClass, dict[str, int]] = {}
            gangs: dict[str, list[str]] = {}
            for name, content in self.on.items():
                for scheduling_class, count in content.classes.items():
                    classes.setdefault(scheduling_class, {})[name] = count
                for gang_id in content.gangs:
                    gangs.setdefault(gang_id, []).append(name)
            self._by_owner = classes, gangs
        return self._by_owner


class Elastic:
    """Executor shapes with their history, the last plan, and when the next planning pass is due.

    Attributes:
        provisioning: the settings.
        shapes: executor shapes that can be ordered, by name.
        capacities: capacity of an empty executor of each shape.
        backoffs: back-off of each shape.
        plan: the last plan.
        number: number of the last executor that was ordered.
        version: rises whenever an executor is ordered, or an order changes.
        next_pass_ms: when the next planning pass is due; None: it is not scheduled.
        steps: the rest of the running planning pass; None: no planning pass is running.
        planned_inputs: all inputs of the last plan. If they have not changed, no new plan is
            needed.
        arrived: executors that have registered since the last cycle, each with the pending executor
            whose planned requests it gets; empty: no executor has this role.
        resumes: True after a restart, until unfinished orders to providers were repeated.
        surplus: pending executors that no request needed in the last pass.
        lost_since_ms: when each lost executor was lost.
        verdicts: executors that counted as a success or failure of their shape. True: the result is
            final. False: the executor counted as a failure, but may still prove to work.
        idle_marks: registration number and command number of an executor when it became idle.
        ordered_total: total of all executors after the last order, in the dimensions to which the
            order added capacity.
        present: cache of the total of all executors that are not lost, with the version of the
            cluster for which it is valid.
        seen: by shape, a copy of the executor that registered last, without slots.
    """

    def __init__(self, provisioning: Provisioning) -> None:
        self.provisioning = provisioning
        self.shapes: Mapping[str, ExecutorShape] = {each.name: each for each in provisioning.shapes}
        self.capacities = {each.name: capacity_of(each) for each in provisioning.shapes}
        self.backoffs = {each.name: Backoff() for each in provisioning.shapes}
        self.plan = LastPlan()
        self.number = 0
        self.version = 0
        self.next_pass_ms: int | None = None
        self.steps: Generator[int, None, None] | None = None
        self.planned_inputs: object = None
        self.arrived: dict[str, str] = {}
        self.resumes = False
        self.surplus: set[str] = set()
        self.lost_since_ms: dict[str, int] = {}
        self.verdicts: dict[str, bool] = {}
        self.idle_marks: dict[str, tuple[int, int]] = {}
        self.ordered_total: dict[str, int] = {}
        self.present: tuple[int, dict[str, int]] | None = None
        self.seen: dict[str, Host] = {}
        # By shape: an empty executor as the shape configures it. Its cpus are unknown.
        self._promised = {each.name: HostView.empty(host_of(each)) for each in provisioning.shapes}

    def may_order(self, shape: ExecutorShape) -> bool:
        """Returns True if the configured maximum allows at least one executor of this shape."""
        limits = self.provisioning.total_max
        return all(shape.total.get(name, 0) <= limit for name, limit in limits.items())

    def fits_a_shape(self, request: ResourceRequest, *, labels: bool = True) -> bool:
        """Returns True if an executor of some shape could serve the request when empty.

        Args:
            request: the request.
            labels: False: required labels are ignored.
        """
        fit = Fit(request)
        return any(
            self.may_order(shape) and self.obstacle(name, fit, labels=labels) is None
            for name, shape in self.shapes.items()
        )

    def obstacle(self, name: str, fit: Fit, *, labels: bool = True) -> Obstacle | None:
        """Returns why an executor of a shape could not serve a request even when empty.

        The check assumes the cpus and NUMA nodes of the executor of this shape that registered
        last. If no such executor has registered, cpus and NUMA nodes are not checked.

        Args:
            name: the name of the shape.
            fit: the constraints of the request.
            labels: False: required labels are ignored.

        Returns:
            The first obstacle; None: as far as is known, such an executor could serve the request.
        """
        besides = (CPUS,) if labels else (CPUS, LABELS)
        found = fit.size_obstacle(self._promised[name], besides=besides)
        # The configuration of a shape does not describe cpus, but a registered executor reports
        # them.
        if found is None and name in self.seen:
            return CPUS.obstacle(fit.request, HostView.empty(self.seen[name]))
        return found


def host_of(shape: ExecutorShape) -> Host:
    """Returns the ledger of an empty executor of a shape.

    Unless the shape configures another amount, the executor also offers as much best-effort cpu as
    it has normal cpu. This is the default of executors.
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
    """Returns the capacity of an empty executor of a shape, in columns of the capacity index.

    The best-effort cpu is the same as in `host_of`.
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
    """Returns how many ordered executors of a shape may still exist."""
    return sum(each.shape == name for each in provisions.values())

"""Keeps the state of automatic scaling between planning passes: executor shapes, their back-off and
the last plan.

This state is not stored: the engine computes it again after a restart. Only the requested executors
are stored (`State.provisions`).
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
"""This number stands for "no limit" where a number is needed."""

NUMBER = "provision_number"
"""Name of the durable counter of requested executors."""

PENDING = (ProvidedExecutorState.ASKED, ProvidedExecutorState.STARTED)
"""States of executors that were requested and have not registered yet."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The capacity of an executor that could be requested, or of a registered executor that has no
    slots.

    Attributes:
        amounts: the amounts of the executor in columns of the capacity index, including `SLOTS`.
        default: the amounts that one default slot books on the executor, without `SLOTS`.
        labels: the labels of the executor.
        separate: True if the executor has a separate memory pool for each memory part.
    """

    amounts: Amounts
    default: Amounts = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    separate: bool = False


@dataclass(slots=True)
class Backoff:
    """The back-off of a shape whose executors failed. Until the monotonic time `until_ms`, the
    engine requests no more executors of the shape.
    """

    # Number of failures since the last success. All failures within one back-off count as one
    # failure.
    failures: int = 0
    until_ms: int = 0
    until_time_ms: int = 0  # `until_ms` as wall clock time, to show to people
    last_failure: str = ""


@dataclass(slots=True)
class Content:
    """The requests that are planned on one executor.

    Attributes:
        classes: the number of planned requests by scheduling class.
        members: the number of planned gang members, by gang id and by the position of their request
            in the gang.
    """

    classes: dict[SchedulingClass, int] = field(default_factory=dict)
    members: dict[tuple[str, int], int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.classes or self.members)

    @property
    def gangs(self) -> dict[str, int]:
        """The number of members by gang id."""
        counts: dict[str, int] = {}
        for (gang_id, _), count in self.members.items():
            counts[gang_id] = counts.get(gang_id, 0) + count
        return counts

    @property
    def requests(self) -> int:
        """The number of all requests and members."""
        return sum(self.classes.values()) + sum(self.members.values())


@dataclass(slots=True)
class LastPlan:
    """The result of the last planning pass. If the plan contains N requests of a class, these are
    the N oldest requests of the class.

    Attributes:
        on: the requests planned on each pending executor.
        left: the number of requests that are not planned on any executor, by scheduling class.
        gangs_left: the ids of gangs that are not planned on any executor.
        counted_on: the registered executors on which the plan places members of gangs.
        blocked: the number of requests that the maximum of a group blocks, by scheduling class.
        gangs_blocked: the ids of gangs that the maximum of a group blocks.
        places: a cache: for each class, the executor on which each request is planned, by arrival
            number. The cache is valid for one state of the queue. This state (`WaitingQueue.moves`)
            is the first value of each pair.
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
        """Returns the number of requests of a class that are planned on each executor. The executor
        of the oldest requests comes first.
        """
        return self._by_class_and_gang()[0].get(scheduling_class, {})

    def planned_gang(self, gang_id: str) -> list[str]:
        """Returns the executors on which a gang is planned."""
        return self._by_class_and_gang()[1].get(gang_id, [])

    def drop(self, executor_id: str) -> Content | None:
        """Removes an executor from the plan. Returns the requests that were planned on the
        executor; None if there were no such requests.
        """
        # Both caches are computed from `on`, which has changed. So the caches are outdated.
        self.places.clear()
        self._by_owner = None
        return self.on.pop(executor_id, None)

    def _by_class_and_gang(
        self,
    ) -> tuple[dict[SchedulingClass, dict[str, int]], dict[str, list[str]]]:
        """Returns the plan by scheduling class and by gang. The result is cached, because thousands
        of requests can need it.
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
    """Executor shapes with their history, the last plan, and the time of the next planning pass.

    Attributes:
        provisioning: the settings of automatic scaling.
        shapes: the executor shapes that can be requested, by name.
        capacities: the capacity of an empty executor of each shape, by name of the shape.
        backoffs: the back-off of each shape, by name of the shape.
        plan: the result of the last planning pass.
        number: the number of the executor that was requested last.
        version: a counter that rises whenever an executor is requested, or a provision changes.
        next_pass_ms: the time of the next planning pass; None: no pass is scheduled.
        steps: the remaining steps of the running planning pass; None: no planning pass is running.
        planned_inputs: the inputs of the last plan. If the inputs have not changed, no new plan is
            needed.
        arrived: the executors that have registered since the last cycle. For each of these
            executors, the value is the id of the pending executor whose planned requests the
            executor gets. The value is empty if the executor gets no planned requests.
        resumes: True after a restart, until the unfinished orders to providers have been repeated.
        surplus: the pending executors that no request needed in the last pass.
        surplus_since_ms: the time since which each surplus executor has been surplus; see
            `scaling/emptying.py`.
        emptying: the executors that get no new slots, because they are being emptied.
        lost_since_ms: the time at which each lost executor was lost.
        verdicts: whether each executor counted as a success or as a failure of its shape. True
            means that the result is final. False means that the executor counted as a failure, but
            can still register and work.
        idle_marks: the registration number and command number that each idle executor had when it
            became idle.
        ordered_total: the total of all executors at the time of the last request for executors, in
            the dimensions to which the requested executors add capacity.
        present: a cache of the total of all executors that are not lost. `Hosts.version` shows
            whether the cache is still valid.
        seen: for each shape, by name: a copy of the executor of this shape that registered last,
            without slots.
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
        self.surplus_since_ms: dict[str, int] = {}
        self.emptying: set[str] = set()
        self.lost_since_ms: dict[str, int] = {}
        self.verdicts: dict[str, bool] = {}
        self.idle_marks: dict[str, tuple[int, int]] = {}
        self.ordered_total: dict[str, int] = {}
        self.present: tuple[int, dict[str, int]] | None = None
        self.seen: dict[str, Host] = {}
        # For each shape, an empty executor with the configured amounts and labels. The cpus of this
        # executor are unknown.
        self._promised = {each.name: HostView.empty(host_of(each)) for each in provisioning.shapes}

    def may_order(self, shape: ExecutorShape) -> bool:
        """Returns True if the configured maximum allows at least one executor of this shape."""
        limits = self.provisioning.total_max
        return all(shape.total.get(name, 0) <= limit for name, limit in limits.items())

    def fits_a_shape(self, request: ResourceRequest, *, labels: bool = True) -> bool:
        """Returns True if an empty executor of some shape could serve the request.

        Args:
            request: the request.
            labels: if true, the shape must have the required labels; otherwise labels are not
                compared.
        """
        fit = Fit(request)
        return any(
            self.may_order(shape) and self.obstacle(name, fit, labels=labels) is None
            for name, shape in self.shapes.items()
        )

    def obstacle(self, name: str, fit: Fit, *, labels: bool = True) -> Obstacle | None:
        """Returns the reason why even an empty executor of a shape could not serve a request.

        The function assumes that the executor will have the cpus and NUMA nodes of the executor of
        this shape that registered last. If no executor of this shape has registered, the function
        does not check cpus and NUMA nodes.

        Args:
            name: the name of the shape.
            fit: the constraints of the request.
            labels: if true, the shape must have the required labels; otherwise labels are not
                compared.

        Returns:
            The first obstacle; None if no obstacle is known.
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

    By default, the amount of best-effort cpu of an executor is equal to its amount of normal cpu.
    The shape can configure another amount.
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

    The amount of best-effort cpu is the amount that `host_of` uses.
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
    """Returns how many requested executors of a shape exist or possibly exist."""
    return sum(each.shape == name for each in provisions.values())

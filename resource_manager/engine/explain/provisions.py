"""Builds the view of executors from providers. The view shows the executor shapes, the requested
executors with the requests that are planned on each executor, and the requests that are not
planned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice

from finegrain.resources import Amounts
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.run_times import RunTimes
from resource_manager.engine.model.entities import Instant, Provision, Request
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.engine.placement.elastic import (
    PENDING,
    Content,
    Elastic,
    of_shape,
)
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.scaling.texts import class_text, counted, gang_text
from resource_manager.engine.state import State

_UNPLANNED_MAX = 100
"""The largest number of unplanned scheduling classes that are listed one by one. Gangs have the
same limit.
"""

_BLOCKED_BY_MAXIMUM = "the maximum of a resource group allows no more slots"


@dataclass(frozen=True, slots=True)
class ShapeView:
    """An executor shape. `executors` has the number of executors of this shape in each state. Its
    keys are the names of states in lower case.
    """

    shape: ExecutorShape
    executors: dict[str, int]
    backoff_until_time_ms: int | None
    failures: int
    last_failure: str


@dataclass(frozen=True, slots=True)
class ProvidedView:
    """A requested executor. `deadline_time_ms` is None when the executor is no longer pending, for
    example because it has registered.
    """

    provision: Provision
    deadline_time_ms: int | None
    planned: tuple[str, ...]
    planned_requests: int


@dataclass(frozen=True, slots=True)
class ProvidersView:
    """The executor shapes and the executors from providers, the limits of scaling, and the requests
    that are not planned.
    """

    shapes: list[ShapeView]
    executors: list[ProvidedView]
    minimum: Amounts
    maximum: Amounts
    present: Amounts  # the total of executors that are not lost, and of pending executors
    idle_timeout_ms: int
    unplanned: list[str]


def providers_view(state: State) -> ProvidersView:
    """Returns the view of executors from providers."""
    settings = state.settings.provisioning
    planned = _still_planned(state.gangs, state.elastic)
    return ProvidersView(
        shapes=[_shape_view(state.provisions, state.elastic, shape) for shape in settings.shapes],
        executors=[
            _provided_view(
                state.gangs,
                state.started,
                _with_end(state.run_times, state.started, state.hosts.get(each.executor_id), each),
                planned.get(each.executor_id, Content()),
            )
            for each in state.provisions.values()
        ],
        minimum=settings.total_min,
        maximum=settings.total_max,
        # Without providers there is no maximum with which the total is compared, so the total is
        # not needed.
        present=state.provision_moves.counted() if settings or state.provisions else {},
        idle_timeout_ms=settings.idle_timeout_ms if settings else 0,
        unplanned=list(_unplanned(state)) if settings else [],
    )


def _still_planned(gangs: GangLedger, elastic: Elastic) -> dict[str, Content]:
    """Returns, for each executor of the last plan, the planned requests that are still queued.

    The plan can be a second old, and contains only the number of requests of each scheduling class.
    The function distributes the requests that are still queued over the executors, in the order of
    the plan.

    Example: the plan has 3 requests on executor a and 2 on b. Only 4 requests are still queued. So
    the result has 3 requests on a, and 1 on b.
    """
    left: dict[SchedulingClass, int] = {}
    still: dict[str, Content] = {}
    for name, content in elastic.plan.on.items():
        found = still[name] = Content()
        for scheduling_class, count in content.classes.items():
            # `waiting` is the number of queued requests of this class that are not assigned to an
            # earlier executor of the plan.
            waiting = left.get(scheduling_class, scheduling_class.waiting)
            left[scheduling_class] = max(0, waiting - count)
            if waiting:
                found.classes[scheduling_class] = min(count, waiting)
        # Gangs that were placed after the plan was made are left out.
        found.members.update(
            (key, count) for key, count in content.members.items() if key[0] in gangs.waiting
        )
    return still


def _with_end(
    times: RunTimes, started: Instant, host: Host | None, provision: Provision
) -> Provision:
    """Returns a provision whose message also says when its executor will probably be empty. The
    executor can then be given back to its provider. If the run time of a slot is unknown, the
    provision is returned unchanged.
    """
    if provision.state is not ProvidedExecutorState.REGISTERED or host is None or not host.slots:
        return provision
    empty_ms = times.empty_ms(host)
    if empty_ms is None:
        return provision
    text = f"probably empty at {clock_at(started, empty_ms)}"
    if host.emptying:
        text = f"gets no new slots, so that it can be given back; {text}"
    return replace(provision, message=f"{provision.message}; {text}".removeprefix("; "))


def _provided_view(
    gangs: GangLedger, started: Instant, provision: Provision, content: Content
) -> ProvidedView:
    """Describes one requested executor. `content` contains the requests that are planned on it."""
    planned = counted(content.classes)
    planned += [
        f"{count} of {gang_text(gangs, gang_id)}" for gang_id, count in content.gangs.items()
    ]
    deadline_ms = provision.deadline_at_ms if provision.state in PENDING else None
    return ProvidedView(
        provision=provision,
        deadline_time_ms=None if deadline_ms is None else _time_ms(started, deadline_ms),
        planned=tuple(planned),
        planned_requests=content.requests,
    )


def planned_on(queue: WaitingQueue, elastic: Elastic, request: Request) -> str:
    """Returns the pending executor on which a queued request is planned. The result is empty if the
    request is not planned.

    For a member of a gang, the result is the first executor for which the gang waits.

    Args:
        queue: the queue of pending requests.
        elastic: the executors that could be requested, and the last plan.
        request: the queued request.
    """
    if not elastic.plan.on:
        return ""
    if gang_id := request.spec.gang_id:
        return next(iter(elastic.plan.planned_gang(gang_id)), "")
    # All requests of a class are equal, so the plan contains only their number. The oldest requests
    # are planned first.
    scheduling_class = queue.class_of(request.spec)
    return _places(queue, elastic, scheduling_class).get(request.arrival_number, "")


def planned_count(queue: WaitingQueue, elastic: Elastic, scheduling_class: SchedulingClass) -> int:
    """Returns the number of queued requests of a class that are planned. The planned requests are
    the oldest requests of the class.

    Args:
        queue: the queue of pending requests.
        elastic: the executors that could be requested, and the last plan.
        scheduling_class: the scheduling class.
    """
    if not elastic.plan.on:
        return 0
    return len(_places(queue, elastic, scheduling_class))


def waits_for(provisions: Mapping[str, Provision], started: Instant, executor_id: str) -> str:
    """Describes, for people, the pending executor for which a planned request waits.

    Args:
        provisions: all requested executors.
        started: the start of this resource manager, in monotonic and wall clock time.
        executor_id: the id of the pending executor.
    """
    provision = provisions[executor_id]
    text = f"planned on executor {executor_id}, which was requested at"
    text += f" {_clock(provision.ask_time_ms)} and has not registered yet"
    if provision.deadline_at_ms is None:
        return text
    at = clock_at(started, provision.deadline_at_ms)
    return f"{text}; if it has not registered by {at}, it is stopped, and another is planned"


def clock_at(started: Instant, at_ms: int) -> str:
    """Formats a monotonic time as a time of day, for people."""
    return _clock(_time_ms(started, at_ms))


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1_000, UTC).strftime("%H:%M:%S UTC")


def _places(
    queue: WaitingQueue, elastic: Elastic, scheduling_class: SchedulingClass
) -> dict[int, str]:
    """Returns, by arrival number, the executor of each planned request of a class."""
    plan, moves = elastic.plan, queue.moves
    known = plan.places.get(scheduling_class)
    # The result is cached until the queue changes, because a list of requests needs the result for
    # every request of a class.
    if known is None or known[0] != moves:
        planned = plan.planned(scheduling_class)
        names = [name for name, count in planned.items() for _ in range(count)]
        # `strict` is False, because the class can have fewer requests now: some were possibly
        # placed after the plan was made.
        places = dict(zip(scheduling_class.numbers(), names, strict=False))
        known = plan.places[scheduling_class] = (moves, places)
    return known[1]


def _shape_view(
    provisions: dict[str, Provision], elastic: Elastic, shape: ExecutorShape
) -> ShapeView:
    backoff = elastic.backoffs[shape.name]
    counts: dict[str, int] = {}
    for provision in provisions.values():
        if provision.shape == shape.name:
            name = provision.state.value.lower()
            counts[name] = counts.get(name, 0) + 1
    return ShapeView(
        shape=shape,
        executors=counts,
        backoff_until_time_ms=backoff.until_time_ms if backoff.failures else None,
        failures=backoff.failures,
        last_failure=backoff.last_failure,
    )


def _unplanned(state: State) -> list[str]:
    """Describes the requests and gangs that are not planned, with the reasons. Beyond the limit,
    requests and gangs are only counted.
    """
    plan = state.elastic.plan
    room = state.provision_moves.room_below_maximum()
    found: list[str] = []
    more = 0
    # Requests that are not planned, with their reasons, up to the limit.
    for scheduling_class, count in plan.left.items():
        # Some requests were possibly placed or cancelled after the plan was made.
        number = min(count, scheduling_class.waiting)
        if number and len(found) < _UNPLANNED_MAX:
            why = _why_not(state.provisions, state.elastic, scheduling_class, room)
            found.append(f"{counted({scheduling_class: number})[0]}: {why}")
        else:
            more += number
    if more:
        found.append(f"{more} {'request' if more == 1 else 'requests'} of other sizes")
    # Requests and gangs that a quota blocks.
    for scheduling_class, count in islice(plan.blocked.items(), _UNPLANNED_MAX):
        if number := min(count, scheduling_class.waiting):
            found.append(f"{counted({scheduling_class: number})[0]}: {_BLOCKED_BY_MAXIMUM}")
    found += [
        f"{gang_text(state.gangs, gang_id)}: {_BLOCKED_BY_MAXIMUM}"
        for gang_id in plan.gangs_blocked[:_UNPLANNED_MAX]
        if gang_id in state.gangs.waiting
    ]
    # Gangs that cannot be planned as a whole.
    gangs = [gang_id for gang_id in plan.gangs_left if gang_id in state.gangs.waiting]
    found += [
        f"{gang_text(state.gangs, gang_id)}: the executors that may be requested now cannot"
        " serve it as a whole"
        for gang_id in gangs[:_UNPLANNED_MAX]
    ]
    if len(gangs) > _UNPLANNED_MAX:
        found.append(f"{len(gangs) - _UNPLANNED_MAX} more gangs")
    return found


def _why_not(
    provisions: dict[str, Provision], elastic: Elastic, wanted: SchedulingClass, room: Amounts
) -> str:
    """Describes why no executor is requested now, for each executor shape that could serve a
    class.
    """
    reasons: dict[str, None] = {}
    fit = Fit(wanted)
    for name, shape in elastic.shapes.items():
        obstacle = elastic.obstacle(name, fit)
        refusal = obstacle.host_refusal if obstacle is not None else None
        # An executor of this shape could never serve the class.
        if obstacle is not None and refusal is None:
            continue
        backoff = elastic.backoffs[name]
        # A refusal about cpus is possible only after the first executor of the shape has
        # registered, because only then the cpus of the shape are known.
        if refusal is not None:
            registered = f"the last executor of shape {name} that registered"
            reasons[f"{registered} has unsuitable cpus and NUMA nodes: {refusal.text}"] = None
        elif not elastic.may_order(shape):
            reasons[f"one executor of shape {name} alone would exceed the maximum"] = None
        elif backoff.failures:
            reasons[f"executors of shape {name} failed recently: {backoff.last_failure}"] = None
        elif shape.count_max and of_shape(provisions, name) >= shape.count_max:
            reasons[f"shape {name} already has its largest number of executors"] = None
        elif any(shape.total.get(each, 0) > left for each, left in room.items()):
            reasons["the maximum is reached"] = None
        else:
            reasons["the maximum would be exceeded"] = None
    return "; ".join(reasons) or f"no shape could serve {class_text(wanted)}"


def _time_ms(started: Instant, at_ms: int) -> int:
    """Converts monotonic time to wall clock time. The result is wrong if the wall clock was changed
    after the start of the resource manager.
    """
    return started.time_ms + at_ms - started.monotonic_ms

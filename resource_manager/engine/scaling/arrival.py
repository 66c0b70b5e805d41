"""Handles executors that register. Finds the provision of each executor (the durable record of its
request to a provider), and places the requests that are planned on the executor.

An executor and its provision have the same id. Requests that are planned on the executor are placed
before all other requests. Planned requests that do not fit stay queued, and are planned again. If
planned requests would not even fit the empty executor, the executor is smaller than its provider
promised, and its shape gets a back-off.

An executor that no provider started takes over the plan of the most similar pending executor. An
executor that a provider started for an unknown provision is adopted: it gets a new provision, so
that it is given back when it is idle. A provision is unknown if it was given up, or if it is newer
than the stored state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from finegrain.resources import shortfall
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.provisions import ProvisionMoves
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks, maxima
from resource_manager.engine.model.entities import Provision, Request
from resource_manager.engine.model.texts import amounts_text
from resource_manager.engine.placement.constraint import Constraint, HostView
from resource_manager.engine.placement.elastic import PENDING, Content, Elastic
from resource_manager.engine.placement.fit import AMOUNTS, CPUS, LABELS, Fit
from resource_manager.engine.placement.placer import Placer
from resource_manager.engine.placement.tentative_cpus import TentativeCpus, as_if_empty
from resource_manager.engine.planning.topology import empty_like
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.scaling.texts import class_text, gang_text
from resource_manager.engine.state import State


def executor_came(state: State, executor_id: str, *, new: bool) -> None:
    """Finds the provision of an executor that has registered, or lets the executor take over a
    plan.

    Args:
        state: the state of the engine.
        executor_id: the id of the executor.
        new: whether the executor was unknown before.
    """
    elastic, host = state.elastic, state.hosts[executor_id]
    provision = state.provisions.get(host.host_id)
    of_shape = provision.shape if provision is not None else host.executor.registration.provided_as
    if of_shape in elastic.shapes:
        elastic.seen[of_shape] = empty_like(host)
    if provision is not None:
        # If the provision is not pending, the executor registers again, and its planned requests
        # were placed before.
        if provision.state in PENDING:
            elastic.arrived[host.host_id] = host.host_id
        state.provision_moves.registered(provision, host)
        return
    if not elastic.provisioning:
        return
    # Only a new executor takes over a plan, because an executor that registers again has already
    # done this.
    if new:
        elastic.arrived[host.host_id] = _nearest(state.provisions, state.elastic, host)
    shape = host.executor.registration.provided_as
    if shape in elastic.shapes:
        _adopt(state, host, shape)


def _adopt(state: State, host: Host, shape: str) -> None:
    """Creates a provision for an executor of a provider's shape that has no known provision."""
    message = "it registered although no request waited for it any more"
    provision = Provision(
        executor_id=host.host_id,
        shape=shape,
        number=state.provision_moves.next_number(),
        cause=message,
        ask_time_ms=state.journal.at.time_ms,
        state=ProvidedExecutorState.REGISTERED,
        message="registered",
    )
    state.provisions[host.host_id] = provision
    state.changes.provision(provision)
    state.elastic.version += 1
    state.journal.cluster_event("provision_adopted", executor_id=host.host_id, message=message)


def _nearest(provisions: dict[str, Provision], elastic: Elastic, host: Host) -> str:
    """Returns the id of the most similar pending executor whose labels this host carries. The id is
    empty if there is no such executor.

    The difference of two executors is the sum over all dimensions of |a - b| / max(a, b). If
    several executors have the same difference, the oldest of them is returned. Example: 4 cpus
    instead of 8 and equal memory give a difference of 0.5.
    """
    total = host.executor.registration.total
    best: tuple[float, int, str] | None = None
    for provision in provisions.values():
        shape = elastic.shapes.get(provision.shape)
        if provision.state not in PENDING or shape is None:
            continue
        if not host.carries(shape.labels):
            continue
        apart = 0.0
        for name in total.keys() | shape.total.keys():
            one, other = total.get(name, 0), shape.total.get(name, 0)
            if one != other:
                apart += abs(one - other) / max(one, other)
        if best is None or (apart, provision.number) < best[:2]:
            best = (apart, provision.number, provision.executor_id)
    return best[2] if best is not None else ""


def hand_over(state: State) -> None:
    """Places the requests that are planned on the newly registered executors, before all other
    requests.
    """
    elastic = state.elastic
    placed: list[Content] = []
    for host_id, promised in elastic.arrived.items():
        host = state.hosts.get(host_id)
        content = elastic.plan.on.get(promised)
        # If this executor took over the plan of another executor, keep the plan, because the other
        # executor can still register.
        if promised == host_id:
            elastic.plan.drop(promised)
            if host is not None:
                _judge(state.gangs, state.provision_moves, host, content or Content())
        if host is not None and content is not None and host.eligible:
            _place(state, host, content)
            state.hosts.touch(host)
            placed.append(content)
    # A gang could take room on another new executor that this executor needs for its own planned
    # requests. So place gangs after the planned requests of all new executors.
    for content in placed:
        _place_gangs(state, content)
    elastic.arrived.clear()


def _judge(
    gangs: GangLedger, provision_moves: ProvisionMoves, host: Host, content: Content
) -> None:
    """Checks whether an executor has the capacity that its provider promised: the requests that are
    planned on the executor must fit on it.

    If the executor could not serve these requests even when empty, its shape gets a back-off.
    Without the back-off, executors of this shape would be requested and given back again and again.
    """
    elastic, provision = provision_moves.elastic, provision_moves.provisions[host.host_id]
    shape = elastic.shapes.get(provision.shape)
    if shape is None:
        return
    # The first reason is enough for a failure.
    lack = next(_lacks(gangs, host, content), "")
    if lack:
        # this verdict is final, even if other requests use the executor
        elastic.verdicts[host.host_id] = True
        message = (
            f"{host.host_id}: registered with {amounts_text(host.executor.registration.total)}"
        )
        message += f" (promised: {amounts_text(shape.total)}); {lack}"
        provision_moves.back_off(shape.name, message)
    elif content:
        # Executors of the shape can be requested again. The failures of the shape are cleared when
        # a slot runs on the executor.
        elastic.backoffs[shape.name].until_ms = 0
    else:
        provision_moves.proved(provision)


_LACKS: dict[Constraint, str] = {
    LABELS: "it lacks labels that are required by requests of",
    AMOUNTS: "it is too small for requests of",
    CPUS: "its cpus and NUMA nodes do not suit requests of",
}


def _lacks(gangs: GangLedger, host: Host, content: Content) -> Iterator[str]:
    """Yields the reasons why requests that are planned on an executor would not even fit the empty
    executor.
    """
    total, empty = host.total, HostView.empty(host)
    for scheduling_class in content.classes:
        obstacle = Fit(scheduling_class).size_obstacle(empty)
        if obstacle is not None:
            yield f"{_LACKS[obstacle.constraint]} {class_text(scheduling_class)}"
    # The members of a gang need room at the same time, so their amounts are added up.
    together: dict[str, dict[str, int]] = {}
    trials = TentativeCpus(as_if_empty)
    for (gang_id, number), count in content.members.items():
        if (waiting := gangs.waiting.get(gang_id)) is None:
            continue
        member = waiting.kind.member_requests[number]
        if not host.carries(member.labels):
            yield f"it lacks labels that are required by members of {gang_text(gangs, gang_id)}"
        need = host.booking_for(member)
        sums = together.setdefault(gang_id, {})
        for name, amount in need.items():
            sums[name] = sums.get(name, 0) + amount * count
        if trials.fit(member, host, count) < count:
            title = gang_text(gangs, gang_id)
            yield f"its cpus and NUMA nodes do not suit the planned members of {title}"
    for gang_id, sums in together.items():
        if shortfall(sums, total):
            yield f"it is too small for the planned members of {gang_text(gangs, gang_id)}"


def _place_gangs(state: State, content: Content) -> None:
    """Tries to place the planned gangs. A gang that does not fit stays queued.

    Callers must first place the planned requests outside gangs, because a gang is tried on all
    hosts and could take the room of these requests.
    """
    for gang_id in content.gangs:
        waiting = state.gangs.waiting.get(gang_id)
        if waiting is None:
            continue
        if state.quotas.gang_block(waiting) is not None:
            continue
        # The requests and gangs that were just placed have changed the free capacity, so refresh
        # the indexes.
        state.hosts.refresh(state.queue)
        placing = Placer(state.hosts)
        state.gang_moves.try_gang(
            placing, NonBatchable(waiting.gang.arrival_number, Kind.GANG, gang_id)
        )
        placing.finish()


def _place(state: State, host: Host, content: Content) -> None:
    """Places as many of the planned requests as fit, in order of arrival."""
    # Collect candidates among the planned requests, without requests that a quota blocks.
    candidates: list[tuple[int, SchedulingClass, Request]] = []
    left = {
        scheduling_class: count
        for scheduling_class, count in content.classes.items()
        if host.carries(scheduling_class.labels)
    }
    for scheduling_class, count in left.items():
        numbers = _first_admitted(state.flows, state.quotas, scheduling_class, count)
        candidates += [(number, scheduling_class, state.requests.at(number)) for number in numbers]
    # Sort by arrival number, so that the oldest requests come first. Consecutive requests of one
    # class and job are placed together.
    candidates.sort(key=lambda each: each[0])
    for (scheduling_class, job_id), run in groupby(
        candidates, key=lambda each: (each[1], each[2].job_id)
    ):
        requests = [
            request
            for _, _, request in run
            if not _still_holds_older_slot(state.slots, request, host)
        ]
        # Read the room and the quota again, because earlier iterations have used a part of them.
        most = min(len(requests), left[scheduling_class], _room_for(host, scheduling_class))
        if fitting := requests[: state.quotas.admitted_of(scheduling_class, job_id, most)]:
            state.moves.place(fitting, host)
            state.queue.served(scheduling_class, fitting)
            left[scheduling_class] -= len(fitting)


def _first_admitted(
    flows: FlowTree, quotas: QuotaChecks, scheduling_class: SchedulingClass, count: int
) -> Iterable[int]:
    """Returns the lowest arrival numbers of a class that the quotas admit, up to `count` numbers.

    If any group has a maximum, the function returns up to `count` numbers of each job. A quota
    possibly blocks some of these requests later, and requests of other jobs are placed instead.
    """
    if not maxima(flows):
        return islice(scheduling_class.numbers(), count)
    return [
        number
        for job_id, job_queue in scheduling_class.job_queues.items()
        for start, end in job_queue.numbers.peek(
            quotas.admitted_of(scheduling_class, job_id, count)
        )
        for number in range(start, end)
    ]


def _room_for(host: Host, scheduling_class: SchedulingClass) -> int:
    need, spare = host.booking_for(scheduling_class), host.spare()
    if not need:
        return 0
    fits = [spare.get(name, 0) // amount for name, amount in need.items()]
    room = min([host.spare_slots(), *fits])
    return (
        len(host.assign_many(scheduling_class, room))
        if host.needs_topology(scheduling_class)
        else room
    )


def _still_holds_older_slot(slots: Slots, request: Request, host: Host) -> bool:
    """Returns whether an older slot of the request is still being freed on the executor."""
    superseded_slots = slots.superseded.get(request.allocation_id, ())
    return any(slot.executor_id == host.host_id for slot in superseded_slots)

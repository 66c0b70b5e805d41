"""The maxima of groups, as those meet them who wait: how many may be placed, who is stopped by
what, and when that may have changed.

Decides with the sums of `limits.py` and what a slot books at most. Whoever is stopped has no turn
until the group has less, or may have more; nobody else is held back. Refuses to know what fits
where.
"""

from __future__ import annotations

from functools import partial

from finegrain.resources import Amounts
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import GROUP, Flow, FlowTree
from resource_manager.engine.fairness.quotas import Stop, counted, room, stopped_by, whole
from resource_manager.engine.hosts.bookings import shared_booking
from resource_manager.engine.lifecycle.resizes import growth
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.gangs import WaitingGang
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.state import State

SHAPES_ASKED_MAX = 64
"""With more shapes that there is room for, lines are stopped one by one."""


def limited(state: State, job_id: str) -> list[Flow]:
    """The groups above a job that have a maximum, the nearest first."""
    flow = state.flows.jobs.get(job_id)
    return [] if flow is None else [group for group in flow.ancestors() if group.maximum]


def maxima(flows: FlowTree) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """All groups that have a maximum, with what they may have more of each dimension of it: as long
    as that stays the same, so does what they admit.
    """
    return tuple(
        (flow.id, tuple(limit - flow.used.get(name, 0) for name, limit in flow.maximum.items()))
        for flow in flows.groups.values()
        if flow.maximum
    )


def admitted(state: State, line: JobQueue, most: int) -> int:
    """How many of a line may be placed now, at most so many; if none, the line is stopped, or all
    of the group with it, if that admits nothing else that there is room for either.
    """
    groups = limited(state, line.job_id)
    if not groups:
        return most
    need = booked_at_most(state.hosts, state.costs, line.shape)
    found = room(groups, need, most)
    stop = stopped_by(groups, need) if not found else None
    if stop is not None and not (
        _is_full(state.hosts, state.queue, state.costs, groups, stop.group_id)
        and state.queue.turns.halt(stop.group_id)
    ):
        state.queue.stop(line, stop.group_id)
    return found


def _is_full(
    hosts: Hosts, queue: WaitingQueue, costs: Costs, groups: list[Flow], group_id: str
) -> bool:
    """True if a group admits none of the shapes that there is room for."""
    group = [each for each in groups if each.id == group_id]
    roomy = queue.roomy
    return len(roomy) <= SHAPES_ASKED_MAX and not any(
        room(group, booked_at_most(hosts, costs, shape), 1) for shape in roomy
    )


def admitted_of(state: State, shape: SchedulingClass, job_id: str, most: int) -> int:
    """Likewise of a job's requests of a shape; nobody is stopped for it."""
    groups = limited(state, job_id)
    return room(groups, booked_at_most(state.hosts, state.costs, shape), most) if groups else most


def request_stop(state: State, shape: SchedulingClass, job_id: str) -> Stop | None:
    """The maximum that one request of a job does not get past."""
    groups = limited(state, job_id)
    return stopped_by(groups, booked_at_most(state.hosts, state.costs, shape)) if groups else None


def gang_stop(state: State, waiting: WaitingGang) -> Stop | None:
    """The maximum that a gang does not get past as a whole."""
    groups = limited(state, waiting.gang.job_id)
    return (
        stopped_by(groups, gang_need(state.hosts, state.queue, state.costs, waiting))
        if groups
        else None
    )


def gang_need(hosts: Hosts, queue: WaitingQueue, costs: Costs, waiting: WaitingGang) -> Amounts:
    """What the members of a gang book at most together."""
    shapes = [queue.shape_of(member.spec) for member in waiting.members]
    return whole((booked_at_most(hosts, costs, shape), 1) for shape in shapes)


def growth_stop(state: State, job_id: str, more: Amounts) -> Stop | None:
    """The maximum that a slot of a job does not get past that is to grow by so much."""
    groups = limited(state, job_id)
    return stopped_by(groups, counted(more)) if groups else None


def single_stop(state: State, single: NonBatchable) -> Stop | None:
    """The maximum that stops what waits one by one."""
    if not limited(state, single.job_id):
        return None
    if single.kind is Kind.GANG:
        waiting = state.gangs.waiting.get(single.name)
        return gang_stop(state, waiting) if waiting is not None else None
    slot = state.slots.get((single.name, single.generation))
    if slot is None or slot.wanted is None:
        return None
    return growth_stop(state, slot.job_id, growth(state.hosts[slot.executor_id], slot))


def ease(state: State, most: int) -> int:
    """Lets those be tried again whom a maximum has stopped that may stop them no more, so many
    lines at most; answers with how many. `flows.loosened` keeps groups of which some are left:
    none of those who were eased is among them again before the group has more than now.
    """
    queue, loosened = state.queue, state.flows.loosened
    if queue.stopped_at_version != state.hosts.version:  # default slots may be others now
        queue.stopped_at_version = state.hosts.version
        loosened.update(dict.fromkeys([*queue.stopped.groups, *queue.singles.stopped_by]))
        queue.end_rest()
    left = most
    while loosened and left > 0:
        group_id = next(iter(loosened))
        left -= queue.ease(group_id, partial(_admits, state, group_id), left)
        if left:
            del loosened[group_id]
    return most - left


def _admits(state: State, group_id: str, shape: SchedulingClass) -> bool:
    """True if the maximum of a group lets one more of a shape be placed."""
    group = state.flows.groups.get(group_id.removeprefix(GROUP))
    return group is None or bool(room([group], booked_at_most(state.hosts, state.costs, shape), 1))


def booked_at_most(hosts: Hosts, costs: Costs, shape: SchedulingClass) -> Amounts:
    """What one slot books, wherever it goes, as limits count it; of default slots, what the largest
    one books on any executor. Empty: no executor is known.
    """
    version = hosts.version
    if shape.need is None or shape.need[0] != version:
        shape.need = version, _booked_at_most(hosts, costs, shape)
    return shape.need[1]


def cost_of(hosts: Hosts, costs: Costs, shape: SchedulingClass) -> float:
    """What one slot costs per second, at most."""
    return costs.of(booked_at_most(hosts, costs, shape))


def _booked_at_most(hosts: Hosts, costs: Costs, shape: SchedulingClass) -> dict[str, int]:
    if shape.profile is not None:
        return counted(shared_booking(shape.profile, costs.in_parts, shape.best_effort))
    most: dict[str, int] = {}
    for host in hosts.values():
        for name, amount in counted(host.booking_for(shape)).items():
            most[name] = max(most.get(name, 0), amount)
    return most

"""Translates queued requests into the backlog of numbers that planning takes, and a plan back into
executors to order.

The first `planned_requests_max` queued requests are planned. Left out are:
- those that an executor with room refused lately, because it is tried again soon;
- those that the maximum of a group would not admit;
- those that no pending or orderable executor could serve. However many these are, they do not use
  up the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import merge
from itertools import islice

from finegrain.values.states import GangPlacement
from resource_manager.engine.context import EventContext
from resource_manager.engine.fairness.quotas import QuotaLedger
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.quota_checks import (
    maxima,
)
from resource_manager.engine.model.scheduling_key import SLOTS, SchedulingKey, in_grains
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.engine.placement.elastic import (
    PENDING,
    UNBOUNDED,
    Capacity,
    Content,
    LastPlan,
    of_shape,
)
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.planning.exactness import amounts_of, counted, offering, together
from resource_manager.engine.planning.gang_feasibility import wish_of
from resource_manager.engine.planning.gang_planning import GangWish
from resource_manager.engine.planning.packing import Counts, Wish
from resource_manager.engine.planning.planning import Backlog, Plan, Supply, make_plan
from resource_manager.engine.queue.gangs import GangLedger, WaitingGang
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.scaling.texts import cause_of
from resource_manager.engine.state import State

_Member = tuple[str, int]
"""Equal members of a gang: the gang's id, and the index of the member request within the gang."""

PATIENCE = 3
"""After this many refusals in a row by one executor, a scheduling class is planned on others."""


def plan_waiting(context: EventContext) -> None:
    """Plans for queued requests if anything has changed, and orders the missing executors."""
    state, elastic = context.state, context.state.elastic
    shapes = context.state.provision_moves.requestable_shapes()
    # Everything that the result of a plan depends on; if it is as last time, so is the plan.
    now = (
        state.queue.moves + state.gangs.moves,
        state.hosts.version,
        elastic.version,
        tuple(shape.name for shape in shapes),
        maxima(state.flows),
    )
    if now == elastic.looked_at and not state.gangs.waiting and not state.hosts.refusing:
        return
    builder = _BacklogBuilder(state, shapes)
    if shapes or builder.pending:
        plan = make_plan(builder.backlog)
        elastic.plan = builder.last_plan(plan)
        for new in plan.new:
            content = builder.content(new.content)
            provision = context.state.provision_moves.request_executor(
                shapes[new.supply], cause_of(state.gangs, content)
            )
            elastic.plan.on[provision.executor_id] = content
    else:
        elastic.plan = _empty_plan(state.gangs, state.queue)
    elastic.looked_at = (*now[:2], elastic.version, *now[3:])


def _empty_plan(gangs: GangLedger, queue: WaitingQueue) -> LastPlan:
    left = {scheduling_class: scheduling_class.waiting for scheduling_class in queue.classes()}
    return LastPlan(left=left, gangs_left=sorted(gangs.waiting))


class _BacklogBuilder:
    """Translates queued requests into numbers, and a plan of numbers back.

    A request kind is a scheduling class or equal members of a gang. Its number is its index in the
    lists `_wishes` and `_owners`.

    Attributes:
        pending: provisions that have not registered, oldest first.
        backlog: everything that a plan is made of.
    """

    def __init__(self, state: State, shapes: list[ExecutorShape]) -> None:
        self._state = state
        self._wishes: list[Wish] = []
        self._owners: list[SchedulingClass | _Member] = []  # by kind number
        elastic = state.elastic
        self.pending = [
            each
            for each in state.provisions.values()
            if each.state in PENDING and each.shape in elastic.shapes
        ]
        self._unservable: list[SchedulingClass] = []
        self._unservable_gangs: list[str] = []
        self._ledger = QuotaLedger()
        self._blocked: dict[SchedulingClass, int] = {}  # requests that quotas do not admit
        self._blocked_gangs: list[str] = []
        names = {shape.name for shape in shapes} | {each.shape for each in self.pending}
        self._names = sorted(names)
        # Kinds for which amounts alone do not tell how many fit.
        self._topology_constrained: dict[int, ResourceRequest] = {}
        queued = self._queued_requests() if shapes or self.pending else []
        gangs = self._gangs([number for number, _ in queued]) if shapes or self.pending else []
        self._together = together(gangs)
        self.backlog = Backlog(
            wishes=self._wishes,
            line=_runs(queued),
            supplies=[self._supply(shape) for shape in shapes],
            pending={each.executor_id: self._capacity(each.shape) for each in self.pending},
            gangs=gangs,
            hosts=_free_hosts(state.hosts, self._wishes, gangs, self._topology_constrained),
            limits=state.provision_moves.room_below_maximum(),
            kept=self._kept(),
        )

    def last_plan(self, plan: Plan) -> LastPlan:
        """Returns a plan in terms of scheduling classes, gangs and executors."""
        left: dict[SchedulingClass, int] = {
            scheduling_class: scheduling_class.waiting for scheduling_class in self._unservable
        }
        for kind, count in plan.left.items():
            owner = self._owners[kind]
            if isinstance(owner, SchedulingClass):
                left[owner] = count
        gangs = {owner[0] for owner in self._owners if not isinstance(owner, SchedulingClass)}
        gangs -= {self._gang_of(self.backlog.gangs[at]) for at in plan.gangs}
        gangs.update(self._unservable_gangs)
        on = {name: self.content(content) for name, content in plan.pending.items()}
        return LastPlan(
            on, left, sorted(gangs), plan.counted_on, self._blocked, self._blocked_gangs
        )

    def content(self, counts: Counts) -> Content:
        """Returns what is planned on one executor."""
        content = Content()
        for kind, count in sorted(counts.items()):
            owner = self._owners[kind]
            if isinstance(owner, SchedulingClass):
                content.shapes[owner] = count
            else:
                content.members[owner] = count
        return content

    def _gang_of(self, wish: GangWish) -> str:
        owner = self._owners[next(iter(wish.members))]
        return "" if isinstance(owner, SchedulingClass) else owner[0]

    def _queued_requests(self) -> list[tuple[int, int]]:
        """Returns (arrival number, kind) of the first queued requests, in order of arrival."""
        most = self._state.settings.provisioning.planned_requests_max
        refused = _refused_lately(self._state.hosts)
        found: list[tuple[SchedulingClass, int]] = []
        for scheduling_class in self._state.queue.classes():
            if scheduling_class.key in refused:
                continue
            if not self._is_served(scheduling_class):
                self._unservable.append(scheduling_class)
                continue
            kind = self._kind(
                Wish(*scheduling_class.amounts, scheduling_class.labels),
                scheduling_class,
                scheduling_class,
            )
            found.append((scheduling_class, kind))
        admitted = self._admitted([scheduling_class for scheduling_class, _ in found])
        runs = [
            _arrivals(scheduling_class, kind, admitted.get(scheduling_class))
            for scheduling_class, kind in found
        ]
        return list(islice(merge(*runs), most))

    def _admitted(
        self, scheduling_classes: list[SchedulingClass]
    ) -> dict[SchedulingClass, dict[JobQueue, int]]:
        """Returns how many requests of each job queue quotas would admit if there were capacity for
        all.

        Only scheduling classes are in the result of which some requests are not admitted.
        """
        state = self._state
        if not maxima(state.flows):
            return {}
        found: dict[SchedulingClass, dict[JobQueue, int]] = {}
        job_queues = [
            job_queue
            for scheduling_class in scheduling_classes
            for job_queue in scheduling_class.job_queues.values()
        ]
        for job_queue in sorted(job_queues, key=lambda job_queue: job_queue.numbers.first):
            need, count = (
                state.quotas.largest_booking(job_queue.scheduling_class),
                len(job_queue.numbers),
            )
            here = self._ledger.admit(state.quotas.limited(job_queue.job_id), need, count)
            found.setdefault(job_queue.scheduling_class, {})[job_queue] = here
            if here < count:
                left = self._blocked.get(job_queue.scheduling_class, 0) + count - here
                self._blocked[job_queue.scheduling_class] = left
        return {scheduling_class: found[scheduling_class] for scheduling_class in self._blocked}

    def _kind(self, wish: Wish, owner: SchedulingClass | _Member, request: ResourceRequest) -> int:
        kind = len(self._wishes)
        if request.topology_constrained or (
            self._state.hosts.indexes.aligning and not isinstance(owner, SchedulingClass)
        ):
            self._topology_constrained[kind] = request
            wish = counted(wish, kind)
        self._wishes.append(wish)
        self._owners.append(owner)
        return kind

    def _capacity(self, name: str) -> Capacity:
        elastic = self._state.elastic
        seen = elastic.seen.get(name)
        return offering(elastic.capacities[name], seen, self._topology_constrained, self._together)

    def _supply(self, shape: ExecutorShape) -> Supply:
        most = UNBOUNDED
        if shape.count_max:
            most = max(0, shape.count_max - of_shape(self._state.provisions, shape.name))
        return Supply(self._capacity(shape.name), shape.total, shape.cost, most)

    def _gangs(self, arrivals: list[int]) -> list[GangWish]:
        """Returns the queued gangs to plan, in queue order.

        `arrivals` are the arrival numbers of the planned requests: a gang is planned after those
        that came before it.
        """
        wished: list[GangWish] = []
        at, left = 0, self._state.settings.provisioning.planned_requests_max
        for waiting in self._state.gangs.in_order():
            if not any(
                self._is_served(scheduling_class)
                for scheduling_class in _classes_of(self._state.queue, waiting)
            ):
                self._unservable_gangs.append(waiting.gang.gang_id)
                continue
            groups = self._state.quotas.limited(waiting.gang.job_id)
            if groups and not self._ledger.admit(
                groups,
                self._state.quotas.gang_need(waiting),
                1,
            ):
                self._blocked_gangs.append(waiting.gang.gang_id)
                continue
            left -= len(waiting.members)
            if left < 0 and wished:
                break
            while at < len(arrivals) and arrivals[at] < waiting.gang.arrival_number:
                at += 1
            wished.append(self._gang(waiting, at))
        return wished

    def _gang(self, waiting: WaitingGang, before: int) -> GangWish:
        gang_id = waiting.gang.gang_id
        members = {
            self._kind(wish_of(each), (gang_id, number), each): each.count
            for number, each in enumerate(waiting.kind.member_requests)
        }
        where = waiting.kind.where
        return GangWish(members, where.placement, where.label, before)

    def _is_served(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if a pending or orderable executor could serve one request of the class."""
        fit = Fit(scheduling_class)
        return any(self._state.elastic.obstacle(name, fit) is None for name in self._names)

    def _kept(self) -> dict[str, Counts]:
        """Returns the last plan as numbers, without kinds that are no longer queued."""
        kinds = {owner: kind for kind, owner in enumerate(self._owners)}
        kept: dict[str, Counts] = {}
        for name, content in self._state.elastic.plan.on.items():
            planned: list[tuple[SchedulingClass | _Member, int]] = [*content.shapes.items()]
            planned += content.members.items()
            kept[name] = {kinds[owner]: count for owner, count in planned if owner in kinds}
        return kept


def _classes_of(queue: WaitingQueue, waiting: WaitingGang) -> Iterator[SchedulingClass]:
    for member in waiting.kind.member_requests:
        yield queue.class_for(member.key)


def _arrivals(
    scheduling_class: SchedulingClass, kind: int, admitted: Mapping[JobQueue, int] | None
) -> Iterator[tuple[int, int]]:
    """Yields (arrival number, kind) in order of arrival; `admitted` limits each job queue."""
    if admitted is None:
        for start, end in scheduling_class.runs():
            for number in range(start, end):
                yield number, kind
        return
    job_queues = [islice(_numbers(job_queue), count) for job_queue, count in admitted.items()]
    for number in merge(*job_queues):
        yield number, kind


def _numbers(job_queue: JobQueue) -> Iterator[int]:
    for start, end in job_queue.numbers.runs():
        yield from range(start, end)


def _runs(queued: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins equal kinds that follow each other: returns (kind, how many)."""
    runs: list[tuple[int, int]] = []
    last, count = -1, 0
    for _, kind in queued:
        if kind == last:
            count += 1
            continue
        if count:
            runs.append((last, count))
        last, count = kind, 1
    if count:
        runs.append((last, count))
    return runs


def _free_hosts(
    hosts: Hosts, wishes: list[Wish], gangs: list[GangWish], exact: Mapping[int, ResourceRequest]
) -> dict[str, Capacity]:
    """Returns the free capacity of known executors, as far as members of gangs could use it.

    Only executors with room for at least one member count. As many of them as there are members are
    enough, unless the gang needs one label value: then all count.
    """
    index = hosts.indexes.main
    members = sum(sum(gang.members.values()) for gang in gangs)
    found: set[str] = set()
    for gang in gangs:
        most = None if gang.placement is GangPlacement.SAME_LABEL else members
        for kind in gang.members:
            wish = wishes[kind]
            with_room = (
                index.ids[at]
                for at in index.covering([amounts_of(wish.pooled), amounts_of(wish.separate)])
                if carries(hosts[index.ids[at]], wish.labels)
                and (kind not in exact or hosts[index.ids[at]].suits(exact[kind]))
            )
            found.update(islice(with_room, most))
    free: dict[str, Capacity] = {}
    for host_id in sorted(found):
        host = hosts[host_id]
        if host.eligible and (slots := host.spare_slots()):
            counted_together = [gang.members for gang in gangs]
            free[host_id] = offering(_free_of(host, slots), host, exact, counted_together)
    return free


def _free_of(host: Host, slots: int) -> Capacity:
    return Capacity(
        {**in_grains(host.spare()), SLOTS: slots},
        host.default_need,
        host.labels,
        host.separate_pools,
    )


def _refused_lately(hosts: Hosts) -> set[SchedulingKey]:
    """Returns the scheduling classes that executors with room refused and will be tried with again
    soon.
    """
    return {
        key
        for name in hosts.refusing
        if (host := hosts.get(name)) is not None
        for key, refusal in host.refusals.items()
        if refusal.active and refusal.failures <= PATIENCE
    }

"""Translates queued requests into the numbers that the planner uses, and translates the finished
plan into requests for executors.

The planner plans the first `planned_requests_max` queued requests. Requests of these three kinds
are not planned, and do not count in this limit:
- requests that an executor with room refused recently, because that executor will be tried again
  soon;
- requests that would exceed the maximum of a group;
- requests that neither a pending executor nor an executor that can be requested can serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from finegrain.intervals import Run
from resource_manager.engine.fairness.quotas import QuotaLedger, needs_slots
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.lifecycle.provisions import ProvisionMoves
from resource_manager.engine.lifecycle.quota_checks import maxima
from resource_manager.engine.model.entities import Provision
from resource_manager.engine.model.scheduling_key import SchedulingKey
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.elastic import (
    PENDING,
    UNBOUNDED,
    Content,
    LastPlan,
    of_shape,
)
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.planning.draft import Supply
from resource_manager.engine.planning.gang_feasibility import demand_of
from resource_manager.engine.planning.gangs import GangDemand
from resource_manager.engine.planning.packing import Counts, Demand, Entry
from resource_manager.engine.planning.planning import Backlog, New, Plan, plan_in_steps
from resource_manager.engine.planning.steps import Steps
from resource_manager.engine.planning.topology import counted, together, with_counts
from resource_manager.engine.queue.gangs import GangLedger, WaitingGang
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.scaling.free_hosts import free_hosts
from resource_manager.engine.scaling.texts import cause_of
from resource_manager.engine.state import State

_Member = tuple[str, int]
"""Equal members of a gang: the id of the gang, and the position of the members' request in the
gang's list.
"""

_Interval = tuple[int, int, int]
"""Consecutive requests of one kind: the first arrival number, the last arrival number plus 1, and
the number of the kind.
"""

PATIENCE = 3
"""After an executor has refused a scheduling class this many times in a row, the class is planned
on other executors.
"""

_INTERVALS_MAX = 20_000
"""When the list of intervals has this many more intervals than needed, it is sorted and shortened
to the needed intervals.
"""

_ORDERS_PER_STEP = 100

_WORK_PER_CLASS = 10
_WORK_PER_ORDER = 50
"""The work of handling one scheduling class, or of requesting one executor, in units of `Steps`."""


def plan_waiting(state: State) -> Steps[None]:
    """Makes a plan for the queued requests, if the input has changed since the last plan. Requests
    the additional executors that the plan needs.

    Planning can take several cycles. Requests that are placed or cancelled during these cycles are
    left out when executors are requested, and the next pass plans again.
    """
    elastic, moves = state.elastic, state.provision_moves
    shapes = moves.requestable_shapes()
    # Without gangs and refusals, the plan depends only on these values. If these values have not
    # changed, a new plan would be equal to the last plan.
    now = (
        state.queue.moves + state.gangs.moves,
        state.hosts.version,
        elastic.version,
        tuple(shape.name for shape in shapes),
        maxima(state.flows),
    )
    # With gangs or refusals, always make a new plan: these values show neither a change of the free
    # capacity that gangs use nor the end of a refusal.
    if now == elastic.planned_inputs and not state.gangs.waiting and not state.hosts.refusing:
        return
    builder, ordered = _BacklogBuilder(state, shapes), 0
    if shapes or builder.pending:
        plan = yield from plan_in_steps((yield from builder.build()))
        elastic.plan = builder.last_plan(plan)
        ordered = yield from builder.order(plan.new)
    else:
        elastic.plan = _empty_plan(state.gangs, state.queue)
    # The executors that this plan has requested have increased the version, but they are no reason
    # to plan again.
    elastic.planned_inputs = (*now[:2], now[2] + ordered, *now[3:])


def note_totals(moves: ProvisionMoves, ordered: Iterable[ExecutorShape]) -> None:
    """Stores the total of all executors after executors were requested. The invariant checks read
    it.

    Only the dimensions of the requested executors are stored. In other dimensions, executors that
    no provider started possibly exceed the maximum.
    """
    names = {name for shape in ordered for name in shape.total}
    if names and moves.settings.provisioning.total_max:
        there = moves.counted()
        moves.elastic.ordered_total = {name: there[name] for name in names}


def more_of(provisions: Mapping[str, Provision], shape: ExecutorShape) -> int:
    """Returns the number of executors of a shape that its `count_max` still allows."""
    if not shape.count_max:
        return UNBOUNDED
    return max(0, shape.count_max - of_shape(provisions, shape.name))


def _empty_plan(gangs: GangLedger, queue: WaitingQueue) -> LastPlan:
    left = {scheduling_class: scheduling_class.waiting for scheduling_class in queue.classes()}
    return LastPlan(left=left, gangs_left=sorted(gangs.waiting))


class _BacklogBuilder:
    """Translates queued requests into numbers, and translates a plan of numbers back.

    A kind of requests is a scheduling class, or equal members of a gang. The number of a kind is
    its index in the lists `_demands` and `_owners`.

    Attributes:
        pending: the provisions whose executors have not registered. The oldest provision comes
            first.
    """

    def __init__(self, state: State, shapes: list[ExecutorShape]) -> None:
        self._state = state
        self._shapes = shapes
        self._demands: list[Demand] = []
        self._owners: list[SchedulingClass | _Member] = []  # the index is the number of the kind
        elastic = state.elastic
        self.pending = [
            each
            for each in state.provisions.values()
            if each.state in PENDING and each.shape in elastic.shapes
        ]
        self._unservable: list[SchedulingClass] = []
        self._unservable_gangs: list[str] = []
        self._ledger = QuotaLedger()
        # numbers of requests that quotas do not admit
        self._blocked: dict[SchedulingClass, int] = {}
        self._blocked_gangs: list[str] = []
        names = {shape.name for shape in shapes} | {each.shape for each in self.pending}
        self._names = sorted(names)
        # The kinds that need more than amounts, such as dedicated cpus. The key is the number of
        # the kind.
        self._topology_constrained: dict[int, ResourceRequest] = {}
        self._gangs: list[GangDemand] = []
        # numbers of requests that `_still_queued` has returned
        self._planned: Counter[SchedulingClass] = Counter()

    def build(self) -> Steps[Backlog]:
        """Returns the input of the plan."""
        state = self._state
        # Read the queued requests as kinds and counts. In this step, the kinds get their numbers.
        queued = yield from self._queued_requests()
        gangs = yield from self._first_gangs()
        queue, before = _entries(queued, [each.gang.arrival_number for each in gangs])
        self._gangs = [self._gang(each, at) for each, at in zip(gangs, before, strict=True)]
        # Compute the capacity that is free or can be requested for these kinds.
        hosts = yield from free_hosts(
            state.hosts, self._demands, self._gangs, self._topology_constrained
        )
        on_one = together(self._gangs)
        capacities = {
            name: with_counts(
                state.elastic.capacities[name],
                state.elastic.seen.get(name),
                self._topology_constrained,
                on_one,
            )
            for name in self._names
        }
        return Backlog(
            demands=self._demands,
            queue=queue,
            supplies=[
                Supply(
                    capacities[each.name],
                    each.total,
                    each.cost,
                    more_of(state.provisions, each),
                )
                for each in self._shapes
            ],
            pending={each.executor_id: capacities[each.shape] for each in self.pending},
            gangs=self._gangs,
            hosts=hosts,
            limits=state.provision_moves.room_below_maximum(),
            kept=self._kept(),
        )

    def last_plan(self, plan: Plan) -> LastPlan:
        """Translates a plan of numbers into scheduling classes, gangs and executors."""
        left: dict[SchedulingClass, int] = {
            scheduling_class: scheduling_class.waiting for scheduling_class in self._unservable
        }
        for kind, count in plan.left.items():
            owner = self._owners[kind]
            if isinstance(owner, SchedulingClass):
                left[owner] = count
        gangs = {owner[0] for owner in self._owners if not isinstance(owner, SchedulingClass)}
        gangs -= {self._gang_of(self._gangs[at]) for at in plan.gangs}
        gangs.update(self._unservable_gangs)
        on = {
            each.executor_id: content
            for each in self.pending
            # The executor has possibly registered since the planning started.
            if each.state in PENDING
            and (content := self._still_queued(plan.pending.get(each.executor_id, {})))
        }
        return LastPlan(
            on, left, sorted(gangs), plan.counted_on, self._blocked, self._blocked_gangs
        )

    def order(self, new: Sequence[New]) -> Steps[int]:
        """Requests executors up to the present limits, and records the requests that are planned on
        each executor. Returns the number of requested executors.
        """
        state = self._state
        elastic, moves = state.elastic, state.provision_moves
        number = elastic.number
        for first in range(0, len(new), _ORDERS_PER_STEP):
            # Read the shapes again after each pause, because limits and back-offs have possibly
            # changed.
            shapes = {shape.name: shape for shape in moves.requestable_shapes()}
            more = {name: more_of(state.provisions, shape) for name, shape in shapes.items()}
            room = moves.room_below_maximum()
            ordered: dict[str, ExecutorShape] = {}
            for each in new[first : first + _ORDERS_PER_STEP]:
                shape = self._shapes[each.supply]
                content = self._still_queued(each.content)
                allowed = all(shape.total.get(name, 0) <= left for name, left in room.items())
                if content and allowed and more.get(shape.name):
                    provision = moves.request_executor(shape, cause_of(state.gangs, content))
                    elastic.plan.on[provision.executor_id] = content
                    # Subtract the executors that this step has requested from the limits.
                    more[shape.name] -= 1
                    room = {name: left - shape.total.get(name, 0) for name, left in room.items()}
                    ordered[shape.name] = shape
            note_totals(moves, ordered.values())
            yield _WORK_PER_ORDER * _ORDERS_PER_STEP
        return elastic.number - number

    def _still_queued(self, counts: Counts) -> Content:
        """Returns those of the requests planned on one executor that are still queued.

        The caller must call this method once for each executor. The method counts the requests that
        it returns, so that all executors together get no more requests of a class than are queued.
        """
        content = Content()
        for kind, count in sorted(counts.items()):
            owner = self._owners[kind]
            if not isinstance(owner, SchedulingClass):
                if owner[0] in self._state.gangs.waiting:
                    content.members[owner] = count
            elif (here := min(count, owner.waiting - self._planned[owner])) > 0:
                content.classes[owner] = here
                self._planned[owner] += here
        return content

    def _gang_of(self, gang: GangDemand) -> str:
        owner = self._owners[next(iter(gang.members))]
        return "" if isinstance(owner, SchedulingClass) else owner[0]

    def _queued_requests(self) -> Steps[list[_Interval]]:
        """Returns the first queued requests that can be planned, in order of arrival."""
        most = self._state.settings.provisioning.planned_requests_max
        refused = _refused_lately(self._state.hosts)
        found: list[tuple[SchedulingClass, int]] = []
        for scheduling_class in self._state.queue.classes():
            yield _WORK_PER_CLASS
            if scheduling_class.key in refused:
                continue  # the executor that refused the class will be tried again soon
            if not self._is_served(scheduling_class):
                self._unservable.append(scheduling_class)
                continue
            demand = Demand(*needs_of(scheduling_class).amounts, scheduling_class.labels)
            found.append((scheduling_class, self._kind(demand, scheduling_class, scheduling_class)))
        admitted = yield from self._admitted([scheduling_class for scheduling_class, _ in found])
        intervals: list[_Interval] = []
        for scheduling_class, kind in found:
            yield _WORK_PER_CLASS
            runs = _runs(scheduling_class, admitted.get(scheduling_class), most)
            intervals += [(start, end, kind) for start, end in runs]
            if len(intervals) > _INTERVALS_MAX + most:
                intervals = _first(intervals, most)
        return _first(intervals, most)

    def _admitted(
        self, scheduling_classes: list[SchedulingClass]
    ) -> Steps[dict[SchedulingClass, dict[JobQueue, int]]]:
        """Returns the number of requests of each job queue that the quotas would admit if capacity
        were unlimited.

        A scheduling class is not in the result if all its requests are admitted.
        """
        state = self._state
        if not maxima(state.flows):
            return {}
        found: dict[SchedulingClass, dict[JobQueue, int]] = {}
        job_queues = [
            job_queue
            for scheduling_class in scheduling_classes
            for job_queue in scheduling_class.job_queues.values()
            if job_queue.numbers
        ]
        # The oldest request comes first, because each admitted request uses a part of the maximum.
        for job_queue in sorted(job_queues, key=lambda job_queue: job_queue.numbers.first):
            yield _WORK_PER_CLASS
            scheduling_class, count = job_queue.scheduling_class, len(job_queue.numbers)
            need = state.quotas.need_of(scheduling_class)
            here = self._ledger.admit(state.quotas.limited(job_queue.job_id), need, count)
            found.setdefault(scheduling_class, {})[job_queue] = here
            if here < count:
                left = self._blocked.get(scheduling_class, 0) + count - here
                self._blocked[scheduling_class] = left
        return {scheduling_class: found[scheduling_class] for scheduling_class in self._blocked}

    def _kind(
        self, demand: Demand, owner: SchedulingClass | _Member, request: ResourceRequest
    ) -> int:
        kind = len(self._demands)
        # Members of gangs can be planned on known executors, and some known executors align every
        # slot.
        if request.topology_constrained or (
            self._state.hosts.indexes.aligning and not isinstance(owner, SchedulingClass)
        ):
            self._topology_constrained[kind] = request
            demand = counted(demand, kind)
        self._demands.append(demand)
        self._owners.append(owner)
        return kind

    def _first_gangs(self) -> Steps[list[WaitingGang]]:
        """Returns the queued gangs to plan, in order of arrival."""
        state = self._state
        first: list[WaitingGang] = []
        left = state.settings.provisioning.planned_requests_max
        for waiting in state.gangs.in_order():
            members = waiting.kind.member_requests
            yield _WORK_PER_CLASS * len(members)
            gang_id = waiting.gang.gang_id
            if not any(self._is_served(state.queue.class_for(each.key)) for each in members):
                self._unservable_gangs.append(gang_id)
                continue
            groups = state.quotas.limited(waiting.gang.job_id)
            need = needs_slots(state.quotas.gang_need(waiting), len(waiting.members))
            if groups and not self._ledger.admit(groups, need, 1):
                self._blocked_gangs.append(gang_id)
                continue
            # Plan the first gang even if it exceeds the limit, because otherwise it would never be
            # planned.
            left -= len(waiting.members)
            if left < 0 and first:
                break
            first.append(waiting)
        return first

    def _gang(self, waiting: WaitingGang, before: int) -> GangDemand:
        gang_id = waiting.gang.gang_id
        members = {
            self._kind(demand_of(each), (gang_id, number), each): each.count
            for number, each in enumerate(waiting.kind.member_requests)
        }
        where = waiting.kind.where
        return GangDemand(members, where.placement, where.label, before)

    def _is_served(self, scheduling_class: SchedulingClass) -> bool:
        """Returns whether a pending executor, or an executor that can be requested, could serve a
        request of the class.
        """
        fit = Fit(scheduling_class)
        return any(self._state.elastic.obstacle(name, fit) is None for name in self._names)

    def _kept(self) -> dict[str, Counts]:
        """Returns the last plan as numbers. Kinds that are not queued any more are left out."""
        kinds = {owner: kind for kind, owner in enumerate(self._owners)}
        kept: dict[str, Counts] = {}
        for name, content in self._state.elastic.plan.on.items():
            planned: list[tuple[SchedulingClass | _Member, int]] = [*content.classes.items()]
            planned += content.members.items()
            kept[name] = {kinds[owner]: count for owner, count in planned if owner in kinds}
        return kept


def _runs(
    scheduling_class: SchedulingClass, admitted: Mapping[JobQueue, int] | None, most: int
) -> list[Run]:
    """Returns the first requests of a class, as intervals of arrival numbers.

    Args:
        scheduling_class: the class.
        admitted: the largest number of requests for each job queue. If it is None, there is no
            limit.
        most: the number of requests that the caller needs. If `admitted` is set, the result can
            have more requests.
    """
    if admitted is not None:
        return [
            run for job_queue, count in admitted.items() for run in job_queue.numbers.peek(count)
        ]
    found: list[Run] = []
    for start, end in scheduling_class.runs():
        found.append((start, end))
        most -= end - start
        if most <= 0:
            break
    return found


def _first(intervals: list[_Interval], most: int) -> list[_Interval]:
    """Returns the first `most` arrival numbers, in order, as intervals."""
    first: list[_Interval] = []
    for start, end, kind in sorted(intervals):
        if most <= 0:
            break
        first.append((start, min(end, start + most), kind))
        most -= end - start
    return first


def _entries(queued: list[_Interval], gangs: list[int]) -> tuple[list[Entry], list[int]]:
    """Returns two lists. The first list has pairs (kind, count) in order of arrival. The second
    list has, for each gang, the number of pairs that come before the gang.

    Example: requests 1 and 2 are of kind 0, gang 3 follows, and requests 4 and 5 are of kind 0. The
    result is [(0, 2), (0, 2)] and [1].

    Args:
        queued: the intervals of the queued requests, in order.
        gangs: the arrival numbers of the gangs, in order.
    """
    entries: list[Entry] = []
    before: list[int] = []
    for start, end, kind in queued:
        while len(before) < len(gangs) and gangs[len(before)] < start:
            before.append(len(entries))
        # Entries before and after a gang are not merged, to keep the order of the queue.
        if entries and entries[-1][0] == kind and before[-1:] != [len(entries)]:
            entries[-1] = (kind, entries[-1][1] + end - start)
        else:
            entries.append((kind, end - start))
    before += [len(entries)] * (len(gangs) - len(before))
    return entries, before


def _refused_lately(hosts: Hosts) -> set[SchedulingKey]:
    """Returns the keys of scheduling classes that an executor with room refused recently. The
    scheduler will soon try to place such requests on that executor again.
    """
    return {
        key
        for name in hosts.refusing
        if (host := hosts.get(name)) is not None
        for key, refusal in host.refusals.items()
        if refusal.active and refusal.failures <= PATIENCE
    }

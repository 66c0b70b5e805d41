"""Keeps the fairness tree: groups, with jobs as leaves, and the usage of each group and job.

A *flow* is a group or a job. The usage of a flow is the sum of its *service* and its *raises*. The
service is the sum of cost multiplied by seconds over all slots in the flow's subtree, decayed. A
raise is added when the flow begins to wait (see below). Among siblings, the flow with the lowest
*virtual time* is served next:

    virtual time = (service + raised + lookahead * rate) / weight

`rate` is the cost per second of the running slots. The lookahead is a number of seconds: running
slots count as if they had already run for this additional time. In the code, the virtual time is
called `key`.

Example: all slots cost 1 per second, the lookahead is 30 s, and nothing decays.

    group    weight   used   slots that run   virtual time
    default  1        100    2                (100 + 30 * 2) / 1 = 160
    medium   4        300    6                (300 + 30 * 6) / 4 = 120

Group `medium` is served next. Each slot that it gets adds 30 / 4 = 7.5 to its virtual time. After
six more slots its virtual time is 165, so `default` comes first. Then `default` gets one slot
(190), `medium` gets the next four slots (195), and so on. So capacity that becomes free at the same
time is divided by weight.

Values need no update when time passes. In warped time (`clock.py`), every virtual time is a
straight line, and one kinetic tournament per group (`tournament.py`) finds the lowest of these
lines.

Children below their guaranteed minimum come before their siblings. Of these children, the child
that has reached the smallest part of its minimum comes first.

A flow must gain no advantage from the time in which it has no requests. So when a flow begins to
wait, it is raised: its usage per weight becomes that of the sibling with the lowest virtual time.
If no sibling is active, the usage per weight becomes that of the sibling that was served last, at
the time when that sibling was served. A flow whose own usage per weight is already higher is not
raised.

Example: in the table above, the usage per weight is 100 / 1 = 100 for `default` and 300 / 4 = 75
for `medium`. Then a third group, with weight 1 and usage 20, begins to wait. `medium` has the
lowest virtual time, so the usage of the third group is raised by 55 to 75.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finegrain.resources import Amounts, decrease, increase, total_of
from resource_manager.engine.fairness.clock import Clock, Rescaling
from resource_manager.engine.fairness.quotas import SLOTS, counted, fulfilment
from resource_manager.engine.fairness.siblings import Flow, FlowUsage, Siblings, SortKey
from resource_manager.engine.fairness.users import Users
from resource_manager.engine.model.settings import Fairness

__all__ = ["GROUP", "JOB", "ROOT", "Flow", "FlowTree", "FlowUsage", "SortKey"]

ROOT = "root"
GROUP = "group/"
JOB = "job/"

_KNOWN_MAX = 1_024
"""The largest number of amounts whose counted form is cached."""


def limited_title(flow_id: str) -> str:
    """Returns the name of a group, a user or the cluster for people, from the id of its flow."""
    if flow_id == ROOT:
        return "the cluster"
    if flow_id.startswith(GROUP):
        return f"group {flow_id.removeprefix(GROUP)}"
    return flow_id


class FlowTree:
    """All flows, and the clock by which they accrue usage.

    Attributes:
        clock: the current time, in warped time.
        lookahead_s: the lookahead, in seconds.
        root: the flow that contains all groups without a parent.
        groups: the flows of groups, by name of the group.
        jobs: the flows of jobs, by id of the job.
        changed: the flows whose usage has changed since it was last stored. The code that stores a
            flow removes it from `changed` and resets `Flow.changed`.
        urgent: the flows that were raised, began to accrue usage, or got another weight since they
            were last stored. These flows are stored with the next batch of events, because a
            restart would lose the time of such a change. The code that stores the flows clears this
            dict.
        accrued_while_down: the flows that accrued usage while no resource manager was running, and
            have not been stored since then. A change of the rate of such a flow makes the flow
            urgent.
        placements: the number of placements of all jobs since this process started.
        freed_groups: the ids of flows whose quotas possibly admit blocked requests now, because
            these flows use less than before or have new limits. `QuotaChecks.unblock` clears this
            dict.
        waiting_jobs: the flows of jobs that wait for other jobs. Such a job must not get slots yet,
            so its flow has a maximum of 0 slots.
        users: the limits of users, which apply in addition to the limits of groups.
    """

    def __init__(self, fairness: Fairness, now_ms: int) -> None:
        self.clock = Clock(fairness.half_life_ms, now_ms)
        self.lookahead_s = fairness.lookahead_ms / 1_000
        self.root = Flow(id=ROOT, name="", children=Siblings(self.clock, self.lookahead_s))
        if fairness.slots_max:
            self.root.maximum = {SLOTS: fairness.slots_max}
        self.groups: dict[str, Flow] = {}
        self.jobs: dict[str, Flow] = {}
        self.changed: dict[str, Flow] = {}
        # The key is the `id` of the amounts. The amounts are stored, too, so that no other amounts
        # can get the same `id`.
        self._known: dict[int, tuple[Amounts, dict[str, int]]] = {}
        self.urgent: dict[str, Flow] = {}
        self.accrued_while_down: dict[str, Flow] = {}
        self.placements = 0
        self.freed_groups: dict[str, None] = {}
        self.waiting_jobs: dict[str, Flow] = {}
        self.users = Users(self.freed_groups)

    def advance(self, now_ms: int) -> None:
        """Advances the clock. A time before the clock's current time is ignored."""
        rescaling = self.clock.advance(now_ms)
        if rescaling is not None:
            self._rescale(rescaling)

    # Groups and jobs.

    def put_group(
        self,
        name: str,
        parent: str = "",
        *,
        weight: float = 1.0,
        limits: tuple[Amounts, Amounts] = ({}, {}),
    ) -> Flow:
        """Adds a group, or changes a group.

        Args:
            name: the name of the group.
            parent: the name of the group that contains the group. It is empty for a group directly
                below the root.
            weight: the new weight of the group, relative to its siblings. The group's usage per
                weight stays the same, so past usage under another weight gives no advantage or
                penalty.
            limits: the maximum and the minimum of the group.

        Raises:
            KeyError: no group has the name `parent`.
            ValueError: the parent changes while requests of the group wait or slots of the group
                run.
        """
        below = self.groups[parent] if parent else self.root
        flow = self.groups.get(name)
        if flow is None:
            flow = self.groups[name] = self._add(GROUP + name, name, below)
            flow.children = Siblings(self.clock, self.lookahead_s)
            flow.weight = weight
        elif flow.parent is not below:
            self._leave(flow)
            self._join(flow, below)
        # Add the usage up to now to `service`, before it is scaled for the new weight.
        flow.settle(self.clock.tau)
        if weight != flow.weight:
            # Usage (service + raised) is scaled by the ratio of the weights, so that usage / weight
            # does not change.
            flow.raised += (flow.service + flow.raised) * (weight / flow.weight - 1.0)
            flow.weight = weight
            self.urgent[flow.id] = flow
        flow.maximum, flow.minimum = limits
        # The maximum is possibly higher now, so requests that the group blocked are checked again.
        self.freed_groups[flow.id] = None
        self._mark(flow)
        return flow

    def add_job(self, job_id: str, group: str, owner: str = "", *, priority: int = 0) -> Flow:
        """Adds a job to a group.

        Args:
            job_id: the id of the job.
            group: the name of the group.
            owner: the identity that owns the job.
            priority: the order of the job within its group.

        Raises:
            KeyError: no group has the name `group`.
        """
        flow = self.jobs[job_id] = self._add(JOB + job_id, job_id, self.groups[group])
        flow.priority = priority
        self.users.add_job(owner, flow)
        return flow

    def remove_job(self, job_id: str) -> None:
        """Removes a job. The past usage of the job still counts in its groups."""
        self.waiting_jobs.pop(job_id, None)
        flow = self.jobs.pop(job_id)
        self._remove(flow)
        self.users.remove_job(flow)

    def hold_job(self, job_id: str) -> None:
        """Gives a job a maximum of 0 slots, because it waits for other jobs."""
        flow = self.waiting_jobs[job_id] = self.jobs[job_id]
        flow.maximum = {SLOTS: 0}

    def release_job(self, job_id: str) -> None:
        """Ends the effect of `hold_job`. The job must get no advantage from the time in which it
        waited for other jobs. So its usage is raised as if it began to wait for slots now.
        """
        flow = self.waiting_jobs.pop(job_id, None)
        if flow is None:
            return
        flow.maximum = {}
        self.freed_groups[flow.id] = None
        for each in self._path(job_id):
            # The flow and the groups above it have other active work, so their places among their
            # siblings are already right.
            if each.active:
                return
            self._raise(each)
            self._mark(each)

    def drop_hold(self, job_id: str) -> None:
        """Ends the effect of `hold_job` for a job that has ended."""
        flow = self.waiting_jobs.pop(job_id, None)
        if flow is not None:
            flow.maximum = {}

    def named(self, flow_id: str) -> Flow | None:
        """Returns the flow with this id. The result is None if there is no such flow any more."""
        if flow_id.startswith(JOB):
            return self.jobs.get(flow_id.removeprefix(JOB))
        if flow_id.startswith(GROUP):
            return self.groups.get(flow_id.removeprefix(GROUP))
        return self.root if flow_id == ROOT else self.users.flows.get(flow_id)

    def remove_group(self, name: str) -> None:
        """Removes a group that has no children."""
        self._remove(self.groups.pop(name))

    # Slots.

    def place(self, job_id: str, booked: Amounts, count: int, cost: float) -> None:
        """Counts newly placed slots of a job. From now on, these slots use quota and accrue usage.

        Args:
            job_id: the id of the job.
            booked: the amounts that each slot has booked.
            count: the number of slots.
            cost: the cost per second of each slot.
        """
        amounts: Amounts = booked
        self.placements += count
        flow: Flow | None = self.jobs[job_id]
        tau = self.clock.tau
        while flow is not None:
            parent = flow.parent
            # The next lines repeat the code of `Flow.settle`, because a call would take longer.
            if flow.rate:
                flow.service += flow.rate * (tau - flow.since)
            # The flow begins to accrue usage. A restart would lose the time at which it began, so
            # the flow is stored soon.
            if not flow.rate or (self.accrued_while_down and flow.id in self.accrued_while_down):
                self.urgent[flow.id] = flow
            flow.since = tau
            if parent is not None and parent.children is not None:
                # A flow that begins to wait while no sibling is active is raised to this level.
                parent.children.last_served = (flow.service + flow.raised) / flow.weight
            flow.rate += cost * count
            flow.running += count
            flow.moves += 1
            flow.served_ms = self.clock.now_ms
            used = flow.used
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + amount * count
            # If an earlier placement has already marked the flow, the call is not needed.
            if not (flow.changed and flow.stale):
                self._mark(flow)
            # Groups count amounts in the form in which limits are given.
            if flow.children is None:
                amounts = self._counted(booked)
                if flow.user is not None:
                    self.users.use(flow, amounts, count)
            flow = parent

    def note_reuse(self, job_id: str) -> None:
        """Records that a job was served: one of its slots was reused for its next request."""
        self.placements += 1
        for flow in self._path(job_id):
            flow.served_ms = self.clock.now_ms

    def adopt(self, job_id: str, slots: Sequence[tuple[Amounts, float]]) -> None:
        """Counts the slots of a job that were placed before a restart.

        Args:
            job_id: the id of the job.
            slots: the amounts that each slot has booked, and its cost per second. A cost of 0 means
                that the slot does not accrue usage.
        """
        used = total_of(booked for booked, _ in slots)
        rate = sum(cost for _, cost in slots)
        # The groups count amounts in the form in which limits are given.
        amounts = counted(used)
        for flow in self._path(job_id):
            flow.settle(self.clock.tau)
            flow.rate += rate
            flow.running += len(slots)
            flow.moves += len(slots)
            increase(flow.used, used if flow.children is None else amounts)
            self._mark(flow)
        self.users.grow(self.jobs[job_id], amounts, len(slots))

    def stop_accruing(self, job_id: str, cost: float) -> None:
        """Stops accruing usage for a slot, for example because the slot is being freed. The slot
        still uses quota until `remove_slot`.
        """
        for flow in self._path(job_id):
            flow.settle(self.clock.tau)
            # The rate is 0 only if `resume_accruing` called this method. Then the flow begins to
            # accrue usage again.
            if not flow.rate or flow.id in self.accrued_while_down:
                self.urgent[flow.id] = flow
            flow.rate -= cost
            flow.moves += 1
            self._mark(flow)

    def resume_accruing(self, job_id: str, cost: float) -> None:
        """Continues to accrue usage for a slot after `stop_accruing`."""
        self.stop_accruing(job_id, -cost)

    def remove_slot(self, job_id: str, booked: Amounts) -> None:
        """Releases the quota of a deleted slot. The caller must have called `stop_accruing`
        before.
        """
        amounts = self._counted(booked)
        self.users.release(self.jobs[job_id], amounts)
        for flow in self._path(job_id):
            flow.running -= 1
            flow.moves += 1
            decrease(flow.used, booked if flow.children is None else amounts)
            # Only a group with a maximum can block requests.
            if flow.maximum:
                self.freed_groups[flow.id] = None
            # The reached part of the minimum has changed. The order among siblings depends on this
            # part.
            if flow.minimum:
                self._mark(flow)

    def rebook(self, job_id: str, before: Amounts, after: Amounts) -> None:
        """Updates the quota that a slot uses, after its booking has changed.

        Args:
            job_id: the id of the job.
            before: the amounts that the slot had booked.
            after: the amounts that the slot has booked now.
        """
        less, more = counted(before), counted(after)
        self.users.release(self.jobs[job_id], less, 0)
        self.users.grow(self.jobs[job_id], more)
        for flow in self._path(job_id):
            is_job = flow.children is None
            decrease(flow.used, before if is_job else less)
            flow.moves += 1
            increase(flow.used, after if is_job else more)
            # Only a group with a maximum can block requests.
            if flow.maximum:
                self.freed_groups[flow.id] = None
            if flow.minimum:
                self._mark(flow)

    def recost(self, job_id: str, before: float, after: float) -> None:
        """Updates the cost per second of a slot that accrues usage.

        Args:
            job_id: the id of the job.
            before: the cost until now.
            after: the cost from now on.
        """
        if before != after:
            self.stop_accruing(job_id, before - after)

    # Pending requests, and the flows that are active.

    def wait(self, job_id: str, number: int, count: int) -> None:
        """Counts new pending requests. On the path to the root, each flow that had no pending
        requests is raised.

        Args:
            job_id: the id of the job.
            number: the arrival number of the first request, which breaks ties with siblings.
            count: the number of new pending requests.
        """
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            if not flow.waiting:
                # The tie breaker is the arrival number of the request with which the flow began to
                # wait. So the tie breaker is set only if the flow had no pending requests.
                flow.tie = (number, flow.id)
                self._raise(flow)
                self._mark(flow)
            flow.waiting += count
            flow.moves += 1
            flow = flow.parent

    def remove_waiting(self, job_id: str, count: int) -> None:
        """Subtracts pending requests that have been served or have left the queue."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.waiting -= count
            flow.moves += 1
            flow = flow.parent

    def activate(self, job_id: str) -> None:
        """Makes a job active, after the caller has made one of its queues active.

        A group is active while at least one of its children is active. So the change goes up the
        tree, and stops at the first group that was already active.
        """
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.active += 1
            flow.moves += 1
            # If the flow was active before, its parent already counts it. If the flow is paused,
            # its parent does not count it. In both cases, the parent's count does not change.
            if flow.active > 1 or flow.paused:
                return
            self._mark(flow)
            flow = flow.parent

    def deactivate(self, job_id: str) -> None:
        """Makes a job inactive, after the last of its active queues has become inactive."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.active -= 1
            flow.moves += 1
            # If the flow is still active, its parent still counts it. If the flow is paused, its
            # parent does not count it. In both cases, the parent's count does not change.
            if flow.active or flow.paused:
                return
            self._mark(flow)
            flow = flow.parent

    def pause(self, group: Flow) -> None:
        """Pauses a group: until `resume`, the order of flows skips the group, even if some of its
        children are active.
        """
        group.paused = True
        self._mark(group)
        # A parent counts only active children, so the count changes only if the group is active.
        flow = group.parent if group.active else None
        while flow is not None:
            flow.active -= 1
            flow.moves += 1
            self._mark(flow)
            flow = None if flow.active or flow.paused else flow.parent

    def resume(self, group: Flow) -> None:
        """Ends the pause of a group."""
        group.paused = False
        self._mark(group)
        flow = group.parent if group.active else None
        while flow is not None:
            flow.active += 1
            flow.moves += 1
            self._mark(flow)
            flow = None if flow.active > 1 or flow.paused else flow.parent

    # The methods below update the usage of flows and the order of flows.

    def usage(self, flow: Flow) -> FlowUsage:
        """Returns the usage of a flow up to now, in cost times seconds."""
        service, scale = flow.service_at(self.clock.tau), self.clock.scale
        return FlowUsage(
            service=service / scale,
            raised=flow.raised / scale,
            lookahead=self.lookahead_s * flow.rate,
            weight=flow.weight,
        )

    def set_usage(self, flow: Flow, service: float, raised: float) -> None:
        """Sets the usage of a flow up to now, after a restart.

        Args:
            flow: the flow of a group or a job.
            service: the decayed service, in cost times seconds.
            raised: the amount by which the flow was raised, in cost times seconds.
        """
        scale = self.clock.scale
        flow.service, flow.raised, flow.since = service * scale, raised * scale, self.clock.tau
        self._mark(flow)

    def key(self, flow: Flow) -> float:
        """Returns the scaled virtual time of a flow. The value can be compared only with values of
        siblings at the same time.
        """
        ahead = self.lookahead_s * flow.rate * self.clock.scale
        return (flow.service_at(self.clock.tau) + flow.raised + ahead) / flow.weight

    def sort_key(self, flow: Flow) -> SortKey:
        """Returns the key that orders a flow among its siblings. The flow with the lowest key is
        served first.
        """
        # Most flows have no minimum, which counts as reached.
        if flow.minimum and (reached := fulfilment(flow.used, flow.running, flow.minimum)) < 1:
            return False, 0, reached, flow.tie
        siblings = flow.parent.children if flow.parent is not None else None
        level = siblings.level_of(flow) if siblings is not None else 0
        return True, level, self.key(flow), flow.tie

    def first_job(self) -> Flow | None:
        """Returns the job that is served next. The result is None if no job is active. From the
        root down, the method follows the first child of each group.
        """
        flow: Flow | None = self.root
        while flow is not None and flow.children is not None:
            flow = flow.children.first()
        return flow

    # Helpers.

    def _counted(self, booked: Amounts) -> dict[str, int]:
        """Returns amounts in the form of `Flow.used` of groups. The `id` of the dict `booked` is
        the key of the cache, because equal slots usually share one dict.
        """
        known = self._known.get(id(booked))
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[id(booked)] = booked, counted(booked)
        return known[1]

    def _path(self, job_id: str) -> Iterator[Flow]:
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            yield flow
            flow = flow.parent

    def _add(self, flow_id: str, name: str, parent: Flow) -> Flow:
        flow = Flow(id=flow_id, name=name, since=self.clock.tau)
        self._join(flow, parent)
        return flow

    def _join(self, flow: Flow, parent: Flow) -> None:
        if parent.children is None:
            raise ValueError(f"{parent.id} is a job, so it cannot have children")
        flow.parent = parent
        parent.children.by_id[flow.id] = flow

    def _remove(self, flow: Flow) -> None:
        self._leave(flow)
        self.changed.pop(flow.id, None)
        self.urgent.pop(flow.id, None)
        self.accrued_while_down.pop(flow.id, None)

    def _leave(self, flow: Flow) -> None:
        if flow.parent is None or flow.parent.children is None:
            raise ValueError(f"{flow.id} has no parent, so it cannot be removed from the tree")
        if flow.active or flow.waiting or flow.running:
            raise ValueError(f"{flow.id} has pending requests or slots")
        # The flow is inactive, so this call removes the flow from the tournaments.
        flow.parent.children.freshen()
        del flow.parent.children.by_id[flow.id]
        flow.parent = None

    def _raise(self, flow: Flow) -> None:
        """Raises a flow that begins to wait to the level of its siblings, so that it gets no
        advantage from the time in which it had no requests.
        """
        parent = flow.parent
        if parent is None or parent.children is None:
            return
        siblings = parent.children
        first = siblings.least(flow)
        # The level does not include the lookahead, because the sibling has not used this amount
        # yet.
        if first is not None:
            level = (first.service_at(self.clock.tau) + first.raised) / first.weight
        else:
            level = siblings.last_served
        short = level * flow.weight - (flow.service_at(self.clock.tau) + flow.raised)
        if short > 0:
            flow.raised += short
            self.urgent[flow.id] = flow

    def _mark(self, flow: Flow) -> None:
        """Marks a flow as changed. The tournaments of its parent will then be updated, and its
        usage will be stored.
        """
        if not flow.changed:
            flow.changed = True
            self.changed[flow.id] = flow
        if flow.parent is not None and flow.parent.children is not None:
            flow.parent.children.changed(flow)

    def _rescale(self, rescaling: Rescaling) -> None:
        # A rescaling changes all flows, but happens only once in 256 half-lives.
        for flow in (self.root, *self.groups.values(), *self.jobs.values()):
            flow.service *= rescaling.factor
            flow.raised *= rescaling.factor
            flow.since = rescaling.tau(flow.since)
        # The tournaments are rescaled last, because they compute their lines from the rescaled
        # flows.
        for flow in (self.root, *self.groups.values()):
            if flow.children is not None:
                flow.children.rescale(rescaling)

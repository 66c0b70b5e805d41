"""The fairness tree: groups with jobs as leaves, and how much each has used.

A *flow* is a group or a job. The usage of a flow is its *service* (cost times seconds of all slots
in its subtree, decayed) plus what the flow was *raised* by. Among siblings, the flow with the least
*virtual time* is served next:

    virtual time = (service + raised + lookahead * rate) / weight

`rate` is the cost per second of the slots that run now. The lookahead counts them as if they had
run for that much longer already. The code calls the virtual time `key`.

Example: all slots cost 1 per second, the lookahead is 30 s, and nothing decays.

    group    weight   used   slots that run   virtual time
    default  1        100    2                (100 + 30 * 2) / 1 = 160
    medium   4        300    6                (300 + 30 * 6) / 4 = 120

Group `medium` is served next. Each slot that it gets adds 30 / 4 = 7.5 to its virtual time. With
six more slots that is 165, and `default` comes first. Then `default` gets one slot (190), `medium`
the next four (195), and so on: capacity that becomes free in one burst is divided by weight.

Nothing is updated while time passes. In warped time (`clock.py`) every virtual time is a straight
line, and one kinetic tournament per group (`tournament.py`) finds the least of these lines.

Children below their guaranteed minimum come before their siblings, the least fulfilled first.

Idleness earns no credit. A flow that begins to wait is raised to the usage per weight of the
sibling that is served next. If no sibling waits, it is raised to what the one that was served last
had used per weight by then. A flow is never lowered.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import Amounts
from resource_manager.engine.fairness.clock import Clock, Rescaling
from resource_manager.engine.fairness.quotas import counted, fulfilment
from resource_manager.engine.fairness.siblings import Flow, FlowUsage, Siblings, SortKey
from resource_manager.engine.model.settings import Fairness

__all__ = ["GROUP", "JOB", "ROOT", "Flow", "FlowTree", "FlowUsage", "SortKey"]

ROOT = "root"
GROUP = "group/"
JOB = "job/"

_KNOWN_MAX = 1_024
"""Amounts whose counted form is cached at most."""


class FlowTree:
    """All flows, and the clock that their service accrues by.

    Attributes:
        clock: the present, in warped time.
        lookahead_s: seconds that running slots are counted ahead.
        root: the flow above all groups without a parent.
        groups: by name.
        jobs: by id.
        changed: flows whose usage has changed since it was stored last. The code that stores a flow
            takes it out and resets `Flow.changed`.
        urgent: flows that were raised, began to accrue or got another weight since they were
            stored. They are stored with the next batch, because a restart could not derive when
            that happened. The code that stores them clears this.
        accrued_while_down: flows that accrued while no resource manager was active, and have not
            been stored since. A change of their rate makes them urgent.
        placements: placements of all jobs since this process started.
        freed_groups: ids of groups that use less than before or have new limits. Requests that
            their quotas blocked may fit now. `QuotaChecks.unblock` clears this.
    """

    def __init__(self, fairness: Fairness, now_ms: int) -> None:
        self.clock = Clock(fairness.half_life_ms, now_ms)
        self.lookahead_s = fairness.lookahead_ms / 1_000
        self.root = Flow(id=ROOT, name="", children=Siblings(self.clock, self.lookahead_s))
        self.groups: dict[str, Flow] = {}
        self.jobs: dict[str, Flow] = {}
        self.changed: dict[str, Flow] = {}
        # Keyed by id(). The amounts are kept too, so that their id is not reused for other amounts.
        self._known: dict[int, tuple[Amounts, dict[str, int]]] = {}
        self.urgent: dict[str, Flow] = {}
        self.accrued_while_down: dict[str, Flow] = {}
        self.placements = 0
        self.freed_groups: dict[str, None] = {}

    def advance(self, now_ms: int) -> None:
        """Sets the present moment. Times before the latest one are ignored."""
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
        """Adds a group or changes it.

        Args:
            name: name of the group.
            parent: name of the group that contains it; empty: the root.
            weight: share of the group relative to its siblings, from now on. Its virtual time stays
                the same, so what it used with another weight is neither paid back nor charged.
            limits: maximum and minimum.

        Raises:
            KeyError: there is no such parent.
            ValueError: the parent changes while requests of the group wait or slots of it run.
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
        # What accrued until now must be in `service` before it is scaled for the new weight.
        flow.settle(self.clock.tau)
        if weight != flow.weight:
            # Scales service + raised by the ratio of the weights, so that usage / weight does not
            # change.
            flow.raised += (flow.service + flow.raised) * (weight / flow.weight - 1.0)
            flow.weight = weight
            self.urgent[flow.id] = flow
        flow.maximum, flow.minimum = limits
        # Its maximum may be higher now, so what it blocked is checked again.
        self.freed_groups[flow.id] = None
        self._mark(flow)
        return flow

    def add_job(self, job_id: str, group: str) -> Flow:
        """Adds a job to a group.

        Raises:
            KeyError: there is no such group.
        """
        flow = self.jobs[job_id] = self._add(JOB + job_id, job_id, self.groups[group])
        return flow

    def remove_job(self, job_id: str) -> None:
        """Removes a job. What it used stays counted in its groups."""
        self._remove(self.jobs.pop(job_id))

    def remove_group(self, name: str) -> None:
        """Removes a group without children."""
        self._remove(self.groups.pop(name))

    # Slots.

    def place(self, job_id: str, booked: Amounts, count: int, cost: float) -> None:
        """Counts newly placed slots of a job: they use quota and accrue from now on.

        Args:
            job_id: the job.
            booked: what each slot has booked.
            count: number of slots.
            cost: cost per second of each slot.
        """
        amounts = self._counted(booked)
        self.placements += count
        flow: Flow | None = self.jobs[job_id]
        tau = self.clock.tau
        while flow is not None:
            parent = flow.parent
            # The same as Flow.settle.
            if flow.rate:
                flow.service += flow.rate * (tau - flow.since)
            # A restart could not derive when the flow began to accrue, so that is stored at once.
            if not flow.rate or (self.accrued_while_down and flow.id in self.accrued_while_down):
                self.urgent[flow.id] = flow
            flow.since = tau
            if parent is not None and parent.children is not None:
                # If no sibling waits, the next newcomer is raised to this level.
                parent.children.last_served = (flow.service + flow.raised) / flow.weight
            flow.rate += cost * count
            flow.running += count
            flow.moves += 1
            flow.served_ms = self.clock.now_ms
            used = flow.used
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + amount * count
            self._mark(flow)
            flow = parent

    def note_reuse(self, job_id: str) -> None:
        """Notes that a job was served: one of its slots goes on with the next request."""
        self.placements += 1
        for flow in self._path(job_id):
            flow.served_ms = self.clock.now_ms

    def adopt(self, job_id: str, booked: Amounts, cost: float) -> None:
        """Counts a slot that was placed before a restart.

        Args:
            job_id: the job.
            booked: what the slot has booked.
            cost: cost per second of the slot; 0: it does not accrue.
        """
        for flow in self._path(job_id):
            flow.settle(self.clock.tau)
            flow.rate += cost
            flow.running += 1
            flow.moves += 1
            _add(flow.used, counted(booked))
            self._mark(flow)

    def stop_accruing(self, job_id: str, cost: float) -> None:
        """Stops charging for a slot, for example because it is being taken down. It still uses
        quota until `remove_slot`.
        """
        for flow in self._path(job_id):
            flow.settle(self.clock.tau)
            # Without a rate, the flow begins to accrue here again (`resume_accruing`).
            if not flow.rate or flow.id in self.accrued_while_down:
                self.urgent[flow.id] = flow
            flow.rate -= cost
            flow.moves += 1
            self._mark(flow)

    def resume_accruing(self, job_id: str, cost: float) -> None:
        """Charges again for a slot that `stop_accruing` was called for."""
        self.stop_accruing(job_id, -cost)

    def remove_slot(self, job_id: str, booked: Amounts) -> None:
        """Releases the quota of a slot that is gone. `stop_accruing` must have been called
        before.
        """
        amounts = self._counted(booked)
        for flow in self._path(job_id):
            flow.running -= 1
            flow.moves += 1
            _subtract(flow.used, amounts)
            # Only a group with a maximum blocks anything.
            if flow.maximum:
                self.freed_groups[flow.id] = None
            # The share of the minimum orders it among its siblings, and has changed.
            if flow.minimum:
                self._mark(flow)

    def rebook(self, job_id: str, before: Amounts, after: Amounts) -> None:
        """Updates the quota that a slot uses.

        Args:
            job_id: the job.
            before: what the slot had booked.
            after: what it has booked now.
        """
        less, more = counted(before), counted(after)
        for flow in self._path(job_id):
            _subtract(flow.used, less)
            flow.moves += 1
            _add(flow.used, more)
            # Only a group with a maximum blocks anything.
            if flow.maximum:
                self.freed_groups[flow.id] = None
            if flow.minimum:
                self._mark(flow)

    def recost(self, job_id: str, before: float, after: float) -> None:
        """Updates the cost per second of a slot that accrues.

        Args:
            job_id: the job.
            before: the cost so far.
            after: the cost from now on.
        """
        if before != after:
            self.stop_accruing(job_id, before - after)

    # Pending requests, and which flows take part in the order.

    def wait(self, job_id: str, number: int, count: int) -> None:
        """Counts pending requests. Raises each flow above them that had none before.

        Args:
            job_id: the job.
            number: arrival number of the first of them; breaks ties with siblings.
            count: how many more there are.
        """
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            if not flow.waiting:
                # The tie breaker tells since when the flow waits, so it changes only if nothing
                # waited.
                flow.tie = (number, flow.id)
                self._raise(flow)
                self._mark(flow)
            flow.waiting += count
            flow.moves += 1
            flow = flow.parent

    def remove_waiting(self, job_id: str, count: int) -> None:
        """Counts pending requests that were served or have left."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.waiting -= count
            flow.moves += 1
            flow = flow.parent

    def activate(self, job_id: str) -> None:
        """Lets a job take part in the order: one of its queues has become active.

        A group is active while at least one of its children is. So the change goes up the tree only
        as far as groups that were inactive.
        """
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.active += 1
            flow.moves += 1
            # Its parent counts it already, or does not count it while it is paused.
            if flow.active > 1 or flow.paused:
                return
            self._mark(flow)
            flow = flow.parent

    def deactivate(self, job_id: str) -> None:
        """Takes a job out of the order: none of its queues is active."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.active -= 1
            flow.moves += 1
            # Its parent still counts it, or did not count it because it is paused.
            if flow.active or flow.paused:
                return
            self._mark(flow)
            flow = flow.parent

    def pause(self, group: Flow) -> None:
        """Takes a group out of the order until `resume`, whatever is active in it."""
        group.paused = True
        self._mark(group)
        # Parents count active children that are not paused, so an idle group was not counted.
        flow = group.parent if group.active else None
        while flow is not None:
            flow.active -= 1
            flow.moves += 1
            self._mark(flow)
            flow = None if flow.active or flow.paused else flow.parent

    def resume(self, group: Flow) -> None:
        """Lets a paused group take part in the order again."""
        group.paused = False
        self._mark(group)
        flow = group.parent if group.active else None
        while flow is not None:
            flow.active += 1
            flow.moves += 1
            self._mark(flow)
            flow = None if flow.active > 1 or flow.paused else flow.parent

    # Usage, and the order.

    def usage(self, flow: Flow) -> FlowUsage:
        """Returns what a flow has used by now, in cost times seconds."""
        service, scale = flow.service_at(self.clock.tau), self.clock.scale
        return FlowUsage(
            service=service / scale,
            raised=flow.raised / scale,
            lookahead=self.lookahead_s * flow.rate,
            weight=flow.weight,
        )

    def set_usage(self, flow: Flow, service: float, raised: float) -> None:
        """Sets what a flow has used by now, after a restart.

        Args:
            flow: a group or a job.
            service: in cost times seconds, decayed.
            raised: what was added when it began to wait, in the same unit.
        """
        scale = self.clock.scale
        flow.service, flow.raised, flow.since = service * scale, raised * scale, self.clock.tau
        self._mark(flow)

    def key(self, flow: Flow) -> float:
        """Returns the virtual time of a flow, scaled: it compares with those of siblings at this
        moment only.
        """
        ahead = self.lookahead_s * flow.rate * self.clock.scale
        return (flow.service_at(self.clock.tau) + flow.raised + ahead) / flow.weight

    def sort_key(self, flow: Flow) -> SortKey:
        """Returns what a flow is compared with its siblings by. The lesser is served first."""
        reached = fulfilment(flow.used, flow.minimum)
        if reached < 1:
            return False, reached, flow.tie
        return True, self.key(flow), flow.tie

    def first_child(self, flow: Flow) -> Flow | None:
        """Returns the child of a group that is served next; None: none is active."""
        return flow.children.first() if flow.children is not None else None

    def second_child(self, flow: Flow) -> Flow | None:
        """Returns the child of a group that would be served next if the first were not there."""
        return flow.children.second() if flow.children is not None else None

    # Helpers.

    def _counted(self, booked: Amounts) -> dict[str, int]:
        """Returns amounts as `Flow.used` has them, from a cache: equal slots mostly share one
        dict.
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
            raise ValueError(f"{parent.id} is a job: nothing can be below it")
        flow.parent = parent
        parent.children.by_id[flow.id] = flow

    def _remove(self, flow: Flow) -> None:
        self._leave(flow)
        self.changed.pop(flow.id, None)
        self.urgent.pop(flow.id, None)
        self.accrued_while_down.pop(flow.id, None)

    def _leave(self, flow: Flow) -> None:
        if flow.parent is None or flow.parent.children is None:
            raise ValueError(f"{flow.id} cannot be taken out of the tree")
        if flow.active or flow.waiting or flow.running:
            raise ValueError(f"{flow.id} waits or has slots")
        # The flow is inactive, so this takes it out of the tournaments.
        flow.parent.children.freshen()
        del flow.parent.children.by_id[flow.id]
        flow.parent = None

    def _raise(self, flow: Flow) -> None:
        """Raises a flow that begins to wait to the level of its siblings, so that idleness earns
        nothing.
        """
        parent = flow.parent
        if parent is None or parent.children is None:
            return
        siblings = parent.children
        first = siblings.least()
        # Without the lookahead: the newcomer must start at what the sibling used, not at more.
        if first is not None:
            level = (first.service_at(self.clock.tau) + first.raised) / first.weight
        else:
            level = siblings.last_served
        short = level * flow.weight - (flow.service_at(self.clock.tau) + flow.raised)
        if short > 0:
            flow.raised += short
            self.urgent[flow.id] = flow

    def _mark(self, flow: Flow) -> None:
        """Notes that a flow has changed: for the tournaments of its parent, and for storing its
        usage.
        """
        if not flow.changed:
            flow.changed = True
            self.changed[flow.id] = flow
        if flow.parent is not None and flow.parent.children is not None:
            flow.parent.children.changed(flow)

    def _rescale(self, rescaling: Rescaling) -> None:
        # All flows are changed, but only once in 256 half-lives.
        for flow in (self.root, *self.groups.values(), *self.jobs.values()):
            flow.service *= rescaling.factor
            flow.raised *= rescaling.factor
            flow.since = rescaling.tau(flow.since)
        # After all flows, because the tournaments draw their lines from them.
        for flow in (self.root, *self.groups.values()):
            if flow.children is not None:
                flow.children.rescale(rescaling)


def _add(amounts: dict[str, int], more: Amounts) -> None:
    for name, amount in more.items():
        amounts[name] = amounts.get(name, 0) + amount


def _subtract(amounts: dict[str, int], less: Amounts) -> None:
    for name, amount in less.items():
        left = amounts[name] - amount
        if left:
            # No zeros are kept, so that `used` equals a sum that is computed afresh.
            amounts[name] = left
        else:
            del amounts[name]

"""The tree of flows: groups, and jobs as its leaves, with what each has received.

Decides how service accrues, decays and is compared; keeps for every group which of its children is
to be served first. Refuses to know what waits, what fits where and how much may be had.

A flow's *tally* is the service received (cost times seconds of the slots in its subtree, decayed)
plus what it was raised by. Among its siblings that is served first whose *key* is least:

    (tally + lookahead * rate) / weight

where `rate` is what runs now. The lookahead counts what runs as if it had run for so much longer.
Nothing is updated as time goes by: in warped time (`clock.py`) tallies and keys are straight lines,
and a kinetic tournament (`tournament.py`) per group knows the least.

Children whose guaranteed minimum is not reached come before their siblings, least fulfilled first.

A flow that begins to wait after it did not is raised to the tally per weight of the sibling that
is to be served next, less the lookahead (which is no less than the least of them all), or else to
what the sibling that was served last had then: idleness earns no credit. Only ever raised.
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
"""Amounts remembered at once as limits count them."""


class FlowTree:
    """All flows, and the clock they accrue by.

    Attributes:
        root: the one whose children are groups without parent.
        groups: by name.
        jobs: by id.
        changed: flows whose tally has changed since it was stored last; whoever stores it takes
            them out and sets their `changed` back.
        urgent: those that were raised, began to accrue, or have another weight, since they were
            stored: nobody could tell later that they were, or when. Whoever stores them clears it.
        accrued_while_down: those that accrued while nobody led, and were not stored since: a change
            of their rate makes them urgent.
        freed_groups: ids of groups that have less than they had, or other limits: what their
            quotas blocked may be tried again. `QuotaChecks.unblock` clears it.
    """

    def __init__(self, fairness: Fairness, now_ms: int) -> None:
        self.clock = Clock(fairness.half_life_ms, now_ms)
        self.lookahead_s = fairness.lookahead_ms / 1_000
        self.root = Flow(id=ROOT, name="", children=Siblings(self.clock, self.lookahead_s))
        self.groups: dict[str, Flow] = {}
        self.jobs: dict[str, Flow] = {}
        self.changed: dict[str, Flow] = {}
        # By identity of the amounts, which are kept so that it stays theirs.
        self._known: dict[int, tuple[Amounts, dict[str, int]]] = {}
        self.urgent: dict[str, Flow] = {}
        self.accrued_while_down: dict[str, Flow] = {}
        self.freed_groups: dict[str, None] = {}

    def advance(self, now_ms: int) -> None:
        """It is so late now; earlier times are taken for the latest one known."""
        rescaling = self.clock.advance(now_ms)
        if rescaling is not None:
            self._rescale(rescaling)

    # Who there is.

    def put_group(
        self,
        name: str,
        parent: str = "",
        *,
        weight: float = 1.0,
        limits: tuple[Amounts, Amounts] = ({}, {}),
    ) -> Flow:
        """A group, new or changed, below another one (empty: the root); KeyError if there is no
        such parent, ValueError if the parent changes while anything of the group waits or runs.

        Args:
            name: its name.
            parent: that of the group it is part of.
            weight: from now on its share is in proportion to this. Its key stays what it is: it is
                neither paid back nor charged for what it got with another weight.
            limits: maximum and minimum.
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
        flow.settle(self.clock.tau)
        if weight != flow.weight:
            flow.raised += (flow.service + flow.raised) * (weight / flow.weight - 1.0)
            flow.weight = weight
            self.urgent[flow.id] = flow
        flow.maximum, flow.minimum = limits
        self.freed_groups[flow.id] = None
        self._mark(flow)
        return flow

    def add_job(self, job_id: str, group: str) -> Flow:
        """A new job, below a group that is known; KeyError if it is not."""
        flow = self.jobs[job_id] = self._add(JOB + job_id, job_id, self.groups[group])
        return flow

    def remove_job(self, job_id: str) -> None:
        """A job is forgotten. What it received stays with its ancestors."""
        self._remove(self.jobs.pop(job_id))

    def remove_group(self, name: str) -> None:
        """A group without children is struck."""
        self._remove(self.groups.pop(name))

    # What they have.

    def place(self, job_id: str, booked: Amounts, count: int, cost: float) -> None:
        """So many slots of a job were placed: they have booked this each, and accrue."""
        amounts = self._counted(booked)
        flow: Flow | None = self.jobs[job_id]
        tau = self.clock.tau
        while flow is not None:
            parent = flow.parent
            if flow.rate:
                flow.service += flow.rate * (tau - flow.since)
            if not flow.rate or (self.accrued_while_down and flow.id in self.accrued_while_down):
                self.urgent[flow.id] = flow
            flow.since = tau
            if parent is not None and parent.children is not None:
                parent.children.last_served = (flow.service + flow.raised) / flow.weight
            flow.rate += cost * count
            flow.running += count
            flow.served_ms = self.clock.now_ms
            used = flow.used
            for name, amount in amounts.items():
                used[name] = used.get(name, 0) + amount * count
            self._mark(flow)
            flow = parent

    def note_reuse(self, job_id: str) -> None:
        """A slot of a job goes on with further work of it, which is being served, too."""
        for flow in self._path(job_id):
            flow.served_ms = self.clock.now_ms

    def adopt(self, job_id: str, booked: Amounts, cost: float) -> None:
        """A slot is there that was placed in a former life; `cost` is 0 if it does not accrue."""
        for flow in self._path(job_id):
            flow.settle(self.clock.tau)
            flow.rate += cost
            flow.running += 1
            _add(flow.used, counted(booked))
            self._mark(flow)

    def stop_accruing(self, job_id: str, cost: float) -> None:
        """A slot begins to be taken down, or is gone at once: it accrues no more."""
        for flow in self._path(job_id):
            flow.settle(self.clock.tau)
            if not flow.rate or flow.id in self.accrued_while_down:
                self.urgent[flow.id] = flow
            flow.rate -= cost
            self._mark(flow)

    def resume_accruing(self, job_id: str, cost: float) -> None:
        """A slot that did not accrue does so again."""
        self.stop_accruing(job_id, -cost)

    def remove_slot(self, job_id: str, booked: Amounts) -> None:
        """Nothing is left of a slot (that had stopped)."""
        amounts = self._counted(booked)
        for flow in self._path(job_id):
            flow.running -= 1
            _subtract(flow.used, amounts)
            if flow.maximum:
                self.freed_groups[flow.id] = None
            if flow.minimum:
                self._mark(flow)

    def rebook(self, job_id: str, before: Amounts, after: Amounts) -> None:
        """A slot has booked something else."""
        less, more = counted(before), counted(after)
        for flow in self._path(job_id):
            _subtract(flow.used, less)
            _add(flow.used, more)
            if flow.maximum:
                self.freed_groups[flow.id] = None
            if flow.minimum:
                self._mark(flow)

    def recost(self, job_id: str, before: float, after: float) -> None:
        """A slot that accrues costs something else from now on."""
        if before != after:
            self.stop_accruing(job_id, before - after)

    # Who waits.

    def wait(self, job_id: str, number: int, count: int) -> None:
        """So many more requests wait, of arrival numbers from `number` on. Whoever did not wait
        before begins to.
        """
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            if not flow.waiting:
                flow.tie = (number, flow.id)
                self._raise(flow)
                self._mark(flow)
            flow.waiting += count
            flow = flow.parent

    def remove_waiting(self, job_id: str, count: int) -> None:
        """So many fewer wait."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.waiting -= count
            flow = flow.parent

    def activate(self, job_id: str) -> None:
        """Something of a job may have a turn."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.active += 1
            if flow.active > 1 or flow.paused:
                return
            self._mark(flow)
            flow = flow.parent

    def deactivate(self, job_id: str) -> None:
        """Nothing of a job may have a turn."""
        flow: Flow | None = self.jobs[job_id]
        while flow is not None:
            flow.active -= 1
            if flow.active or flow.paused:
                return
            self._mark(flow)
            flow = flow.parent

    def pause(self, group: Flow) -> None:
        """A group is to have no turn for a while, whatever is active in it."""
        group.paused = True
        self._mark(group)
        flow = group.parent if group.active else None
        while flow is not None:
            flow.active -= 1
            self._mark(flow)
            flow = None if flow.active or flow.paused else flow.parent

    def resume(self, group: Flow) -> None:
        """A group that was halted may have turns again."""
        group.paused = False
        self._mark(group)
        flow = group.parent if group.active else None
        while flow is not None:
            flow.active += 1
            self._mark(flow)
            flow = None if flow.active > 1 or flow.paused else flow.parent

    # What that means.

    def usage(self, flow: Flow) -> FlowUsage:
        """What a flow has received by now."""
        service, scale = flow.service_at(self.clock.tau), self.clock.scale
        return FlowUsage(
            service=service / scale,
            raised=flow.raised / scale,
            lookahead=self.lookahead_s * flow.rate,
            weight=flow.weight,
        )

    def set_usage(self, flow: Flow, service: float, raised: float) -> None:
        """It has received so much by now."""
        scale = self.clock.scale
        flow.service, flow.raised, flow.since = service * scale, raised * scale, self.clock.tau
        self._mark(flow)

    def key(self, flow: Flow) -> float:
        """What a flow is compared by with its siblings, scaled."""
        ahead = self.lookahead_s * flow.rate * self.clock.scale
        return (flow.service_at(self.clock.tau) + flow.raised + ahead) / flow.weight

    def sort_key(self, flow: Flow) -> SortKey:
        """By what a flow is compared with its siblings."""
        reached = fulfilment(flow.used, flow.minimum)
        if reached < 1:
            return False, reached, flow.tie
        return True, self.key(flow), flow.tie

    def first_child(self, flow: Flow) -> Flow | None:
        """The child of a group that is to be served next; None: none has a turn."""
        return flow.children.first() if flow.children is not None else None

    def second_child(self, flow: Flow) -> Flow | None:
        """The child of a group that would be next without the first."""
        return flow.children.second() if flow.children is not None else None

    # How it is done.

    def _counted(self, booked: Amounts) -> dict[str, int]:
        """Amounts as `used` has them. What is alike is one dict as a rule."""
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
        flow.parent.children.freshen()  # so that no tournament knows it any more
        del flow.parent.children.by_id[flow.id]
        flow.parent = None

    def _raise(self, flow: Flow) -> None:
        """Lets a flow that begins to wait start no lower than those who wait already."""
        parent = flow.parent
        if parent is None or parent.children is None:
            return
        siblings = parent.children
        first = siblings.least()
        if first is not None:
            level = (first.service_at(self.clock.tau) + first.raised) / first.weight
        else:
            level = siblings.last_served
        short = level * flow.weight - (flow.service_at(self.clock.tau) + flow.raised)
        if short > 0:
            flow.raised += short
            self.urgent[flow.id] = flow

    def _mark(self, flow: Flow) -> None:
        """What its parent's tournaments know of a flow is to be looked at."""
        if not flow.changed:
            flow.changed = True
            self.changed[flow.id] = flow
        if flow.parent is not None and flow.parent.children is not None:
            flow.parent.children.changed(flow)

    def _rescale(self, rescaling: Rescaling) -> None:
        for flow in (self.root, *self.groups.values(), *self.jobs.values()):
            flow.service *= rescaling.factor
            flow.raised *= rescaling.factor
            flow.since = rescaling.tau(flow.since)
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
            amounts[name] = left
        else:
            del amounts[name]

"""Whose turn would come if a slot were given back now: its job's, or somebody else's who could use
what it frees?

The same comparison as the choice itself (`flows.py`), with the slot already gone from its job's
tally. Only what the slot's executor would have free then is looked at: everybody who fits elsewhere
has been served. Where very many wait, or a gang would only perhaps be whole, the answer is that it
is somebody else's turn; whoever asks then gives the slot back, and the choice itself decides.

Nothing is changed. Answers hold for the moment at which this was made, but for what the same job
gave back since (`gave_back`).
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import fits, subtract
from resource_manager.engine.fairness.flows import Flow, SortKey
from resource_manager.engine.fairness.quotas import counted, fulfilment, room
from resource_manager.engine.hosts.host import UNLIMITED, Host
from resource_manager.engine.lifecycle.resizes import growth
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.state import State

LOOKED_AT_MAX = 20_000
"""Shapes, lines and others that wait, looked at for all slots of one call together."""


class NextTurn:
    """Answers for the slots of one call."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.tree = state.flows
        self._standings: dict[Flow, SortKey] = {}
        self._left = LOOKED_AT_MAX
        self._work: dict[str, dict[str, str]] = {}  # by job

    def work_of(self, job_id: str) -> dict[str, str]:
        """Requests of a job whose work its slots had taken over, as far as is known, with the
        allocation id of the slot, which may be about to go.
        """
        known = self._work.get(job_id)
        if known is None:
            slots = map(self._state.slots.__getitem__, self._state.jobs[job_id].slot_keys)
            known = {slot.works_for: slot.allocation_id for slot in slots if slot.works_for}
            self._work[job_id] = known
        return known

    def gave_back(self, job_id: str) -> None:
        """A slot of this job is being taken down."""
        job = self.tree.jobs.get(job_id)
        for flow in (job, *job.ancestors()) if job is not None else ():
            self._standings.pop(flow, None)

    def is_anothers(self, slot: Slot) -> bool:
        """True if what the slot frees would not go to its job."""
        host = self._state.hosts[slot.executor_id]
        there = _There(host, slot)
        if not there.is_left or self._is_above_maximum(slot):
            return True
        if self._state.settings.fairness.order == "arrival":
            return self._came_before(slot, there)
        job = self.tree.jobs[slot.job_id]
        after = _Without(self, slot, [job, *job.ancestors()])
        return any(after.is_behind(other, need) for other, need in self._could_use(slot, there))

    def sort_key(self, flow: Flow) -> SortKey:
        """By what a flow is compared now."""
        known = self._standings.get(flow)
        if known is None:
            known = self._standings[flow] = self.tree.sort_key(flow)
        return known

    def _is_above_maximum(self, slot: Slot) -> bool:
        """True if a group of the job has more than it may: a maximum was lowered."""
        need = counted(slot.booked)
        return any(
            flow.used.get(name, 0) > flow.maximum[name]
            for flow in self.tree.jobs[slot.job_id].ancestors()
            for name in need.keys() & flow.maximum.keys()
        )

    def _could_use(self, slot: Slot, there: _There) -> Iterator[tuple[Flow, dict[str, int]]]:
        """Jobs, other than the slot's, that could place something there, with what that takes. The
        slot's own where there are too many to look at.
        """
        state, jobs = self._state, self.tree.jobs
        for scheduling_class in state.queue.classes():
            self._left -= 1
            if there.fits(scheduling_class):
                need = there.host.booking_for(scheduling_class)
                for job_id in scheduling_class.job_queues:
                    self._left -= 1
                    if self._left < 0:
                        break
                    if job_id != slot.job_id:
                        yield jobs[job_id], need
        for item in state.queue.non_batchables.all():
            self._left -= 1
            if item.host_id not in ("", there.host.host_id):
                continue
            if item.job_id != slot.job_id and (need := self._need(item, there)):
                yield jobs[item.job_id], need
        if self._left < 0:
            yield jobs[slot.job_id], {}

    def _need(self, item: NonBatchable, there: _There) -> dict[str, int]:
        """What something that waits by itself would take there at the least; empty: it could not
        use it.
        """
        state = self._state
        if item.kind is Kind.RESIZE:
            more = dict(growth(there.host, state.slots[item.name, item.generation]))
            return more if fits(more, there.amounts) else {}
        for wish in state.gangs.waiting[item.name].kind.member_requests:
            scheduling_class = state.queue.class_for(wish.key)
            if there.fits(scheduling_class):
                return there.host.booking_for(scheduling_class)
        return {}

    def _came_before(self, slot: Slot, there: _There) -> bool:
        """True if somebody else came before all of the slot's job who could use it."""
        queue, first = self._state.queue, {True: UNLIMITED, False: UNLIMITED}
        for scheduling_class in queue.classes():
            if there.fits(scheduling_class):
                for job_id, job_queue in scheduling_class.job_queues.items():
                    own = job_id == slot.job_id
                    first[own] = min(first[own], job_queue.numbers.first)
        for item in queue.non_batchables.all():
            here = item.host_id in ("", there.host.host_id)
            if here and self._need(item, there):
                own = item.job_id == slot.job_id
                first[own] = min(first[own], item.arrival_number)
        return first[False] < first[True]


class _There:
    """What an executor would have if a slot were gone."""

    def __init__(self, host: Host, slot: Slot) -> None:
        self.host = host
        self._at = HostView.without(host, [slot])
        self.amounts = self._at.spare()
        # False: it is reserved for somebody.
        self.is_left = self._at.spare_slots() > 0 and fits(slot.booked, self.amounts)

    def fits(self, scheduling_class: SchedulingClass) -> bool:
        """Returns True if one request of a class would fit."""
        return Fit(scheduling_class).fits(self._at)


class _Without:
    """How the flows of a slot's job would stand without it."""

    def __init__(self, turns: NextTurn, slot: Slot, path: list[Flow]) -> None:
        self._turns = turns
        self._slot = slot
        self._path = dict.fromkeys(path)
        self._booked = counted(slot.booked)

    def is_behind(self, other: Flow, need: dict[str, int]) -> bool:
        """True if another job would be served before the slot's, with something that takes so
        much.
        """
        if other in self._path:
            return True
        # The step at which their ways part decides.
        mine, theirs = self._parting(other)
        if self._turns.sort_key(theirs) >= self._standing(mine):
            return False
        return self._may_have(other, counted(need))

    def _parting(self, other: Flow) -> tuple[Flow, Flow]:
        """The flow of the slot's job, and that of the other, that are compared with each other."""
        theirs = other
        for flow in other.ancestors():
            if flow in self._path:
                mine = next(each for each in self._path if each.parent is flow)
                return mine, theirs
            theirs = flow
        raise AssertionError("all flows meet at the root")

    def _standing(self, flow: Flow) -> SortKey:
        tree = self._turns.tree
        reached = fulfilment(subtract(flow.used, self._booked), flow.minimum)
        if reached < 1:
            return False, reached, flow.tie
        less = tree.lookahead_s * self._slot.cost * tree.clock.scale / flow.weight
        return True, tree.key(flow) - less, flow.tie

    def _may_have(self, other: Flow, need: dict[str, int]) -> bool:
        """True if no maximum stops it, given that the slot is gone."""
        groups = [
            _Less(each, self._booked if each in self._path else {}) for each in other.ancestors()
        ]
        return room(groups, need, 1) > 0


class _Less:
    """A group without what is given back."""

    def __init__(self, group: Flow, booked: dict[str, int]) -> None:
        self.id = group.id
        self.maximum = group.maximum
        self.used = {name: group.used.get(name, 0) - booked.get(name, 0) for name in group.maximum}

"""Decides which job would be served next if a slot were given back now: the slot's own job or
another job.

The code compares virtual times like the scheduling cycle (`fairness/flows.py`), but does not count
the slot in the virtual time of its job. The code considers only the slot's executor, because a
request that fits on another executor has already been placed.

Example: job A has the virtual time 130, of which 20 is the lookahead of the slot. Job B has the
virtual time 120, and a pending request that fits on the slot's executor. Without the slot, A has
the virtual time 110, so A would be served next. If B had the virtual time 100, B would be served
next.

If there are too many jobs to compare, the result is "another job". A pending gang counts as fitting
if one of its members fits, because only a search could check the whole gang. If one of these two
rules gives a wrong result, the slot is given back although it could be reused. The scheduling cycle
then decides which job gets the capacity.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import fits, subtract
from resource_manager.engine.fairness.flows import Flow, SortKey
from resource_manager.engine.fairness.quotas import (
    SLOTS,
    counted,
    fulfilment,
    needs_slots,
    room,
    used_of,
)
from resource_manager.engine.hosts.host import UNLIMITED, Host
from resource_manager.engine.lifecycle.growth import growth
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.placement.constraint import HostView
from resource_manager.engine.placement.fit import Fit
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.state import State

COMPARED_MAX = 20_000
"""The limit for compared scheduling classes, job queues and non-batchable items. The limit applies
to all slots of one call together.
"""


class NextInOrder:
    """Compares jobs for all slots of one call. The object caches sort keys, so the caller must call
    `slot_freed` for each slot that it frees during the call.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.tree = state.flows
        self._sort_keys: dict[Flow, SortKey] = {}
        self._left = COMPARED_MAX
        # The results of `work_of`; the key is the job id.
        self._work: dict[str, dict[str, str]] = {}

    def work_of(self, job_id: str) -> dict[str, str]:
        """Returns the reused slots of a job as a dict, without slots that no longer exist. The key
        is the id of the request whose work the slot does now, and the value is the allocation id of
        the slot.
        """
        known = self._work.get(job_id)
        if known is None:
            slots = map(self._state.slots.__getitem__, self._state.jobs[job_id].slot_keys)
            known = {slot.works_for: slot.allocation_id for slot in slots if slot.works_for}
            self._work[job_id] = known
        return known

    def slot_freed(self, job_id: str) -> None:
        """Drops the cached sort keys of a job and its groups. The caller calls this method after it
        has freed a slot of the job.
        """
        job = self.tree.jobs.get(job_id)
        for flow in (job, *job.ancestors()) if job is not None else ():
            self._sort_keys.pop(flow, None)

    def goes_to_another_job(self, slot: Slot) -> bool:
        """Returns True if the capacity of the slot, once it is free, would go to another job."""
        host = self._state.hosts[slot.executor_id]
        there = _FreedHost(host, slot)
        # If the slot's job could not place an equal slot on the executor, the capacity goes to
        # another job.
        if not there.is_left or self._is_above_maximum(slot):
            return True
        if self._state.settings.fairness.order == "arrival":
            return self._came_before(slot, there)
        job = self.tree.jobs[slot.job_id]
        after = _Without(self, slot, [job, *job.ancestors()])
        return any(after.is_behind(other, need) for other, need in self._could_use(slot, there))

    def sort_key(self, flow: Flow) -> SortKey:
        """Returns the sort key of a flow, from the cache if possible."""
        known = self._sort_keys.get(flow)
        if known is None:
            known = self._sort_keys[flow] = self.tree.sort_key(flow)
        return known

    def _is_above_maximum(self, slot: Slot) -> bool:
        """Returns whether a group or the owner of the slot's job uses more than its maximum. A use
        above the maximum is possible after an administrator has lowered the maximum.
        """
        need = needs_slots(counted(slot.booked))
        job = self.tree.jobs[slot.job_id]
        return any(
            used_of(flow, name) > flow.maximum[name]
            for flow in (*job.ancestors(), *((job.user,) if job.user else ()))
            for name in need.keys() & flow.maximum.keys()
        )

    def _could_use(self, slot: Slot, there: _FreedHost) -> Iterator[tuple[Flow, dict[str, int]]]:
        """Yields other jobs that could place a slot on the executor, each with the amounts that
        this slot needs.

        If there are too many jobs to compare, the function yields the slot's own job at the end.
        For the slot's own job, `_Without.is_behind` returns True, so the result is "another job".
        """
        state, jobs = self._state, self.tree.jobs
        for scheduling_class in state.queue.classes():
            self._left -= 1
            if there.fits(scheduling_class):
                need = there.host.booking_for(scheduling_class)
                for job_id in scheduling_class.job_queues:
                    self._left -= 1
                    # The limit is reached, so the slot's own job is yielded at the end.
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

    def _need(self, item: NonBatchable, there: _FreedHost) -> dict[str, int]:
        """Returns the amounts that a gang or resize needs on the executor. For a gang, these are
        the amounts of one member that fits. The result is empty if the gang or resize does not fit.
        """
        state = self._state
        if item.kind is Kind.RESIZE:
            more = dict(growth(there.host, state.slots[item.name, item.generation]))
            return more if fits(more, there.amounts) else {}
        for member in state.gangs.waiting[item.name].kind.member_requests:
            scheduling_class = state.queue.class_for(member.key)
            if there.fits(scheduling_class):
                return there.host.booking_for(scheduling_class)
        return {}

    def _came_before(self, slot: Slot, there: _FreedHost) -> bool:
        """Returns whether the oldest request, gang or resize that would fit on the executor belongs
        to another job.
        """
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


class _FreedHost:
    """A host in the state that it would have without one of its slots."""

    def __init__(self, host: Host, slot: Slot) -> None:
        self.host = host
        self._at = HostView.without(host, [slot])
        self.amounts = self._at.spare()
        # `is_left` is False if an equal slot would not fit, because the freed capacity would be
        # reserved.
        self.is_left = self._at.spare_slots() > 0 and fits(slot.booked, self.amounts)

    def fits(self, scheduling_class: SchedulingClass) -> bool:
        """Returns whether one request of a class would fit."""
        return Fit(scheduling_class).fits(self._at)


class _Without:
    """Compares the slot's job and its groups with other flows. In this comparison, the slot counts
    as ended.

    Args:
        order: the object that caches sort keys.
        slot: the slot that counts as ended in the comparison.
        path: the flow of the slot's job, and the flows of all groups that contain the job.
    """

    def __init__(self, order: NextInOrder, slot: Slot, path: list[Flow]) -> None:
        self._order = order
        self._slot = slot
        self._path = dict.fromkeys(path)
        self._booked = counted(slot.booked)

    def is_behind(self, other: Flow, need: dict[str, int]) -> bool:
        """Returns whether another job would be served before the slot's job.

        Args:
            other: the flow of the other job.
            need: the amounts that the slot of the other job would need.
        """
        if other in self._path:
            return True
        # Compare the ancestors of the two jobs at the highest level of the tree at which they
        # differ.
        mine, theirs = self._siblings(other)
        if self._order.sort_key(theirs) >= self._sort_key_without_slot(mine):
            return False
        return self._admits(other, counted(need))

    def _siblings(self, other: Flow) -> tuple[Flow, Flow]:
        """Returns the two sibling flows to compare. The first flow is the slot's job or a group
        above the slot's job. The second flow is the other job or a group above the other job.
        """
        theirs = other
        for flow in other.ancestors():
            if flow in self._path:
                mine = next(each for each in self._path if each.parent is flow)
                return mine, theirs
            theirs = flow
        raise AssertionError("all flows meet at the root")

    def _sort_key_without_slot(self, flow: Flow) -> SortKey:
        tree = self._order.tree
        left = subtract(flow.used, self._booked)
        reached = fulfilment(left, flow.running - 1, flow.minimum)
        if reached < 1:
            return False, 0, reached, flow.tie
        # The past usage of the slot still counts. Only its lookahead is subtracted.
        less = tree.lookahead_s * self._slot.cost * tree.clock.scale / flow.weight
        return True, tree.sort_key(flow)[1], tree.key(flow) - less, flow.tie

    def _admits(self, other: Flow, need: dict[str, int]) -> bool:
        """Returns whether no maximum would block the other job after the slot's end."""
        own = next(iter(self._path)).user
        groups = [
            _GroupWithoutSlot(
                each, needs_slots(self._booked) if each is own or each in self._path else {}
            )
            for each in (*other.ancestors(), *((other.user,) if other.user else ()))
        ]
        return room(groups, need, 1) > 0


class _GroupWithoutSlot:
    """A group whose booked amounts do not include the slot."""

    def __init__(self, group: Flow, booked: dict[str, int]) -> None:
        self.id = group.id
        self.maximum = group.maximum
        self.used = {name: group.used.get(name, 0) - booked.get(name, 0) for name in group.maximum}
        self.running = group.running - booked.get(SLOTS, 0)

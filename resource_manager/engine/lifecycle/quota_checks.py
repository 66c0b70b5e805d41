"""Checks pending requests against the maxima of resource groups.

If a maximum does not admit a request, the request is blocked by quota. The request is tried again
only after slots of the group have released capacity, or the group has got a higher maximum.
Requests of other groups are not delayed. Each slot counts with the largest amounts that it could
book on any executor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from finegrain.resources import Amounts, shared_booking
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import GROUP, ROOT, Flow, FlowTree
from resource_manager.engine.fairness.quotas import (
    QuotaBlock,
    counted,
    needs_slots,
    quota_block,
    room,
    total_need,
    used_of,
)
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.growth import growth
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.gangs import GangLedger, WaitingGang
from resource_manager.engine.queue.non_batchable import Kind, NonBatchable
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass

CLASSES_CHECKED_MAX = 64
"""If at most this many scheduling classes fit on hosts, `QuotaChecks` checks whether it can block a
whole group at once. With more classes, it blocks job queues one at a time.
"""


@dataclass(slots=True, eq=False)
class QuotaChecks:
    """Finds how many pending requests quotas admit, and blocks and unblocks job queues."""

    costs: Costs
    flows: FlowTree
    gangs: GangLedger
    hosts: Hosts
    queue: WaitingQueue
    slots: Slots

    def limited(self, job_id: str) -> list[Flow]:
        """Returns the flows that have a maximum, the nearest first. These are the job itself (while
        it waits for other jobs), the groups above the job, and the cluster.
        """
        flow = self.flows.jobs.get(job_id)
        if flow is None:
            return []
        found = [group for group in flow.ancestors() if group.maximum]
        if flow.user is not None:
            found.insert(0, flow.user)
        return [flow, *found] if flow.maximum else found

    def admitted(self, job_queue: JobQueue, most: int) -> int:
        """Returns how many requests of a job queue the quotas admit now.

        If the quotas admit no request, this method blocks the job queue. It pauses a whole group
        instead if the maximum of this group admits none of the scheduling classes that fit on some
        host.

        Args:
            job_queue: requests of one job and one scheduling class.
            most: upper bound of the result.
        """
        groups = self.limited(job_queue.job_id)
        # For most jobs, no group has a maximum.
        if not groups:
            return most
        need = self.need_of(job_queue.scheduling_class)
        found = room(groups, need, most)
        block = quota_block(groups, need) if not found else None
        # If no request of the group can be placed, pause the group, because blocking each of its
        # job queues would cost more.
        if block is not None and not (
            block.group_id.startswith((GROUP, ROOT))
            and self._is_full(groups, block.group_id)
            and self.queue.order.pause(block.group_id)
        ):
            self.queue.block_by_quota(job_queue, block.group_id)
        return found

    def _is_full(self, groups: list[Flow], group_id: str) -> bool:
        """Returns True if a group admits none of the scheduling classes that fit on some host."""
        group = [each for each in groups if each.id == group_id]
        fitting = self.queue.fitting
        # With more classes, this check would cost more than blocking job queues one at a time.
        return len(fitting) <= CLASSES_CHECKED_MAX and not any(
            room(group, self.need_of(scheduling_class), 1) for scheduling_class in fitting
        )

    def admitted_of(self, scheduling_class: SchedulingClass, job_id: str, most: int) -> int:
        """Returns how many requests of a job the quotas admit now. Unlike `admitted`, this method
        blocks no job queue.

        Args:
            scheduling_class: the class of the requests.
            job_id: the job.
            most: upper bound of the result.
        """
        groups = self.limited(job_id)
        return room(groups, self.need_of(scheduling_class), most) if groups else most

    def request_block(self, scheduling_class: SchedulingClass, job_id: str) -> QuotaBlock | None:
        """Returns the maximum that blocks one request of a job; None if no maximum blocks the
        request.
        """
        groups = self.limited(job_id)
        return quota_block(groups, self.need_of(scheduling_class)) if groups else None

    def gang_block(self, waiting: WaitingGang) -> QuotaBlock | None:
        """Returns the maximum that blocks a whole gang; None if no maximum blocks the gang."""
        groups = self.limited(waiting.gang.job_id)
        if not groups:
            return None
        return quota_block(groups, needs_slots(self.gang_need(waiting), len(waiting.members)))

    def gang_need(self, waiting: WaitingGang) -> Amounts:
        """Returns the largest amounts that the members of a gang book together. The result is
        cached with the kind of the gang until `Hosts.version` changes.
        """
        kind, version = waiting.kind, self.hosts.version
        if kind.need is None or kind.need[0] != version:
            members = (
                (self.queue.class_for(each.key), each.count) for each in kind.member_requests
            )
            # The needs of all members are added up, because a gang is placed only as a whole.
            kind.need = version, total_need((self.largest_booking(c), n) for c, n in members)
        return kind.need[1]

    def growth_block(self, job_id: str, more: Amounts) -> QuotaBlock | None:
        """Returns the maximum that blocks the growth of a job's slot by `more`; None if no maximum
        blocks the growth.
        """
        groups = self.limited(job_id)
        return quota_block(groups, counted(more)) if groups else None

    def non_batchable_block(self, item: NonBatchable) -> QuotaBlock | None:
        """Returns the maximum that blocks a gang or a resize; None if no maximum blocks the
        item.
        """
        if not self.limited(item.job_id):
            return None
        if item.kind is Kind.GANG:
            waiting = self.gangs.waiting.get(item.name)
            return self.gang_block(waiting) if waiting is not None else None
        slot = self.slots.get((item.name, item.generation))
        if slot is None or slot.wanted is None:
            return None
        # Only the growth counts, because the slot's current size is already booked.
        return self.growth_block(slot.job_id, growth(self.hosts[slot.executor_id], slot))

    def unblock(self, most: int) -> int:
        """Unblocks job queues if the maximum that blocks them now admits a request.

        Args:
            most: the largest number of job queues to unblock.

        Returns:
            The number of unblocked job queues. If the group possibly still blocks other job queues
            that could be unblocked, the group stays in `flows.freed_groups`. The same group can
            block an unblocked job queue again, but only after the group has booked more capacity.
        """
        queue, freed_groups = self.queue, self.flows.freed_groups
        # If hosts have changed, default slots possibly book other amounts. So all blocks are
        # checked again.
        if queue.quota_version != self.hosts.version:
            queue.quota_version = self.hosts.version
            freed_groups.update(
                dict.fromkeys([*queue.quota_blocked.groups, *queue.non_batchables.blocked_by])
            )
            queue.reconsider_fitting()
        left = most
        while freed_groups and left > 0:
            group_id = next(iter(freed_groups))
            left -= queue.unblock_by_quota(group_id, partial(self._admits, group_id), left)
            # If `most` is reached, the group possibly blocks more job queues that could be
            # unblocked, so the group stays for the next call.
            if left:
                del freed_groups[group_id]
        return most - left

    def _admits(self, group_id: str, scheduling_class: SchedulingClass) -> bool:
        """Returns True if the maximum of a group admits one more request of a scheduling class."""
        group = self.flows.named(group_id)
        # A deleted group limits nothing.
        return group is None or bool(room([group], self.need_of(scheduling_class), 1))

    def need_of(self, scheduling_class: SchedulingClass) -> Amounts:
        """Returns the amounts with which one slot counts against the limits of groups:
        `largest_booking`, and one slot.
        """
        return needs_slots(self.largest_booking(scheduling_class))

    def largest_booking(self, scheduling_class: SchedulingClass) -> Amounts:
        """Returns the largest amounts that one slot books on any executor, in the form of
        `counted`.

        For a default slot, the result has the maximum over all executors in each dimension. The
        result is empty if no executor is known. The result is cached until `Hosts.version` changes.
        """
        version = self.hosts.version
        if scheduling_class.need is None or scheduling_class.need[0] != version:
            scheduling_class.need = version, self._largest_booking(scheduling_class)
        return scheduling_class.need[1]

    def cost_of(self, scheduling_class: SchedulingClass) -> float:
        """Returns the highest cost per second of one slot."""
        return self.costs.of(self.largest_booking(scheduling_class))

    def _largest_booking(self, scheduling_class: SchedulingClass) -> dict[str, int]:
        if scheduling_class.profile is not None:
            return counted(
                shared_booking(
                    scheduling_class.profile,
                    self.costs.separate_pools,
                    scheduling_class.best_effort,
                )
            )
        # The amounts of a default slot depend on the executor, which is not chosen yet.
        most: dict[str, int] = {}
        for host in self.hosts.values():
            for name, amount in counted(host.booking_for(scheduling_class)).items():
                most[name] = max(most.get(name, 0), amount)
        return most


def maxima(flows: FlowTree) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Returns the amounts that each group with a maximum can still book, by dimension.

    If two calls return equal results, the groups admit the same requests at both times.
    """
    return tuple(
        (flow.id, tuple(limit - used_of(flow, name) for name, limit in flow.maximum.items()))
        for flow in (
            flows.root,
            *flows.groups.values(),
            *flows.waiting_jobs.values(),
            *flows.users.flows.values(),
        )
        if flow.maximum
    )

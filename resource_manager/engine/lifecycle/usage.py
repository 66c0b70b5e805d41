"""Charges slots to jobs and groups in the fairness tree.

A slot accrues usage from its placement until it starts to be freed. The capacity of the slot counts
against quotas until the slot is deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from finegrain.resources import Amounts
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.fairness.groups import is_live
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.entities import Group, Job, Slot
from resource_manager.engine.placement.hosts import Hosts


@dataclass(slots=True, eq=False)
class UsageAccounting:
    """Charges slots to jobs and groups, and tracks the total of all executors."""

    costs: Costs
    flows: FlowTree
    groups: dict[str, Group]
    hosts: Hosts
    jobs: dict[str, Job]
    slots: Slots

    def register(
        self,
    ) -> None:
        """Adds the totals of all hosts, and adds all groups and live jobs to the fairness tree.
        Called after the state was loaded from the store.
        """
        flows = self.flows
        # The totals are added first, because the cost of slots depends on them.
        for host in self.hosts.values():
            self.count_total(host)
        for group in self.groups.values():  # parents come before their children
            flows.put_group(
                group.name, group.parent, weight=group.weight, limits=(group.maximum, group.minimum)
            )
        for job in self.jobs.values():
            if is_live(job):
                flows.add_job(job.job_id, job.group, job.owner, priority=job.priority)

    def adopt(
        self,
    ) -> None:
        """Charges all slots. Called after the state was loaded from the store."""
        by_job: dict[str, list[tuple[Amounts, float]]] = {}
        for slot in self.slots.values():
            # A slot can exist for longer than the flow of its job.
            if slot.job_id in self.flows.jobs:
                slot.cost = self.costs.of(slot.booked)
                accrues = slot.state is not SlotState.FREEING
                charged = slot.booked, slot.cost if accrues else 0.0
                by_job.setdefault(slot.job_id, []).append(charged)
        for job_id, slots in by_job.items():
            self.flows.adopt(job_id, slots)

    def count_total(self, host: Host) -> None:
        """Updates the total of an executor in the sum over all executors, on which costs depend."""
        executor = host.executor
        # A lost executor counts as empty, because its capacity cannot be used.
        lost = executor.state is ExecutorState.LOST
        self.costs.count(host.host_id, {} if lost else host.total)

    def total_changed(self, host: Host) -> None:
        """Updates all values that depend on the total of a host, or on whether new slots can be
        placed on the host.
        """
        # Values that are cached with `version` depend on totals, or on the set of usable hosts.
        self.hosts.version += 1
        self.count_total(host)
        self.hosts.touch(host)

    def stop_accruing(self, slot: Slot) -> None:
        """Stops charging for a slot that is being freed."""
        if slot.job_id in self.flows.jobs:
            self.flows.stop_accruing(slot.job_id, slot.cost)

    def resume_accruing(self, slot: Slot) -> None:
        """Charges the cost of a slot again, because the slot was being freed and was then
        reclaimed.
        """
        self.flows.resume_accruing(slot.job_id, slot.cost)

    def remove_slot(self, slot: Slot) -> None:
        """Removes a deleted slot that has stopped accruing. If its job has ended and has no other
        slots or requests, the flow of the job is removed, too.
        """
        if slot.job_id in self.flows.jobs:
            self.flows.remove_slot(slot.job_id, slot.booked)
            self.retire(slot.job_id)

    def rebooked(self, slots: Iterable[tuple[Slot, Amounts]]) -> None:
        """Updates quotas and costs after the bookings of slots changed.

        Args:
            slots: the slots, each with its previous booking.
        """
        for slot, before in slots:
            # If the old and the new booking are the same object, the booking did not change.
            if slot.booked is before or slot.job_id not in self.flows.jobs:
                continue
            self.flows.rebook(slot.job_id, before, slot.booked)
            cost = self.costs.of(slot.booked)
            # A slot that is being freed accrues no more usage. Only its capacity still counts.
            if slot.state is not SlotState.FREEING:
                self.flows.recost(slot.job_id, slot.cost, cost)
            slot.cost = cost

    def retire(self, job_id: str) -> None:
        """Removes the flow of a job that has ended and has no requests or slots left."""
        job = self.jobs.get(job_id)
        # `is_live` is true while the job has slots or live requests.
        if job_id in self.flows.jobs and (job is None or not is_live(job)):
            self.flows.remove_job(job_id)

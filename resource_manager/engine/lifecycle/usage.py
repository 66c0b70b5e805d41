"""Charges slots to jobs and groups in the fairness tree.

A slot accrues usage from placement until its teardown starts: a slot that is being torn down serves
no request. Its capacity counts as used until the slot is deleted.
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
    """Charges slots to jobs and groups, and notes the total of each executor."""

    costs: Costs
    flows: FlowTree
    groups: dict[str, Group]
    hosts: Hosts
    jobs: dict[str, Job]
    slots: Slots

    def register(
        self,
    ) -> None:
        """Adds all hosts, groups and live jobs to the fairness tree after state was loaded from the
        store.
        """
        flows = self.flows
        # Totals first: the cost of a slot is its share of them.
        for host in self.hosts.values():
            self.count_total(host)
        for group in self.groups.values():  # parents come before their children
            flows.put_group(
                group.name, group.parent, weight=group.weight, limits=(group.maximum, group.minimum)
            )
        for job in self.jobs.values():
            if is_live(job):
                flows.add_job(job.job_id, job.group)

    def adopt(
        self,
    ) -> None:
        """Charges all slots after state was loaded from the store."""
        for slot in self.slots.values():
            # A slot may outlive its job, which then has no flow.
            if slot.job_id in self.flows.jobs:
                slot.cost = self.costs.of(slot.booked)
                accrues = slot.state is not SlotState.FREEING
                self.flows.adopt(slot.job_id, slot.booked, slot.cost if accrues else 0.0)

    def count_total(self, host: Host) -> None:
        """Notes the total of an executor; the cost of a slot is its share of the total of all
        executors.
        """
        executor = host.executor
        # A lost executor serves nothing, so it must not make the cluster look larger.
        lost = executor.state is ExecutorState.LOST
        self.costs.count(host.host_id, {} if lost else host.total)

    def total_changed(self, host: Host) -> None:
        """Updates everything that depends on what a host could give when empty, or whether it
        may.
        """
        # Everything that is cached by `version` depends on totals or on which hosts are online.
        self.hosts.version += 1
        self.count_total(host)
        self.hosts.touch(host)

    def stop_accruing(self, slot: Slot) -> None:
        """Stops charging a slot whose teardown starts."""
        if slot.job_id in self.flows.jobs:
            self.flows.stop_accruing(slot.job_id, slot.cost)

    def resume_accruing(self, slot: Slot) -> None:
        """Charges a slot again that was being taken down and was reclaimed."""
        self.flows.resume_accruing(slot.job_id, slot.cost)

    def remove_slot(self, slot: Slot) -> None:
        """Removes a deleted slot, which has stopped accruing; also its job's flow if that was the
        last of it.
        """
        if slot.job_id in self.flows.jobs:
            self.flows.remove_slot(slot.job_id, slot.booked)
            self.retire(slot.job_id)

    def rebooked(self, slots: Iterable[tuple[Slot, Amounts]]) -> None:
        """Updates what slots are charged for after their bookings changed.

        Args:
            slots: the slots, each with what it had booked before.
        """
        for slot, before in slots:
            # The same object: its booking did not change.
            if slot.booked is before or slot.job_id not in self.flows.jobs:
                continue
            self.flows.rebook(slot.job_id, before, slot.booked)
            cost = self.costs.of(slot.booked)
            # A slot that is being taken down has stopped accruing, but its capacity still counts as
            # used.
            if slot.state is not SlotState.FREEING:
                self.flows.recost(slot.job_id, slot.cost, cost)
            slot.cost = cost

    def retire(self, job_id: str) -> None:
        """Removes the flow of a job that has ended and has no requests or slots left."""
        job = self.jobs.get(job_id)
        # `is_live` also looks at the slots and requests that are left.
        if job_id in self.flows.jobs and (job is None or not is_live(job)):
            self.flows.remove_job(job_id)

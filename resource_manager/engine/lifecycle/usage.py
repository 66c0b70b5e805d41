"""Whom slots are charged to, from placing until nothing of them is left. Decides when a slot begins
and ends to accrue and to count as used; what that means for anybody's turn, the tree of flows
knows.

A slot accrues from placing until it begins to be taken down: what is torn down serves nobody. It
counts as used until it is gone.
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
    """Charges slots to jobs and groups, and notes what executors have in all."""

    costs: Costs
    flows: FlowTree
    groups: dict[str, Group]
    hosts: Hosts
    jobs: dict[str, Job]
    slots: Slots

    def register(
        self,
    ) -> None:
        """Tells the tree of flows of everybody in books that were read anew."""
        flows = self.flows
        for host in self.hosts.values():
            self.count_total(host)
        for group in self.groups.values():  # parents first
            flows.put_group(
                group.name, group.parent, weight=group.weight, limits=(group.maximum, group.minimum)
            )
        for job in self.jobs.values():
            if is_live(job):
                flows.add_job(job.job_id, job.group)

    def adopt(
        self,
    ) -> None:
        """Charges all slots of books that were read anew."""
        for slot in self.slots.values():
            if slot.job_id in self.flows.jobs:
                slot.cost = self.costs.of(slot.booked)
                accrues = slot.state is not SlotState.FREEING
                self.flows.adopt(slot.job_id, slot.booked, slot.cost if accrues else 0.0)

    def count_total(self, host: Host) -> None:
        """Notes what an executor has in all, as costs are shares of that."""
        executor = host.executor
        lost = executor.state is ExecutorState.LOST
        self.costs.count(host.host_id, {} if lost else host.total)

    def total_changed(self, host: Host) -> None:
        """What a host could give when empty has changed, or whether it may."""
        self.hosts.version += 1
        self.count_total(host)
        self.hosts.touch(host)

    def stop_accruing(self, slot: Slot) -> None:
        """The slot begins to be taken down."""
        if slot.job_id in self.flows.jobs:
            self.flows.stop_accruing(slot.job_id, slot.cost)

    def resume_accruing(self, slot: Slot) -> None:
        """A slot that was to be taken down serves its request again."""
        self.flows.resume_accruing(slot.job_id, slot.cost)

    def remove_slot(self, slot: Slot) -> None:
        """Nothing is left of the slot, which had been stopped; nor of its job, perhaps."""
        if slot.job_id in self.flows.jobs:
            self.flows.remove_slot(slot.job_id, slot.booked)
            self.retire(slot.job_id)

    def rebooked(self, slots: Iterable[tuple[Slot, Amounts]]) -> None:
        """These slots had booked something else before."""
        for slot, before in slots:
            if slot.booked is before or slot.job_id not in self.flows.jobs:
                continue
            self.flows.rebook(slot.job_id, before, slot.booked)
            cost = self.costs.of(slot.booked)
            if slot.state is not SlotState.FREEING:
                self.flows.recost(slot.job_id, slot.cost, cost)
            slot.cost = cost

    def retire(self, job_id: str) -> None:
        """Forgets the flow of a job of which nothing waits or runs any more, and never will."""
        job = self.jobs.get(job_id)
        if job_id in self.flows.jobs and (job is None or not is_live(job)):
            self.flows.remove_job(job_id)

"""Whom slots are charged to, from placing until nothing of them is left. Decides when a slot begins
and ends to accrue and to count as used; what that means for anybody's turn, the tree of flows
knows.

A slot accrues from placing until it begins to be taken down: what is torn down serves nobody. It
counts as used until it is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from finegrain.resources import Amounts
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.fairness.groups import lives
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import ExecutorState, Job, Slot, SlotState
from resource_manager.engine.placement.hosts import Hosts

if TYPE_CHECKING:
    from resource_manager.engine.state import State


def register(state: State) -> None:
    """Tells the tree of flows of everybody in books that were read anew."""
    flows = state.flows
    for host in state.hosts.values():
        count_total(state.costs, host)
    for group in state.groups.values():  # parents first
        flows.put_group(
            group.name, group.parent, weight=group.weight, limits=(group.maximum, group.minimum)
        )
    for job in state.jobs.values():
        if lives(job):
            flows.add_job(job.job_id, job.group)


def adopt(state: State) -> None:
    """Charges all slots of books that were read anew."""
    for slot in state.slots.values():
        if slot.job_id in state.flows.jobs:
            slot.cost = state.costs.of(slot.booked)
            accrues = slot.state is not SlotState.FREEING
            state.flows.adopt(slot.job_id, slot.booked, slot.cost if accrues else 0.0)


def count_total(costs: Costs, host: Host) -> None:
    """Notes what an executor has in all, as costs are shares of that."""
    executor = host.executor
    lost = executor.state is ExecutorState.LOST
    costs.count(host.host_id, {} if lost else host.total)


def total_changed(hosts: Hosts, costs: Costs, host: Host) -> None:
    """What a host could give when empty has changed, or whether it may."""
    hosts.version += 1
    count_total(costs, host)
    hosts.touch(host)


def stopped(state: State, slot: Slot) -> None:
    """The slot begins to be taken down."""
    if slot.job_id in state.flows.jobs:
        state.flows.stop(slot.job_id, slot.cost)


def taken_back(flows: FlowTree, slot: Slot) -> None:
    """A slot that was to be taken down serves its request again."""
    flows.go_on(slot.job_id, slot.cost)


def gone(state: State, slot: Slot) -> None:
    """Nothing is left of the slot, which had been stopped; nor of its job, perhaps."""
    if slot.job_id in state.flows.jobs:
        state.flows.vanish(slot.job_id, slot.booked)
        retire(state.jobs, state.flows, slot.job_id)


def rebooked(flows: FlowTree, costs: Costs, slots: Iterable[tuple[Slot, Amounts]]) -> None:
    """These slots had booked something else before."""
    for slot, before in slots:
        if slot.booked is before or slot.job_id not in flows.jobs:
            continue
        flows.rebook(slot.job_id, before, slot.booked)
        cost = costs.of(slot.booked)
        if slot.state is not SlotState.FREEING:
            flows.recost(slot.job_id, slot.cost, cost)
        slot.cost = cost


def retire(jobs: dict[str, Job], flows: FlowTree, job_id: str) -> None:
    """Forgets the flow of a job of which nothing waits or runs any more, and never will."""
    job = jobs.get(job_id)
    if job_id in flows.jobs and (job is None or not lives(job)):
        flows.remove_job(job_id)

"""Checks the fairness tree against jobs, groups, slots and queue; part of `all.py`.

The cost grows with the number of slots and queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import isclose

from finegrain.values.states import SlotState
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.groups import is_live
from resource_manager.engine.fairness.quotas import counted, fulfilment
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.state import State

CLOSE = 1e-9
"""How far two virtual times may differ, relatively: their sums are added up in another order."""


def flow_problems(state: State) -> Iterator[str]:
    """Yields what is wrong, one sentence each."""
    flows = state.flows
    living = {job.job_id: job.group for job in state.jobs.values() if is_live(job)}
    if flows.jobs.keys() != living.keys():
        yield f"flows of {sorted(flows.jobs)}, jobs that live: {sorted(living)}"
    for job_id, name in living.items():
        flow = flows.jobs.get(job_id)
        if flow is not None and flow.parent is not flows.groups.get(name):
            yield f"{flow.id} is below {flow.parent}, its group is {name}"
    if flows.groups.keys() != state.groups.keys():
        yield f"flows of groups {sorted(flows.groups)}, there are {sorted(state.groups)}"
    for name, group in state.groups.items():
        flow = flows.groups.get(name)
        above = flows.groups.get(group.parent) if group.parent else flows.root
        if flow is None or flow.parent is not above:
            yield f"group {name} has the flow {flow} in the wrong place"
            continue
        have = (flow.weight, flow.maximum, flow.minimum)
        if have != (group.weight, group.maximum, group.minimum):
            yield f"{flow.id} has {have}, its group says otherwise"
    yield from _jobs(state.slots, state.queue, state.flows)
    for flow in (flows.root, *flows.groups.values()):
        yield from _sums(flow)
        yield from _least(state.flows, flow)


def _jobs(slots: Slots, queue: WaitingQueue, flows: FlowTree) -> Iterator[str]:
    """Compares each job's counters with its slots and queued requests."""
    used: dict[str, Counter[str]] = {}
    running: Counter[str] = Counter()
    rates: dict[str, float] = {}
    for slot in slots.values():
        running[slot.job_id] += 1
        used.setdefault(slot.job_id, Counter()).update(counted(slot.booked))
        if slot.state is not SlotState.FREEING:
            rates[slot.job_id] = rates.get(slot.job_id, 0.0) + slot.cost
    waiting: Counter[str] = Counter()
    for job_queue in queue.job_queues():
        waiting[job_queue.job_id] += len(job_queue.numbers)
    for item in queue.non_batchables.all():
        waiting[item.job_id] += item.count
    for job_id, flow in flows.jobs.items():
        have = (flow.running, flow.waiting, flow.rate, flow.used)
        expected = (
            running[job_id],
            waiting[job_id],
            rates.get(job_id, 0.0),
            dict(used.get(job_id, {})),
        )
        if have != expected:
            yield f"{flow.id} counts (running, waiting, rate, used) {have}, it is {expected}"


def _sums(flow: Flow) -> Iterator[str]:
    """Compares each group's counters with the sums over its children."""
    children = list(flow.children.by_id.values()) if flow.children is not None else []
    used: Counter[str] = Counter()
    for child in children:
        used.update(child.used)
    have = (flow.running, flow.waiting, flow.rate, flow.active, flow.used)
    expected = (
        sum(child.running for child in children),
        sum(child.waiting for child in children),
        sum(child.rate for child in children),
        sum(child.active > 0 for child in children),
        dict(used),
    )
    if have != expected:
        yield f"{flow.id} counts (running, waiting, rate, active, used) {have}, it is {expected}"


def _least(flows: FlowTree, flow: Flow) -> Iterator[str]:
    """Compares the child that is served next with a full search; only active children may take
    part.
    """
    if flow.children is None:
        return
    found = flows.first_child(flow)
    active = [child for child in flow.children.by_id.values() if child.active]
    if (found is None) != (not active):
        yield f"{flow.id} has {found} first, of {len(active)} that are active"
    if found is None or not active:
        return
    seated = flow.children.fair.entries() + flow.children.below_minimum.entries()
    if len(seated) != len(active) or {each.id for each in seated} != {each.id for each in active}:
        yield f"{flow.id}: {seated} take part, {active} are active"
    expected = min(active, key=flows.sort_key)
    below_minimum = fulfilment(expected.used, expected.minimum) < 1
    if found.below_minimum != below_minimum:
        yield f"{flow.id} has {found} first, and {expected} lacks its minimum: {below_minimum}"
    one, other = flows.sort_key(found)[1], flows.sort_key(expected)[1]
    if not isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE):
        yield f"{flow.id} has {found} first ({one}), least is {expected} ({other})"

"""Checks the groups of the fairness tree and the order of their children. `all.py` runs these
checks.

The flows of jobs are checked in `jobs.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import isclose

from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.invariants.sweep import Finding, add_up
from resource_manager.engine.model.entities import Group

CLOSE = 1e-9
"""Relative tolerance for virtual times, because sums of floats depend on the order of the
addends.
"""


def group_problems(flows: FlowTree, groups: dict[str, Group], name: str) -> Iterator[Finding]:
    """Yields problems of a group and its children."""
    group = groups.get(name)
    if group is None:
        return
    flow = flows.groups.get(name)
    above = flows.groups.get(group.parent) if group.parent else flows.root
    # If the flow is missing or below a wrong parent, findings about its children would be
    # misleading.
    if flow is None or flow.parent is not above:
        yield f"the flow of group {name} is missing or below a wrong parent: {flow}"
        return
    have = (flow.weight, flow.maximum, flow.minimum)
    expected = (group.weight, group.maximum, group.minimum)
    if have != expected:
        yield f"{flow.id} has (weight, maximum, minimum) {have}, but its group has {expected}"
    yield from _children(flows, flow)


def tree_problems(flows: FlowTree, groups: dict[str, Group]) -> Iterator[Finding]:
    """Yields problems of the root and of limited users. Also reports if the tree and the state have
    different groups.
    """
    if flows.groups.keys() != groups.keys():
        yield f"the tree has groups {sorted(flows.groups)}, but the groups are {sorted(groups)}"
    yield from _users(flows)
    yield from _children(flows, flows.root)


def _users(flows: FlowTree) -> Iterator[Finding]:
    """Compares the use of each limited user with the sum over its jobs."""
    users = flows.users
    for user, flow in users.flows.items():
        used: Counter[str] = Counter()
        jobs = users.jobs_of(user).values()
        for job in jobs:
            used.update(counted(job.used))
            if job.user is not flow:
                yield f"{job.id} does not count for {user}"
        running = sum(job.running for job in jobs)
        if (counted(flow.used), flow.running) != (counted(used), running):
            yield (
                f"{user} uses {counted(flow.used)} in {flow.running} slots, but its jobs use"
                f" {counted(used)} in {running}"
            )


def _children(flows: FlowTree, flow: Flow) -> Iterator[Finding]:
    """Compares the counters of a group with the sums over its children. Also compares each child
    with the child that is served next.
    """
    if flow.children is None:
        return
    used: Counter[str] = Counter()
    running = waiting = active = 0
    rate = 0.0
    problems: list[str] = []

    def add(child: Flow) -> None:
        nonlocal running, waiting, rate, active
        used.update(counted(child.used))
        running += child.running
        waiting += child.waiting
        rate += child.rate
        active += child.active > 0
        # Compare this child with the first child now, and not after the sum, because the first
        # child can change during a pause.
        problems.extend(_order(flows, flow, child))

    children = list(flow.children.by_id.values())
    # Problems of one child are valid even if the sum is not complete.
    complete = yield from add_up(children, add, lambda: flow.moves)
    yield from problems
    if not complete:
        return
    have = (flow.running, flow.waiting, flow.rate, flow.active, flow.used)
    expected = (running, waiting, rate, active, dict(used))
    if have != expected:
        yield f"{flow.id} has (running, waiting, rate, active, used) {have}, expected {expected}"
    first = flow.children.first() if flow.children is not None else None
    if (first is None) != (not active):
        yield f"{flow.id} has {first} as its first child, but {active} active children"
    seated = flow.children.seated()
    if seated != active:
        yield f"{flow.id}: {seated} children take part in the order, but {active} are active"


def _order(flows: FlowTree, flow: Flow, child: Flow) -> Iterator[str]:
    """Checks that an active child is in the order and an inactive child is not. Also checks that
    the child does not come before the first child.
    """
    first = flow.children.first() if flow.children is not None else None
    if (child.active > 0) != (child.seat >= 0):
        yield f"{child.id} is active: {child.active}, takes part in the order: {child.seat >= 0}"
    if first is None or not child.active:
        return
    reached, level, virtual_time, _ = flows.sort_key(child)
    below_minimum = not reached
    if below_minimum != child.below_minimum or below_minimum > first.below_minimum:
        yield f"{flow.id} has {first} first, but {child} is below its minimum: {below_minimum}"
    # Virtual times are compared only if both flows are below their minimum, or both are above it.
    if below_minimum != first.below_minimum:
        return
    _, first_level, least, _ = flows.sort_key(first)
    if level < first_level:
        yield f"{flow.id} has {first} first, but {child} has a higher priority"
    # Virtual times are compared only between jobs with the same priority.
    if level != first_level:
        return
    # Rounding differences do not count: sums of floats depend on the order of the addends.
    if least > virtual_time and not isclose(least, virtual_time, rel_tol=CLOSE, abs_tol=CLOSE):
        yield (
            f"{flow.id} has {first} first, with the virtual time {least},"
            f" but {child} has the lower virtual time {virtual_time}"
        )

"""Builds the views of resource groups and of the usage of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.groups import in_order
from resource_manager.engine.model.entities import Group


@dataclass(frozen=True, slots=True)
class FlowView:
    """The usage of a flow at one moment.

    Attributes:
        share_now: the usage per second of the flow's slots, divided by the usage per second of all
            slots; from 0 to 1.
        service: the decayed usage of the flow, in cost times seconds.
        tally: the virtual time of the flow, by which the scheduler compares siblings.
        oldest_wait_time_ms: the time at which the flow's oldest queued request began to wait (wall
            clock). None if the flow has no queued request.
    """

    share_now: float
    service: float
    tally: float
    oldest_wait_time_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group with its usage. All numbers include the groups below the group.

    Attributes:
        share_entitled: the share to which the group is entitled by its weight, from 0 to 1. It is 0
            for a group without queued requests and running slots, because such a group takes no
            share.
        jobs: the number of the group's jobs that have not ended.
    """

    group: Group
    flow: FlowView
    share_entitled: float
    used: Mapping[str, int]
    running: int
    waiting: int
    jobs: int


IDLE = FlowView(0.0, 0.0, 0.0, None)
"""The usage of a job that has ended."""


def group_views(
    tree: FlowTree, groups: Mapping[str, Group], waiting_since: Mapping[str, int]
) -> list[GroupView]:
    """Returns all groups. A parent comes before its children, and siblings are sorted by name.

    The cost is linear in the number of groups. The cost must not depend on the number of jobs,
    because a cluster can have 100,000 jobs.

    Args:
        tree: the fairness tree, advanced to the current time.
        groups: all groups, by name.
        waiting_since: the time at which the oldest queued request of the group's own jobs began to
            wait (wall clock), by group.
    """
    ordered = in_order(groups)
    jobs = {group.name: len(_children(tree.groups[group.name])) for group in ordered}
    oldest = dict(waiting_since)
    # The lowest groups come first, so that the sum of each group is complete before it is added to
    # the sum of the parent.
    for group in reversed(ordered):
        if above := group.parent:
            # `jobs[above]` also counts this group as one of its children, so subtract 1.
            jobs[above] += jobs[group.name] - 1
            since_ms = oldest.get(group.name)
            if since_ms is not None:
                oldest[above] = min(since_ms, oldest.get(above, since_ms))
    entitled = entitlements(tree)
    return [
        GroupView(
            group=group,
            flow=_view(tree, flow, oldest.get(group.name)),
            share_entitled=entitled.get(flow.id, 0.0),
            used=dict(flow.used),
            running=flow.running,
            waiting=flow.waiting,
            jobs=jobs[group.name],
        )
        for group in ordered
        if (flow := tree.groups[group.name])
    ]


def job_flow(tree: FlowTree, job_id: str, oldest_wait_time_ms: int | None) -> FlowView:
    """Returns the usage of a job. The result is `IDLE` if the job has ended.

    Args:
        tree: the fairness tree, advanced to the current time.
        job_id: the id of the job.
        oldest_wait_time_ms: the time at which the job's oldest queued request began to wait (wall
            clock). None if the job has no queued request.
    """
    flow = tree.jobs.get(job_id)
    if flow is None:
        return IDLE
    return _view(tree, flow, oldest_wait_time_ms)


def entitlements(tree: FlowTree, weights: Mapping[str, float] = {}) -> dict[str, float]:
    """Returns the share to which each group is entitled, by flow id. A group without a share is
    left out.

    Example: groups a (weight 1) and b (weight 3) have work, so a is entitled to 0.25 and b to 0.75.
    Group b has two subgroups of weight 1. Only one subgroup has work, so it is entitled to the
    whole 0.75.

    Args:
        tree: the fairness tree.
        weights: weights that replace weights of the tree, by flow id.
    """
    with_parts = {flow.parent.id for flow in tree.groups.values() if flow.parent is not None}
    found = {tree.root.id: 1.0}
    left = [tree.root]
    while left:
        flow = left.pop()
        if flow.id not in with_parts:
            continue  # all children are jobs, of which there can be very many
        children = _children(flow).values()
        # Divide the share of the parent among the children that have work.
        total = sum(weights.get(child.id, child.weight) for child in children if _has_work(child))
        for child in children:
            # The result contains only groups, but `total` also contains the weights of jobs.
            if child.children is not None and _has_work(child):
                found[child.id] = found[flow.id] * weights.get(child.id, child.weight) / total
                left.append(child)
    return found


def _children(flow: Flow) -> Mapping[str, Flow]:
    return flow.children.by_id if flow.children is not None else {}


def _has_work(flow: Flow) -> bool:
    return bool(flow.waiting or flow.rate)


def _view(tree: FlowTree, flow: Flow, oldest_ms: int | None) -> FlowView:
    usage, whole = tree.usage(flow), tree.root.rate
    return FlowView(
        share_now=flow.rate / whole if whole else 0.0,
        service=usage.service,
        tally=usage.key,
        oldest_wait_time_ms=oldest_ms,
    )

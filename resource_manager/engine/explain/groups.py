"""What people may look at of resource groups, and of what jobs have received. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.groups import in_order
from resource_manager.engine.model.entities import Group


@dataclass(frozen=True, slots=True)
class FlowView:
    """How a flow stands. Shares are parts of all service that is being received, 0 to 1.

    Attributes:
        share_now: what its slots receive.
        service: received lately, in cost times seconds, decayed.
        tally: what it is compared by with its siblings.
        oldest_wait_time_ms: since when the one waits that has waited longest; None: nobody waits.
    """

    share_now: float
    service: float
    tally: float
    oldest_wait_time_ms: int | None


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group, how it stands, and what there is of it and below it.

    Attributes:
        share_entitled: by weight, among those that wait or run at the moment; 0 if it does neither.
        jobs: that live.
    """

    group: Group
    flow: FlowView
    share_entitled: float
    used: Mapping[str, int]
    running: int
    waiting: int
    jobs: int


IDLE = FlowView(0.0, 0.0, 0.0, None)
"""How a job stands that has ended."""


def group_views(
    tree: FlowTree, groups: Mapping[str, Group], waiting_since: Mapping[str, int]
) -> list[GroupView]:
    """All groups, parents before their parts, by name among siblings.

    Looks at no job: there may be a hundred thousand.

    Args:
        tree: as of the moment that is asked about.
        groups: by name.
        waiting_since: by group in whose jobs something waits (not in groups below it), the time
            (wall clock) since which the oldest request does.
    """
    ordered = in_order(groups)
    jobs = {group.name: len(_children(tree.groups[group.name])) for group in ordered}
    oldest = dict(waiting_since)
    for group in reversed(ordered):
        if above := group.parent:
            jobs[above] += jobs[group.name] - 1  # itself is none of the jobs there
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
    """How a job stands; `IDLE` if it has ended."""
    flow = tree.jobs.get(job_id)
    if flow is None:
        return IDLE
    return _view(tree, flow, oldest_wait_time_ms)


def entitlements(tree: FlowTree) -> dict[str, float]:
    """The share of each group that it is entitled to, by flow, where that is not 0."""
    with_parts = {flow.parent.id for flow in tree.groups.values() if flow.parent is not None}
    found = {tree.root.id: 1.0}
    left = [tree.root]
    while left:
        flow = left.pop()
        if flow.id not in with_parts:
            continue  # jobs alone, and there may be very many
        children = _children(flow).values()
        total = sum(child.weight for child in children if _has_work(child))
        for child in children:
            if child.children is not None and _has_work(child):
                found[child.id] = found[flow.id] * child.weight / total
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

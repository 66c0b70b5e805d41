"""Computes how many slots the next job gets in one run, and decides whether a job has received its
share.

A job is served in *runs* of several slots. So the scheduler does not have to choose a job for every
slot. A run ends when another flow would come first at some level of the tree. But a run has at
least one slot, and at least 1/64 of the running slots of the flow at this level. So before a
sibling is served, a flow can exceed its share by at most one slot, or by 1/64 of its slots. If no
other job waits, a job is served in a single run.

Example: in the example of `flows.py`, a run of group `medium` has ceil((160 - 120) / 7.5) = 6
slots.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import ceil, inf

from resource_manager.engine.fairness.flows import Flow, FlowTree, SortKey

RUN_PART = 64
"""The divisor for the shortest run. A run has at least 1/64 of the running slots of a flow."""

ROUNDED = 1e-9  # tolerance for rounding errors in virtual times


def run_length(tree: FlowTree, job: Flow, cost: float) -> float:
    """Returns the number of slots that the first job gets before another flow comes first.

    Args:
        tree: the fairness tree.
        job: the job that `FlowTree.first_job` returned.
        cost: the cost per second of each slot.

    Returns:
        The number of slots, at least 1. The result is infinite if no other flow is active.
    """
    length = inf
    flow = job
    # Each level can only shorten the run, so the loop can end when the run has one slot.
    while flow.parent is not None and length > 1:
        second = flow.parent.children.second() if flow.parent.children is not None else None
        if second is not None:
            length = min(length, max(1, flow.running // RUN_PART, _lead(tree, flow, second, cost)))
        flow = flow.parent
    return length


def order_key_of(tree: FlowTree, job: Flow) -> tuple[SortKey, ...]:
    """Returns the key that orders jobs. The job with the lowest key comes first.

    The key consists of the sort keys of the job's ancestors, from the root down, and the sort key
    of the job itself.
    """
    path = [job, *job.ancestors()]
    return tuple(tree.sort_key(flow) for flow in reversed(path[:-1]))


def _lead(tree: FlowTree, flow: Flow, second: Flow, cost: float) -> float:
    """Returns the number of slots that the flow can get until `second` comes before it in the
    order.
    """
    if flow.below_minimum:
        # Flows below their minimum are compared by booked amounts, and booked amounts cannot be
        # computed from costs.
        return 0
    step = tree.lookahead_s * cost * tree.clock.scale / flow.weight
    if not step:
        return inf  # without a lookahead, a new slot does not change the virtual time at once
    tau = tree.clock.tau
    # The number is rounded up, because the last of these slots makes the flow come after `second`.
    # Because of the tolerance, a rounding error does not add a slot.
    return ceil((second.at(tau) - flow.at(tau)) / step - ROUNDED)


class SharesSince:
    """Decides whether a job has received at most its share since a given time.

    At each level of the tree, the flow is compared with some of its siblings. A sibling that was
    not served since the given time is left out, because its requests possibly fit on no host. A
    sibling that does not wait any more is also left out, because it does not compete. Sums are
    cached until the next placement.
    """

    def __init__(self, tree: FlowTree) -> None:
        self._tree = tree
        self._placements = tree.placements
        self._served: dict[Flow, tuple[list[int], list[tuple[float, float]]]] = {}

    def is_owed(self, job_id: str, since_ms: int) -> bool:
        """Returns True if neither the job nor any group above it has received more than its share
        since `since_ms`.
        """
        tree = self._tree
        if self._placements != tree.placements:
            self._placements = tree.placements
            self._served.clear()
        flow = tree.jobs[job_id]
        while flow.parent is not None:
            by_priority = _owed_by_priority(flow, since_ms)
            if by_priority is False:
                return False
            if by_priority is None and not self._is_owed_by_usage(flow, flow.parent, since_ms):
                return False
            flow = flow.parent
        return True

    def _is_owed_by_usage(self, flow: Flow, parent: Flow, since_ms: int) -> bool:
        times, sums = self._served_below(parent)
        # The times are negated and ascending, so the bisection selects the flows that were served
        # at `since_ms` or later.
        used, weight = sums[bisect_right(times, -since_ms)]
        # This line compares the key with used / weight without a division. If no flow was selected,
        # both sums are 0, and the flow counts as owed.
        return not self._tree.key(flow) * weight > used * (1 + ROUNDED)

    def _served_below(self, parent: Flow) -> tuple[list[int], list[tuple[float, float]]]:
        """Returns two lists. The first list contains the times at which the waiting children were
        last served, as negative numbers. The numbers are in ascending order, so the latest time
        comes first. The second list contains, for each n, the sums of usage and weight of the first
        n children.
        """
        known = self._served.get(parent)
        if known is None:
            children = parent.children.by_id.values() if parent.children is not None else ()
            served = sorted(
                (-flow.served_ms, self._tree.key(flow) * flow.weight, flow.weight)
                for flow in children
                if flow.waiting and flow.served_ms is not None
            )
            used = accumulate((each[1] for each in served), initial=0.0)
            weight = accumulate((each[2] for each in served), initial=0.0)
            known = [each[0] for each in served], list(zip(used, weight, strict=True))
            self._served[parent] = known
        return known


def _owed_by_priority(flow: Flow, since_ms: int) -> bool | None:
    """Returns whether a job may claim capacity because of its priority. The result is False if jobs
    with a higher priority were served since `since_ms`, because these jobs come first anyway.
    Otherwise it is True if jobs with a lower priority were served since then. Otherwise it is None,
    and usage decides.
    """
    siblings = flow.parent.children if flow.parent is not None else None
    if siblings is None or flow.children is not None or len(siblings.levels) == 1:
        return None
    served = [
        each.priority
        for each in siblings.by_id.values()
        if each.children is None
        and each.waiting
        and each.served_ms is not None
        and each.served_ms >= since_ms
    ]
    if any(priority > flow.priority for priority in served):
        return False
    return True if any(priority < flow.priority for priority in served) else None

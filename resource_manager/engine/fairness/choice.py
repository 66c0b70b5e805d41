"""Picks the job that is served next, and how many slots it gets in one go.

From the root down, each step takes the child that comes first (`flows.py`), until it reaches a job.
With groups below the root and jobs below them, that is the first group, then the first job in it.

A job is served in *runs*, so that the order need not be asked for every slot. A run ends when
another flow would come first at some level. It has at least one slot, or 1/64 of the slots that the
flow at that level has running. So a job that is alone is served in a single run, and no flow gets
ahead of a sibling by more than one slot or that part.

Example: with the two groups of the example in `flows.py`, a run of `medium` has ceil((160 - 120) /
7.5) = 6 slots.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from math import ceil, inf

from resource_manager.engine.fairness.flows import Flow, FlowTree, SortKey

RUN_PART = 64
"""A run has at least 1/64 of the slots that a flow has running."""

_ROUNDED = 1e-9  # Tolerance for rounding errors in virtual times.


def first_job(tree: FlowTree) -> Flow | None:
    """Returns the job that is served next; None: none is active."""
    flow = tree.root
    while flow.children is not None:
        below = tree.first_child(flow)
        if below is None:
            return None
        flow = below
    return flow


def run_length(tree: FlowTree, job: Flow, cost: float) -> float:
    """Returns how many slots the job that is next gets before another flow comes first.

    Args:
        tree: the fairness tree.
        job: the job that `first_job` returned.
        cost: cost per second of each slot.

    Returns:
        At least 1; infinite if no other flow is active.
    """
    length = inf
    flow = job
    # On the way up the run can only get shorter, so one slot ends the search.
    while flow.parent is not None and length > 1:
        second = tree.second_child(flow.parent)
        if second is not None:
            length = min(length, max(1, flow.running // RUN_PART, _lead(tree, flow, second, cost)))
        flow = flow.parent
    return length


def order_key_of(tree: FlowTree, job: Flow) -> tuple[SortKey, ...]:
    """Returns what a job is compared with any other job by, the lesser first: the sort keys of its
    ancestors and of the job among their siblings, from the root down.
    """
    path = [job, *job.ancestors()]
    return tuple(tree.sort_key(flow) for flow in reversed(path[:-1]))


def _lead(tree: FlowTree, flow: Flow, second: Flow, cost: float) -> float:
    """Returns how many more slots a flow needs until it comes after the second one."""
    if flow.below_minimum:
        return 0  # the share of a minimum is in booked amounts, which costs do not tell
    step = tree.lookahead_s * cost * tree.clock.scale / flow.weight
    if not step:
        return inf  # only past usage counts then, and placing slots does not change it now
    tau = tree.clock.tau
    # With the last of these slots the flow is behind the second one, so this is rounded up. The
    # tolerance keeps a rounding error from adding one more.
    return ceil((second.at(tau) - flow.at(tau)) / step - _ROUNDED)


class SharesSince:
    """Tells whether a job has received no more than its share since some moment.

    At each level it is compared with its siblings that were served since and still wait. A request
    that can never be placed must not make all others look well served, and a job that has all it
    asked for takes nothing from others. Sums are cached until something is placed.
    """

    def __init__(self, tree: FlowTree) -> None:
        self._tree = tree
        self._placements = tree.placements
        self._served: dict[Flow, tuple[list[int], list[tuple[float, float]]]] = {}

    def is_owed(self, job_id: str, since_ms: int) -> bool:
        """Returns True if neither a job nor a group above it has received more than its share."""
        tree = self._tree
        if self._placements != tree.placements:
            self._placements = tree.placements
            self._served.clear()
        flow = tree.jobs[job_id]
        while flow.parent is not None:
            times, sums = self._served_below(flow.parent)
            # Times are negative and ascending, so this counts the flows served at `since_ms` or
            # later.
            used, weight = sums[bisect_right(times, -since_ms)]
            # Multiplied crosswise: without such flows both sums are 0 and the check passes.
            if tree.key(flow) * weight > used * (1 + _ROUNDED):
                return False
            flow = flow.parent
        return True

    def _served_below(self, parent: Flow) -> tuple[list[int], list[tuple[float, float]]]:
        """Returns the negative times at which children were served, ascending, and for each number
        of them the sums of usage and weight of the first ones.
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

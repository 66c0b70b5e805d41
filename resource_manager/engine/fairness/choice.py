"""Who is served next, and how many of its requests in one go.

From the root down, each step takes the child that is to be served first (`flows.py`), until a job
is reached: with groups below the root and jobs below them, the least served group, then the least
served job of it.

A *run* of one job lasts until, at some level, another flow would come first; and at the least for
one slot, or for 1/64 of what the flow at that level has running. So whoever is alone is served
without asking again, many who are served side by side take turns a few hundred times and not once
per slot, and nobody gets ahead of a sibling by more than that part, or one slot.
"""

from __future__ import annotations

from math import ceil, inf

from resource_manager.engine.fairness.flows import Flow, FlowTree, SortKey

RUN_PART = 64
"""A run takes at least one part in so many of what a flow has running."""

_ROUNDED = 1e-9


def first_job(tree: FlowTree) -> Flow | None:
    """The job that is to be served next; None: none has a turn."""
    flow = tree.root
    while flow.children is not None:
        below = tree.first_child(flow)
        if below is None:
            return None
        flow = below
    return flow


def run_length(tree: FlowTree, job: Flow, cost: float) -> float:
    """How many slots of this cost (each) the job that is to be served next is to get before anybody
    else is; infinite if nobody else has a turn.
    """
    length = inf
    flow = job
    while flow.parent is not None and length > 1:
        second = tree.second_child(flow.parent)
        if second is not None:
            length = min(length, max(1, flow.running // RUN_PART, _lead(tree, flow, second, cost)))
        flow = flow.parent
    return length


def order_key_of(tree: FlowTree, job: Flow) -> tuple[SortKey, ...]:
    """By what a job is compared with others, the lesser first: how it and its ancestors stand
    among their siblings, from the root down.
    """
    path = [job, *job.ancestors()]
    return tuple(tree.sort_key(flow) for flow in reversed(path[:-1]))


def _lead(tree: FlowTree, flow: Flow, second: Flow, cost: float) -> float:
    """How many slots it takes until a flow comes behind one that is behind it now."""
    if flow.below_minimum:
        return 0  # what it lacks is not counted in costs
    step = tree.lookahead_s * cost * tree.clock.scale / flow.weight
    if not step:
        return inf  # only what was received counts, and that does not change now
    tau = tree.clock.tau
    return ceil((second.at(tau) - flow.at(tau)) / step - _ROUNDED)

"""Orders the active jobs of a fairness tree with heaps. The heaps are used while requests of many
jobs are chosen one after the other and no time passes.

In this case, a heap per group is faster than the tournaments of the group (`siblings.py`): if no
time passes, only the chosen job and its groups change their places. The tournaments are not updated
until their next read.
"""

from __future__ import annotations

import heapq
from math import ceil, inf

from resource_manager.engine.fairness.choice import ROUNDED, RUN_PART, run_length
from resource_manager.engine.fairness.flows import Flow, FlowTree

_Place = tuple[bool, int, float, tuple[int, str], Flow]
"""The parts of the sort key of a flow (`SortKey`), and the flow. Heaps compare such flat tuples in
less time than nested ones.
"""


class JobHeaps:
    """The active flows of a tree, by group. The heap of a group is built when the group first
    comes next in order.

    While the heaps are used, the caller must change only one job in the tree, namely the job that
    `first` returned, with the groups above this job. After each change, the caller must call
    `served`.
    """

    def __init__(self, tree: FlowTree) -> None:
        self._tree = tree
        self._heaps: dict[Flow, list[_Place]] = {}

    def first(self) -> Flow | None:
        """Returns the job that is served next, or None if no job is active."""
        flow, heaps = self._tree.root, self._heaps
        while flow.children is not None:
            heap = heaps.get(flow)
            if heap is None:
                heap = heaps[flow] = self._built(flow)
            if not heap:
                return None
            flow = heap[0][4]
        return flow

    def run_length(self, job: Flow, cost: float) -> float:
        """Returns the number of slots that the first job gets before another flow comes first, in
        the same way as `choice.run_length`.
        """
        tree, length = self._tree, inf
        step = tree.lookahead_s * cost * tree.clock.scale
        flow = job
        # Each level can only shorten the run, so the loop can end when the run has one slot.
        while flow.parent is not None and length > 1:
            heap = self._heaps[flow.parent]
            if len(heap) > 1:
                # The second child in order is one of the two children of the heap's root.
                second = heap[1] if len(heap) == 2 or heap[1] < heap[2] else heap[2]
                least = max(1, flow.running // RUN_PART)
                length = min(length, max(least, _lead(heap[0], second, step / flow.weight)))
            flow = flow.parent
        return length

    def served(self, job: Flow) -> None:
        """Updates the places of the first job and its groups, after the job has got slots or has
        become inactive.
        """
        flow, sort_key = job, self._tree.sort_key
        while flow.parent is not None:
            heap = self._heaps[flow.parent]
            siblings = flow.parent.children
            if flow.active:
                heapq.heapreplace(heap, (*sort_key(flow), flow))
            elif siblings is not None and not siblings.has_level_of(flow):
                # Now jobs with a lower priority come next, so the keys of the sibling groups
                # change. The heap is built again when it is needed.
                del self._heaps[flow.parent]
            else:
                heapq.heappop(heap)
            flow = flow.parent

    def _built(self, group: Flow) -> list[_Place]:
        children = group.children.by_id.values() if group.children is not None else ()
        sort_key = self._tree.sort_key
        heap = [(*sort_key(flow), flow) for flow in children if flow.active and not flow.paused]
        heapq.heapify(heap)
        return heap


class JobTournaments:
    """Finds the same order as `JobHeaps`, with the tournaments. Each choice takes longer, but no
    heaps must be built. So this class is faster if there are very many jobs.
    """

    def __init__(self, tree: FlowTree) -> None:
        self._tree = tree

    def first(self) -> Flow | None:
        """Returns the job that is served next, or None if no job is active."""
        return self._tree.first_job()

    def run_length(self, job: Flow, cost: float) -> float:
        """Returns the number of slots that the first job gets before another flow comes first."""
        return run_length(self._tree, job, cost)

    def served(self, job: Flow) -> None:
        """Does nothing: the tree has marked the changed flows."""


def _lead(first: _Place, second: _Place, step: float) -> float:
    """Returns the number of slots after which the first flow comes after the second flow. Each slot
    adds `step` to the virtual time of the first flow.
    """
    # Flows below their minimum are compared by booked amounts, and booked amounts cannot be
    # computed from costs.
    if not first[0]:
        return 0
    # The second flow has a lower priority, so it comes first only when no job with a higher
    # priority is active.
    if first[1] != second[1]:
        return inf
    return ceil((second[2] - first[2]) / step - ROUNDED) if step else inf

"""The gangs and resizes of one pass, in the order in which they are tried: by the fairness tree,
then by arrival.

Each job has a heap of its items, and each group a heap of what is below it, for the groups on the
way to an item. An entry is corrected only when it comes first. That suffices, because placing
something moves its job and the groups above it back in the order, and nothing forward. So one entry
of each level is corrected after a placement, however many jobs and items wait.

Example: the group `a` has 1,000 jobs with a gang each, and `b` has one. A gang of `a` is placed.
When the next one is wanted, `a` is moved behind `b` in the heap of the root. The heap of `a`, where
one job is outdated, is not looked at before `a` comes first again.
"""

from __future__ import annotations

import heapq

from resource_manager.engine.fairness.flows import Flow, FlowTree, SortKey

OrderKey = tuple[SortKey, ...]
"""What jobs are compared by, the lesser first; see `fairness.choice.order_key_of`."""

Rank = tuple[OrderKey, int]
"""The order of an item: that of its job, then its arrival number."""

_ALL_JOBS = ""
"""Used in place of a job's id if items go in order of arrival."""


class ItemOrder:
    """The items of one pass.

    Args:
        tree: orders the jobs; None: items go in order of arrival.
    """

    def __init__(self, tree: FlowTree | None) -> None:
        self._tree = tree
        self._jobs: dict[int, str] = {}  # by arrival number of the item
        # Heaps of arrival numbers. An item that was taken out is dropped when it comes first.
        self._by_job: dict[str, list[int]] = {}
        # Heaps of what is below a group, with the key that it had when it was looked at last.
        self._below: dict[Flow, list[tuple[SortKey, Flow]]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    def add(self, number: int, job_id: str) -> None:
        """Adds an item. `refresh` must be called before `first`."""
        if not self._jobs:  # drops what is left of the last pass
            self._by_job.clear()
        self._jobs[number] = job_id
        owner = job_id if self._tree is not None else _ALL_JOBS
        heapq.heappush(self._by_job.setdefault(owner, []), number)

    def discard(self, number: int) -> None:
        """Takes out the item with this arrival number, if it is there."""
        self._jobs.pop(number, None)

    def refresh(self) -> None:
        """Orders the jobs by what they have used by now. Until the next call, a job may move back
        in the order but never forward.
        """
        tree = self._tree
        if tree is None:
            return
        self._below = {}
        for job_id in list(self._by_job):
            if self._first_of(job_id) is None:
                del self._by_job[job_id]
                continue
            flow = tree.jobs[job_id]
            # Up to the first group that another job has brought in already.
            while flow.parent is not None:
                known = flow.parent in self._below
                self._below.setdefault(flow.parent, []).append((tree.sort_key(flow), flow))
                if known:
                    break
                flow = flow.parent
        for heap in self._below.values():
            heapq.heapify(heap)

    def first(self) -> Rank | None:
        """Returns the rank of the first item; None: there is none."""
        if self._tree is not None:
            return self._first_below(self._tree, self._tree.root)
        number = self._first_of(_ALL_JOBS)
        return None if number is None else ((), number)

    def _first_below(self, tree: FlowTree, flow: Flow) -> Rank | None:
        """Returns the rank of the first item of a job, or below a group, compared there."""
        if flow.children is None:
            number = self._first_of(flow.name)
            return None if number is None else ((), number)
        heap = self._below.get(flow, [])
        while heap:
            known, child = heap[0]
            if (key := tree.sort_key(child)) != known:  # it has used more since
                heapq.heapreplace(heap, (key, child))
            elif (found := self._first_below(tree, child)) is not None:
                return (key, *found[0]), found[1]
            else:
                heapq.heappop(heap)
        return None

    def _first_of(self, job_id: str) -> int | None:
        """Returns the arrival number of a job's oldest item."""
        numbers = self._by_job.get(job_id, [])
        while numbers and numbers[0] not in self._jobs:
            heapq.heappop(numbers)
        return numbers[0] if numbers else None

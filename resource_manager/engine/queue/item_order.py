"""The gangs and resizes of one pass, in the order in which they are tried: by the fairness tree,
then by arrival.

Each job has a heap of its items. Each group above such a job has a heap of its children (groups and
jobs). An entry's key is corrected only when the entry is at the top of its heap. That suffices: a
placement moves the job and its groups back in the order, and moves nothing forward. So after a
placement one entry of each level is corrected, however many jobs and items wait.

Example: the group `a` has 1,000 jobs with a gang each, and `b` has one. A gang of `a` is placed.
The next call of `first` moves `a` behind `b` in the heap of the root. In the heap of `a`, the key
of one job is now outdated. That heap is not read until `a` comes first again.
"""

from __future__ import annotations

import heapq

from resource_manager.engine.fairness.flows import Flow, FlowTree, SortKey

OrderKey = tuple[SortKey, ...]
"""The key by which jobs are sorted, in ascending order; see `fairness.choice.order_key_of`."""

Rank = tuple[OrderKey, int]
"""The sort key of an item: the key of its job, then its arrival number."""

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
        # Heaps of arrival numbers. The number of a removed item is dropped when it comes first.
        self._by_job: dict[str, list[int]] = {}
        # For each group, a heap of its children. A child's key may be outdated.
        self._below: dict[Flow, list[tuple[SortKey, Flow]]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, number: int) -> bool:
        return number in self._jobs

    def add(self, number: int, job_id: str) -> None:
        """Adds an item. `refresh` must be called before `first`."""
        if not self._jobs:  # the last pass is over: drop the numbers that it left in the heaps
            self._by_job.clear()
        self._jobs[number] = job_id
        owner = job_id if self._tree is not None else _ALL_JOBS
        heapq.heappush(self._by_job.setdefault(owner, []), number)

    def discard(self, number: int) -> None:
        """Removes the item with this arrival number, if it is in the pass."""
        self._jobs.pop(number, None)

    def refresh(self) -> None:
        """Orders the jobs by their current virtual time. The caller guarantees that until the next
        call no job moves forward in the order.
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
            # Adds the groups above the job, up to the first one that another job has added already.
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
        """Returns the first item of a job, or of all jobs below a group. Its rank holds only the
        keys of the levels below `flow`. None: there is no item.
        """
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

"""Whose turn it is. Decides which line is the next one, and how much of it goes in one go: of the
job that the tree of flows says is to be served first, the line of who has waited longest; without a
tree, of all. Refuses to know shapes and whether anything fits; who stands is told to it.
"""

from __future__ import annotations

from math import inf

from resource_manager.engine.fairness.choice import RUN_PART, first_job, run_length, turn_of
from resource_manager.engine.fairness.flows import GROUP, FlowTree
from resource_manager.engine.queue.non_batchable import NonBatchable, NonBatchables, OrderKey, Rank
from resource_manager.engine.queue.scheduling_classes import ActiveQueues, JobQueue

TOGETHER_MAX = 1_024
"""Requests that are placed together at most: what is looked up for them may be in vain."""

_EVERYBODY = ""
"""Instead of a job's id, where arrival alone decides."""


class ServiceOrder:
    """Lines that stand, by job, and what waits one by one beside them.

    Attributes:
        singles: what waits in the same line one by one.
    """

    def __init__(self, flows: FlowTree | None, *, fair: bool) -> None:
        """`flows`: who is served first. Without them, or with `fair` False, arrival alone
        decides.
        """
        self._tree = flows if fair else None
        self.singles = NonBatchables(flows, self._turn_of if fair and flows is not None else None)
        self._by_job: dict[str, ActiveQueues] = {}
        self._halted: list[str] = []

    def lines(self) -> dict[str, ActiveQueues]:
        """Where each job's lines stand; where arrival alone decides, all of them under no name."""
        return dict(self._by_job)

    def lines_of(self, job_id: str) -> ActiveQueues:
        """Where the lines of a job are to stand."""
        whose = job_id if self._tree is not None else _EVERYBODY
        among = self._by_job.get(whose)
        if among is None:
            among = self._by_job[whose] = ActiveQueues(whose)
        return among

    def forget(self, job_id: str) -> None:
        """A job has no lines any more."""
        if self._tree is not None:
            del self._by_job[job_id]

    def stand(self, job_queue: JobQueue) -> None:
        """A line that is parked is to have its turn again."""
        if job_queue.among.stand(job_queue) and self._tree is not None:
            self._tree.activate(job_queue.job_id)

    def unstand(self, job_queue: JobQueue) -> None:
        """A line is not to have a turn."""
        if job_queue.among.park(job_queue) and self._tree is not None:
            self._tree.deactivate(job_queue.job_id)

    def next_line(self) -> JobQueue | None:
        """The line whose turn it is among those that are not parked; None: nobody has one."""
        if self._tree is None:
            job_queues = self._by_job.get(_EVERYBODY)
        else:
            job = first_job(self._tree)
            job_queues = self._by_job[job.name] if job is not None else None
        return job_queues.first() if job_queues is not None else None

    def next_single(self, job_queue: JobQueue | None) -> NonBatchable | None:
        """What waits one by one and has its turn before a line (None: before nobody), taken out of
        the round. Whoever takes it lets it sleep or removes it.
        """
        if not self.singles.in_round:
            return None
        rank: Rank | None = None
        if job_queue is not None:
            rank = ((), job_queue.stands)
            if self._tree is not None:
                rank = (self._turn_of(job_queue.job_id), job_queue.stands)
        return self.singles.next_before(rank)

    def is_alone(self, job_queue: JobQueue) -> bool:
        """True if no other job has a turn."""
        if self._tree is None:
            return True
        job = self._tree.jobs[job_queue.job_id]
        return not self.singles.in_round and all(flow.active == 1 for flow in job.ancestors())

    def run_length(self, job_queue: JobQueue, cost: float) -> float:
        """How many slots of this cost a line whose turn it is gets before it is another job's."""
        if self._tree is None:
            return inf
        job = self._tree.jobs[job_queue.job_id]
        length = run_length(self._tree, job, cost)
        if self.singles.in_round and self.singles.until(job_queue.job_id) is None:
            length = min(length, max(1, job.running // RUN_PART))  # others may come first soon
        return length

    def next_of(self, job_queue: JobQueue, most: float) -> list[int]:
        """Arrival numbers of the next of a line whose turn it is: so many, of those who came before
        anything else that its job waits with.
        """
        count = TOGETHER_MAX if most > TOGETHER_MAX else int(most)
        until = self._until(job_queue)
        found: list[int] = []
        for start, end in job_queue.numbers.peek(count):
            if until is not None and end > until:
                found.extend(range(start, until))
                break
            found.extend(range(start, end))
        return found

    def halt(self, group_id: str) -> bool:
        """Nothing that there is room for may be placed in a group: nobody in it has a turn for the
        rest of this decision. False: where arrival alone decides, no group has turns.
        """
        if self._tree is None:
            return False
        self._tree.halt(self._tree.groups[group_id.removeprefix(GROUP)])
        self._halted.append(group_id)
        return True

    def end_halts(self) -> None:
        """All groups may have turns again."""
        while self._halted and self._tree is not None:
            self._tree.go_ahead(self._tree.groups[self._halted.pop().removeprefix(GROUP)])

    def _until(self, job_queue: JobQueue) -> int | None:
        """Arrival number of the next that a line's job waits with that is of another shape."""
        number = job_queue.among.until(job_queue)
        item = self.singles.until(job_queue.job_id if self._tree is not None else "")
        return item if number is None or (item is not None and item < number) else number

    def _turn_of(self, job_id: str) -> OrderKey:
        if self._tree is None or job_id not in self._tree.jobs:
            return ()
        return turn_of(self._tree, self._tree.jobs[job_id])

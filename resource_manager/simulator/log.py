"""Records all runs of threads, each with its place and its times. All tables, plots and measures
are computed from this record.

The record is stored in columns. So a million runs take only tens of megabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from finegrain.resources import ResourceProfile
from resource_manager.simulator.steps import Steps, steps_of

RUNNING = -1
K = TypeVar("K", bound=Hashable)


class Run(NamedTuple):
    """One thread of work in one slot. Times are virtual milliseconds."""

    job_id: str
    group: str
    thread: int  # index of the thread in the job, from 0
    node: str
    lane: int  # row of the node's timeline: the lowest free number
    submit_ms: int
    start_ms: int
    end_ms: int | None  # None: the thread still runs
    profile: ResourceProfile


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job that was submitted, and its progress."""

    job_id: str
    group: str
    submit_ms: int
    profile: ResourceProfile
    threads: int
    gang: bool = False  # whether all threads start at the same time
    work_ms: int = 0  # sum of the durations of the job's threads at speed 1
    longest_ms: int = 0  # the longest duration of a thread at speed 1
    rejected: str = ""  # the reason why the job was rejected; empty: it was not rejected
    started: int = 0
    finished: int = 0
    first_start_ms: int | None = None
    last_start_ms: int | None = None
    end_ms: int | None = None

    @property
    def waiting(self) -> int:
        """Number of threads that have not started."""
        return 0 if self.rejected or self.end_ms is not None else self.threads - self.started


class RunLog:
    """All runs in the order in which they started, and all jobs in the order of arrival."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobRecord] = {}
        self._job_list: list[JobRecord] = []
        self._numbers: dict[str, int] = {}
        self._nodes: list[str] = []
        self._node_numbers: dict[str, int] = {}
        # Numbers in flat arrays need much less memory than objects.
        self._job = array("l")
        self._thread = array("l")
        self._node = array("l")
        self._lane = array("l")
        self._start = array("q")
        self._end = array("q")

    def __len__(self) -> int:
        return len(self._start)

    def __getitem__(self, number: int) -> Run:
        job = self._job_list[self._job[number]]
        end_ms = self._end[number]
        return Run(
            job.job_id,
            job.group,
            self._thread[number],
            self._nodes[self._node[number]],
            self._lane[number],
            job.submit_ms,
            self._start[number],
            None if end_ms == RUNNING else end_ms,
            job.profile,
        )

    def __iter__(self) -> Iterator[Run]:
        return (self[number] for number in range(len(self)))

    def arrived(self, job: JobRecord) -> None:
        """Records the arrival of a job."""
        self.jobs[job.job_id] = job
        self._numbers[job.job_id] = len(self._job_list)
        self._job_list.append(job)

    def started(self, job: JobRecord, thread: int, node: str, lane: int, now_ms: int) -> int:
        """Records the start of a thread.

        Args:
            job: a job that has arrived.
            thread: index of the thread.
            node: name of the node on which it runs.
            lane: row of the node's timeline.
            now_ms: virtual time.

        Returns:
            The number of the run, for `ended`.
        """
        number = self._node_numbers.get(node)
        if number is None:
            number = self._node_numbers[node] = len(self._nodes)
            self._nodes.append(node)
        self._job.append(self._numbers[job.job_id])
        self._thread.append(thread)
        self._node.append(number)
        self._lane.append(lane)
        self._start.append(now_ms)
        self._end.append(RUNNING)
        job.started += 1
        job.last_start_ms = now_ms
        if job.first_start_ms is None:
            job.first_start_ms = now_ms
        return len(self._start) - 1

    def ended(self, number: int, now_ms: int) -> None:
        """Records the end of a run."""
        self._end[number] = now_ms
        self._job_list[self._job[number]].finished += 1

    def running(
        self,
        key: Callable[[Run], K],
        amount: Callable[[Run], float] = lambda _: 1,
    ) -> Mapping[K, Steps]:
        """Returns for each key the sum of `amount` over time.

        Args:
            key: returns the key of a run.
            amount: a function that returns the amount of a run. The default is 1 for each run, so
                runs are counted.
        """
        changes: dict[K, list[tuple[int, float]]] = {}
        for run in self:
            much = amount(run)
            some = changes.setdefault(key(run), [])
            some.append((run.start_ms, much))
            if run.end_ms is not None:
                some.append((run.end_ms, -much))
        return {name: steps_of(some) for name, some in changes.items()}

    def waiting(self, key: Callable[[Run], K]) -> Mapping[K, Steps]:
        """Returns for each key the number of waiting threads over time. Threads that never started
        are not counted.
        """
        changes: dict[K, list[tuple[int, float]]] = {}
        for run in self:
            # Without a wait, both changes would be at the same moment and cancel out.
            if run.start_ms > run.submit_ms:
                some = changes.setdefault(key(run), [])
                some += [(run.submit_ms, 1), (run.start_ms, -1)]
        return {name: steps_of(some) for name, some in changes.items()}


def by_group(run: Run) -> str:
    """Returns the group of a run, as a key."""
    return run.group


def by_job(run: Run) -> str:
    """Returns the job of a run, as a key."""
    return run.job_id


def cores(run: Run) -> float:
    """Returns the cores of a run."""
    return run.profile.cpu_milli / 1_000

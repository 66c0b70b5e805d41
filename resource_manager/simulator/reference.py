"""Replays a log with the rules of other batch schedulers, for comparison with the engine.

- `reference:fcfs-easy`: jobs start in order of arrival, with EASY backfilling. Source: D. A. Lifka,
  "The ANL/IBM SP scheduling system" (JSSPP 1995). Only the first waiting job has a reservation. Any
  other job can start earlier if this does not delay the start of the first job.
- `reference:multifactor-easy`: the same rules, but the first job is a job of the group with the
  least usage for its weight. Slurm's multifactor priority has a similar fair-share factor. Usage is
  the number of cores times seconds. After `HALF_LIFE_MS`, usage counts half.

If the jobs have no estimated run times, there are no reservations: each job starts if it fits.

If a job runs longer than its estimate, this module assumes that the job ends at the next moment.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from finegrain.errors import InvalidArgument
from finegrain.resources import CPU_MILLI, MEMORY_BYTES
from resource_manager.simulator.log import JobRecord, RunLog
from resource_manager.simulator.nodes import Node
from resource_manager.simulator.plan import Effort
from resource_manager.simulator.traces.jobs import TraceJob

FCFS_EASY = "reference:fcfs-easy"
MULTIFACTOR_EASY = "reference:multifactor-easy"
REFERENCES = (FCFS_EASY, MULTIFACTOR_EASY)

HALF_LIFE_MS = 7 * 24 * 3_600_000
"""Half-life of usage: the default of Slurm (`PriorityDecayHalfLife`)."""

Free = list[tuple[int, int]]
"""The free amounts of each node: thousandths of a core, and bytes of memory."""

Places = list[tuple[int, int]]
"""The places of one job: the number of each node, and the number of the job's parts on this
node.
"""


@dataclass(slots=True, eq=False)
class _Job:
    """A job, with the data that the scheduler has about it."""

    trace: TraceJob
    record: JobRecord
    nodes: Sequence[int]  # the nodes with the job's labels
    number: int  # position in the order of arrival
    places: Places
    runs: list[int]
    start_ms: int = 0

    @property
    def need(self) -> tuple[int, int]:
        return self.trace.profile.cpu_milli, self.trace.profile.memory_bytes

    def expected_end_ms(self, now_ms: int) -> int:
        return max(now_ms + 1, self.start_ms + (self.trace.requested_ms or 0))


class ReferenceCluster:
    """The nodes and jobs of one replay.

    Args:
        nodes: the nodes.
        policy: one of `REFERENCES`.
        weights: the weight of each group.

    Attributes:
        log: every run, and every job.
        effort: number and cpu time of the decisions.
        jobs_over: number of jobs that have ended or were rejected.
    """

    def __init__(self, nodes: Sequence[Node], policy: str, weights: Mapping[str, float]) -> None:
        self.log, self.effort, self.jobs_over = RunLog(), Effort(), 0
        self.nodes = nodes
        self._fair = policy == MULTIFACTOR_EASY
        self._weights = weights
        self._empty: Free = [
            (node.total.get(CPU_MILLI, 0), node.total.get(MEMORY_BYTES, 0)) for node in nodes
        ]
        self._free = list(self._empty)
        self._by_labels: dict[object, list[int]] = {}
        self._waiting: list[_Job] = []
        self._running: dict[_Job, None] = {}
        self._arrivals: list[tuple[int, int, _Job]] = []
        self._ends: list[tuple[int, int, _Job]] = []
        self._usage: dict[str, float] = defaultdict(float)
        self._rate: dict[str, int] = defaultdict(int)  # cores in use, by group
        self._usage_ms = 0

    def submit(self, trace: TraceJob, group: str) -> None:
        """Schedules the arrival of a job.

        Raises:
            InvalidArgument: the job needs more than cpu and memory.
        """
        if trace.profile.extended or trace.profile.devices:
            expected = "a log of jobs that need only cpu and memory, or no reference policy"
            raise InvalidArgument("FILE", f"job {trace.name}", expected)
        run_ms, count = trace.run_ms, trace.count
        record = JobRecord(
            *(trace.name, group, trace.submit_ms, trace.profile, count),
            gang=count > 1,
            work_ms=run_ms * count,
            longest_ms=run_ms,
        )
        nodes = self._by_labels.get(trace.labels)
        if nodes is None:
            wanted = set(trace.labels)
            nodes = [at for at, node in enumerate(self.nodes) if wanted <= set(node.labels)]
            self._by_labels[trace.labels] = nodes
        job = _Job(trace, record, nodes, len(self._arrivals), [], [])
        self._arrivals.append((trace.submit_ms, job.number, job))

    def run(self, on_moment: Callable[[ReferenceCluster], None] | None = None) -> None:
        """Advances time until all jobs have ended."""
        arrivals = sorted(self._arrivals, key=lambda each: each[:2])[::-1]
        while arrivals or self._ends:
            now_ms = min(heap[at][0] for heap, at in ((arrivals, -1), (self._ends, 0)) if heap)
            while self._ends and self._ends[0][0] <= now_ms:
                self._end(heapq.heappop(self._ends)[2], now_ms)
            while arrivals and arrivals[-1][0] <= now_ms:
                self._arrive(arrivals.pop()[2])
            before = time.process_time()
            self._schedule(now_ms)
            took = time.process_time() - before
            self.effort.moments += 1
            self.effort.decisions += 1
            self.effort.cpu_s += took
            self.effort.longest_cpu_s = max(self.effort.longest_cpu_s, took)
            if on_moment is not None:
                on_moment(self)

    def _arrive(self, job: _Job) -> None:
        self.log.arrived(job.record)
        if _places(job, self._empty) is None:
            job.record.rejected = "INFEASIBLE_NEVER: larger than the cluster"
            self.jobs_over += 1
            return
        self._waiting.append(job)

    def _schedule(self, now_ms: int) -> None:
        """Starts jobs in order until a job does not fit. Then starts later jobs that do not delay
        this job.
        """
        self._sort(now_ms)
        first: _Job | None = None
        shadow_ms, then = 0, list[tuple[int, int]]()
        left: list[_Job] = []
        for job in self._waiting:
            places = _places(job, self._free)
            if first is not None and places is not None:
                # The job can start if it ends before the first job starts, or if there is room for
                # both jobs.
                requested_ms = job.trace.requested_ms
                if requested_ms is None or now_ms + requested_ms > shadow_ms:
                    beside = _taken(then, job, places)
                    if _places(first, beside) is None:
                        places = None
                    else:
                        then = beside
            if places is not None:
                self._start(job, places, now_ms)
                continue
            left.append(job)
            if first is None and job.trace.requested_ms is not None:
                first = job
                shadow_ms, then = self._start_of(job, now_ms)
        self._waiting = left

    def _start_of(self, job: _Job, now_ms: int) -> tuple[int, Free]:
        """Returns when a job can start if running jobs end as expected, and the free amounts at
        that moment.
        """
        running = sorted(
            self._running, key=lambda each: (each.expected_end_ms(now_ms), each.number)
        )
        low, high = 0, len(running)
        # Each ended job only adds room, so a binary search finds the smallest number of ended jobs
        # that is enough.
        while low < high:
            middle = (low + high) // 2
            if _places(job, self._without(running[:middle])) is None:
                low = middle + 1
            else:
                high = middle
        at_ms = running[low - 1].expected_end_ms(now_ms) if low else now_ms
        return at_ms, self._without(running[:low])

    def _without(self, ended: Sequence[_Job]) -> Free:
        free = list(self._free)
        for job in ended:
            free = _taken(free, job, job.places, back=True)
        return free

    def _start(self, job: _Job, places: Places, now_ms: int) -> None:
        self._free = _taken(self._free, job, places)
        job.places, job.start_ms = places, now_ms
        self._running[job] = None
        thread = 0
        for at, parts in places:
            for _ in range(parts):
                number = self.log.started(job.record, thread, self.nodes[at].name, 0, now_ms)
                job.runs.append(number)
                thread += 1
        slowest = min(self.nodes[at].speed for at, _ in places)
        heapq.heappush(self._ends, (now_ms + round(job.trace.run_ms / slowest), job.number, job))
        self._rate[job.record.group] += job.need[0] * job.trace.count
        self.effort.placed += job.trace.count

    def _end(self, job: _Job, now_ms: int) -> None:
        self._count_usage(now_ms)
        self._free = _taken(self._free, job, job.places, back=True)
        del self._running[job]
        for number in job.runs:
            self.log.ended(number, now_ms)
        job.record.end_ms = now_ms
        self.jobs_over += 1
        self._rate[job.record.group] -= job.need[0] * job.trace.count

    def _sort(self, now_ms: int) -> None:
        self._count_usage(now_ms)
        if self._fair:
            usage = {name: used / self._weights[name] for name, used in self._usage.items()}
            self._waiting.sort(key=lambda job: (usage.get(job.record.group, 0.0), job.number))

    def _count_usage(self, now_ms: int) -> None:
        passed_ms, self._usage_ms = now_ms - self._usage_ms, now_ms
        decay = 0.5 ** (passed_ms / HALF_LIFE_MS)
        for name in self._usage.keys() | self._rate.keys():
            self._usage[name] = self._usage[name] * decay + self._rate[name] * passed_ms


def _places(job: _Job, free: Free) -> Places | None:
    """Returns the first nodes that together have room for all parts of a job; None: there is too
    little room.
    """
    left, (cpu, memory) = job.trace.count, job.need
    found: Places = []
    for at in job.nodes:
        free_cpu, free_memory = free[at]
        parts = min(
            left,
            free_cpu // cpu if cpu else left,
            free_memory // memory if memory else left,
        )
        if parts > 0:
            found.append((at, parts))
            left -= parts
            if not left:
                return found
    return None


def _taken(free: Free, job: _Job, places: Places, *, back: bool = False) -> Free:
    """Returns the free amounts after a job has taken its places or, with `back`, has given them
    back.
    """
    changed, (cpu, memory) = list(free), job.need
    sign = 1 if back else -1
    for at, parts in places:
        has_cpu, has_memory = changed[at]
        changed[at] = has_cpu + sign * parts * cpu, has_memory + sign * parts * memory
    return changed

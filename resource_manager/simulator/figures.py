"""Runs the figures of `figure_setups.py` with the real engine, and measures the runs.

A result contains numbers, and the data of a picture. Other modules print the numbers and draw the
picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from finegrain.resources import CPU_MILLI
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.drawing import Area, Bar, Timeline
from resource_manager.simulator.figure_setups import SetUp, lane_names
from resource_manager.simulator.ideal import IdealFlow, IdealTree
from resource_manager.simulator.log import Run, RunLog, by_job
from resource_manager.simulator.nodes import Node
from resource_manager.simulator.share_error import TOLERANCE, WINDOW_S, Comparison, Usage

GROUP_WEIGHTS: Mapping[str, float] = {"default": 1.0, "medium": 4.0}
"""Weights of the predefined groups that occur in the figures."""


@dataclass(frozen=True, slots=True)
class JobResult:
    """The times, in seconds, at which a job arrived, its first thread started and its last thread
    ended.
    """

    name: str
    threads: int
    submitted_s: float
    started_s: float
    done_s: float

    @property
    def took_s(self) -> float:
        """Time from arrival to completion."""
        return self.done_s - self.submitted_s


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice at one moment: the job that was served, its thread of capacity, and the usage at
    that moment.

    `jobs` has the seconds that threads of each job ran. `groups` has the sum over the jobs of each
    group, divided by the weight of the group.
    """

    at_s: float
    lane: str
    served: str
    jobs: Mapping[str, float]
    groups: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Phase:
    """An interval in which the same jobs had waiting work, compared with the ideal schedule.

    A phase begins when a job has no more waiting work. `converged_s` is the time until all jobs
    were served fairly. It is None if the phase ended earlier. `error` is the largest relative
    difference after this time. `shares` has the mean number of threads of capacity that each job
    used, and `ideal` has this number in the ideal schedule. `shares` and `ideal` are measured after
    convergence, and after the last thread of each job without waiting work has ended.
    """

    start_s: float
    end_s: float
    shares: Mapping[str, float]
    ideal: Mapping[str, float]
    converged_s: float | None
    error: float


@dataclass(frozen=True, slots=True)
class FigureResult:
    """The result of one figure."""

    set_up: SetUp
    jobs: tuple[JobResult, ...]
    # number of threads of work, by thread of capacity and job
    lane_threads: Mapping[str, Mapping[str, int]]
    makespan_s: float
    utilisation: float
    choice: Choice | None
    phases: tuple[Phase, ...]
    picture: Timeline | Area

    @property
    def mean_s(self) -> float:
        """Mean completion time of the jobs."""
        return sum(job.took_s for job in self.jobs) / len(self.jobs)

    def job(self, name: str) -> JobResult:
        """Returns the job with this name."""
        return next(each for each in self.jobs if each.name == name)


def run_figure(set_up: SetUp) -> FigureResult:
    """Runs a figure from the arrival of its first job to the end of its last job."""
    log = run_set_up(set_up).log
    jobs = tuple(_job_result(log, job.name) for job in set_up.jobs)
    makespan_s = max(job.done_s for job in jobs)
    lanes = lane_names(len(set_up.speeds))
    counts: dict[str, Counter[str]] = {lane: Counter() for lane in lanes}
    busy_ms = 0
    for run in log:
        counts[_lane(run)][run.job_id] += 1
        busy_ms += (run.end_ms or 0) - run.start_ms
    moment = set_up.looked_at_ms
    found = tuple(phases(set_up, log)) if set_up.shares else ()
    return FigureResult(
        set_up,
        jobs,
        counts,
        makespan_s,
        busy_ms / (makespan_s * 1_000 * len(lanes)),
        None if moment is None else choice_at(log, moment),
        found,
        _area(set_up, log, makespan_s, found) if set_up.shares else _timeline(set_up, log),
    )


def run_set_up(set_up: SetUp, until_ms: int | None = None) -> Cluster:
    """Runs a whole figure, or its part up to `until_ms`, and returns the simulated cluster.

    Each thread of capacity is a host with one core, and gives the host its name.
    """
    names = lane_names(len(set_up.speeds))
    nodes = [
        Node(_host(name), {CPU_MILLI: 1_000}, (("capacity", name),), speed)
        for name, speed in zip(names, set_up.speeds, strict=True)
    ]
    cluster = Cluster(nodes, EngineSettings(fairness=set_up.fairness))
    for job in set_up.jobs:
        cluster.submit(
            job.name,
            job.durations_ms,
            group=job.group,
            at_ms=job.at_ms,
            labels=(("capacity", job.only_on),) if job.only_on else (),
        )
    cluster.run(until_ms)
    return cluster


def choice_at(log: RunLog, moment_ms: int) -> Choice:
    """Returns the choice at a moment. The usage in the result is computed from the log, not by the
    engine.

    Raises:
        StopIteration: nothing was served at that moment.
    """
    # The log is in the order of starts, so the result is the first run served at that moment.
    served = next(run for run in log if run.start_ms == moment_ms)
    jobs = {job.job_id: 0.0 for job in log.jobs.values()}
    groups = {job.group: 0.0 for job in log.jobs.values()}
    for run in log:
        # Count only the time before the moment: at that moment, the engine did not know what would
        # run later.
        end_ms = moment_ms if run.end_ms is None else min(run.end_ms, moment_ms)
        ran_s = max(0, end_ms - run.start_ms) / 1_000
        jobs[run.job_id] += ran_s
        groups[run.group] += ran_s / GROUP_WEIGHTS[run.group]
    return Choice(moment_ms / 1_000, _lane(served), served.job_id, jobs, groups)


def phases(set_up: SetUp, log: RunLog, window_s: float = WINDOW_S) -> list[Phase]:
    """Returns the intervals between the moments at which jobs run out of waiting work."""
    comparison = compared(set_up, log)
    dry_s = {job.name: (log.jobs[job.name].last_start_ms or 0) / 1_000 for job in set_up.jobs}
    times = sorted({0.0, *dry_s.values()})
    found = []
    for start_s, until_s in pairwise(times):
        converged_s = comparison.converged_after_s(start_s, until_s, window_s=window_s)
        fair_s = start_s + (converged_s or 0.0)
        waiting = [name for name, over_s in dry_s.items() if over_s >= until_s]
        # Jobs without waiting work still have running threads, which would distort the shares of
        # other jobs.
        gone_s = [(log.jobs[name].end_ms or 0) / 1_000 for name in dry_s if name not in waiting]
        alone_s = max([fair_s, *gone_s])
        lasts_s = until_s - alone_s
        found.append(
            Phase(
                start_s,
                until_s,
                {name: comparison.received(name, alone_s, until_s) / lasts_s for name in waiting},
                {name: comparison.due(name, alone_s, until_s) / lasts_s for name in waiting},
                converged_s,
                max(comparison.error(name, fair_s, until_s) for name in waiting),
            )
        )
    return found


def compared(set_up: SetUp, log: RunLog) -> Comparison:
    """Compares the run with the ideal schedule, in threads of capacity."""
    groups = sorted({job.group for job in set_up.jobs})
    tree = IdealTree(
        [
            *(IdealFlow(group, weight=GROUP_WEIGHTS[group]) for group in groups),
            *(IdealFlow(job.name, job.group) for job in set_up.jobs),
        ]
    )
    running, waiting = log.running(by_job), log.waiting(by_job)
    # Demand changes at an arrival, even if no thread starts at that time.
    come_ms = {job.submit_ms for job in log.jobs.values()}
    moments = sorted(come_ms | {at for run in log for at in (run.start_ms, run.end_ms or 0)})
    # The last moment only ends the series, because nothing is in use after it.
    end_ms = moments.pop()
    usages = []
    for at_ms in moments:
        mine = {name: steps.at(at_ms) for name, steps in running.items()}
        line = {name: steps.at(at_ms) for name, steps in waiting.items()}
        demand = {name: amount + line.get(name, 0.0) for name, amount in mine.items()}
        usages.append(Usage(at_ms / 1_000, len(set_up.speeds), mine, demand))
    return Comparison(tree, usages, end_ms / 1_000)


def tolerated() -> str:
    """Returns the definition of "served fairly" as a text for people."""
    return f"every window of {WINDOW_S:g} s within {TOLERANCE:.0%} of its share"


def _job_result(log: RunLog, name: str) -> JobResult:
    job = log.jobs[name]
    return JobResult(
        name,
        job.threads,
        job.submit_ms / 1_000,
        (job.first_start_ms or 0) / 1_000,
        (job.end_ms or 0) / 1_000,
    )


def _host(lane: str) -> str:
    """Returns a host's name with leading zeros (C002, C010), because hosts are tried in the order
    of their names.
    """
    return f"C{int(lane[1:]):03}"


def _lane(run: Run) -> str:
    return f"C{int(run.node[1:])}"


def _marks(set_up: SetUp) -> dict[str, str]:
    return {job.name: job.mark for job in set_up.jobs}


def _timeline(set_up: SetUp, log: RunLog) -> Timeline:
    marks = {job.name: job.marks for job in set_up.jobs}
    bars = [
        Bar(
            _lane(run),
            run.start_ms / 1_000,
            (run.end_ms or 0) / 1_000,
            run.job_id,
            f"{run.job_id} W{run.thread + 1}",
            marks[run.job_id].get(run.thread, ""),
            f"W{run.thread + 1}",
        )
        for run in log
    ]
    lanes: Sequence[str] = lane_names(len(set_up.speeds))
    return Timeline(_heading(set_up), lanes, bars, _marks(set_up), set_up.meanings)


def _area(set_up: SetUp, log: RunLog, end_s: float, found: Sequence[Phase]) -> Area:
    running = log.running(by_job)
    flows = {job.name: running[job.name] for job in set_up.jobs}
    ideal = [(each.start_s, each.end_s, each.ideal) for each in found]
    return Area(_heading(set_up), len(set_up.speeds), end_s, flows, _marks(set_up), ideal)


def _heading(set_up: SetUp) -> str:
    return f"Figure {set_up.figure}: {set_up.title}"

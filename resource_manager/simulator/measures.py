"""Measures of a replayed log: waits, slowdowns, utilization, and each group's share of the
capacity.

Bounded slowdown is defined by D. G. Feitelson, "Metrics for parallel job scheduling and their
convergence" (JSSPP 2001). It is the response time divided by the run time. The run time counts as
at least `SLOWDOWN_BOUND_MS`, and the result counts as at least 1. `ShareGap` measures how far the
shares in windows of time are from the ideal shares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from finegrain.resources import ResourceProfile
from resource_manager.simulator.ideal import ROOT, IdealTree
from resource_manager.simulator.log import JobRecord, Run, RunLog
from resource_manager.simulator.steps import Steps

SLOWDOWN_BOUND_MS = 10_000

Cost = Callable[[ResourceProfile], float]


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of values. Percentiles are values that occur (nearest rank). Without values, all
    fields are 0.
    """

    count: int = 0
    mean: float = 0.0
    median: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Returns the distribution of values, which can be in any order."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        return cls(
            len(ordered),
            math.fsum(ordered) / len(ordered),
            nearest_rank(ordered, 0.5),
            nearest_rank(ordered, 0.95),
            nearest_rank(ordered, 0.99),
            ordered[-1],
        )


def nearest_rank(ordered: Sequence[float], quantile: float) -> float:
    """Returns the smallest value with this property: at least `quantile` of all values are not
    above it.
    """
    # Round up, so that the result is not below this fraction of the values.
    return ordered[max(0, math.ceil(quantile * len(ordered)) - 1)]


def wait_ms(job: JobRecord) -> int:
    """Returns the time from a job's arrival until its first thread started.

    Raises:
        ValueError: no thread has started.
    """
    if job.first_start_ms is None:
        raise ValueError(f"no thread of job {job.job_id} has started")
    return job.first_start_ms - job.submit_ms


def bounded_slowdown(job: JobRecord) -> float:
    """Returns the bounded slowdown of a job. The run time of its longest thread counts as its run
    time.

    Raises:
        ValueError: the job has not ended.
    """
    if job.end_ms is None:
        raise ValueError(f"job {job.job_id} has not ended")
    response = job.end_ms - job.submit_ms
    return max(1.0, response / max(job.longest_ms, SLOWDOWN_BOUND_MS))


def whole_capacity_use(log: RunLog, amount: Callable[[Run], float]) -> Steps:
    """Returns the sum of `amount` over all runs that are running, over time."""
    return log.running(lambda _: "", amount).get("", Steps())


def waiting_threads(log: RunLog) -> Steps:
    """Returns the number of waiting threads over time."""
    return log.waiting(lambda _: "").get("", Steps())


def mean_while(value: Steps, condition: Steps, begin_ms: int, end_ms: int) -> tuple[float, int]:
    """Returns the mean of a value over the time in which a condition is not 0, and the length of
    that time.
    """
    whole, lasted = 0.0, 0
    # Value and condition are constant between changes, so the mean is exact.
    for since, until, holds in condition.pieces(begin_ms, end_ms):
        if holds:
            whole += value.integral(since, until)
            lasted += until - since
    return (whole / lasted if lasted else 0.0), lasted


@dataclass(frozen=True, slots=True)
class Moment:
    """The usage and demand of each group from this moment until the next moment, in cost."""

    at_ms: int
    running: Mapping[str, float]
    demand: Mapping[str, float]


def moments(log: RunLog, cost: Cost) -> Iterator[Moment]:
    """Yields a moment for each time at which usage or demand of a group changes."""
    known: dict[ResourceProfile, float] = {}
    changes: dict[int, dict[str, list[float]]] = {}

    def change(at_ms: int, group: str, running: float, demand: float) -> None:
        sums = changes.setdefault(at_ms, {}).setdefault(group, [0.0, 0.0])
        sums[0] += running
        sums[1] += demand

    for run in log:
        # Cache the costs: logs have few different profiles, and a cost takes long to compute.
        each = known.get(run.profile)
        if each is None:
            each = known[run.profile] = cost(run.profile)
        # Demand begins with the arrival, and includes running threads.
        change(run.submit_ms, run.group, 0, each)
        change(run.start_ms, run.group, each, 0)
        if run.end_ms is not None:
            change(run.end_ms, run.group, -each, -each)
    running: dict[str, float] = {}
    demand: dict[str, float] = {}
    for at_ms in sorted(changes):
        for group, (more_running, more_demand) in changes[at_ms].items():
            _add(running, group, more_running)
            _add(demand, group, more_demand)
        yield Moment(at_ms, dict(running), dict(demand))


_NOTHING = 1e-9


def _add(sums: dict[str, float], name: str, more: float) -> None:
    value = sums.get(name, 0.0) + more
    # Rounding errors of floats must not look like a remaining demand.
    if value > _NOTHING:
        sums[name] = value
    else:
        sums.pop(name, None)


@dataclass(slots=True)
class Account:
    """Service of one group over a run, in cost x seconds: the received service, and the service
    that the ideal schedule gives it. `times_ms` and `fractions` are the steps of the group's ideal
    part of the capacity in use.
    """

    received: float = 0.0
    due: float = 0.0
    times_ms: list[int] = field(default_factory=list, compare=False)
    fractions: list[float] = field(default_factory=list, compare=False)

    def note(self, at_ms: int, fraction: float) -> None:
        """Records the group's ideal part of the capacity in use from `at_ms` on."""
        if not self.fractions or self.fractions[-1] != fraction:
            self.times_ms.append(at_ms)
            self.fractions.append(fraction)


@dataclass(frozen=True, slots=True)
class ShareGap:
    """The distance of a run from the ideal schedule, over windows of `window_ms`.

    `error` is the fraction of all usage that went to other groups than in the ideal schedule.
    It is half the sum of the absolute differences between received and ideal service, divided by
    the sum of received service. Both sums are over all windows in which requests waited.
    """

    window_ms: int
    windows: int
    error: float
    worst: float  # the error of the worst window


def share_gaps(
    course: Iterable[Moment], tree: IdealTree, windows_ms: Sequence[int]
) -> tuple[dict[str, Account], list[ShareGap]]:
    """Compares a run with the ideal weighted fluid schedule.

    The ideal schedule divides the capacity in use at each moment among the groups that have work.
    Capacity that rigid jobs leave idle is counted as low utilization. It is not counted as
    unfairness.

    Args:
        course: the moments of the run, in order.
        tree: a tree with the groups as leaves.
        windows_ms: lengths of windows. Received and due service are compared at the end of each
            window.

    Returns:
        The account of each group, and a gap for each length of windows.
    """
    accounts: dict[str, Account] = {}
    ledgers = [_Ledger(length) for length in windows_ms]
    before: Moment | None = None
    for moment in course:
        if before is not None and moment.at_ms > before.at_ms:
            _enter(before, moment.at_ms, tree, accounts, ledgers)
        before = moment
    return accounts, [ledger.closed() for ledger in ledgers]


def _enter(
    moment: Moment,
    until_ms: int,
    tree: IdealTree,
    accounts: dict[str, Account],
    ledgers: Sequence[_Ledger],
) -> None:
    in_use = math.fsum(moment.running.values())
    due = tree.shares(moment.demand, in_use)
    due.pop(ROOT, None)
    # Without waiting requests, every group has all capacity that it requested. So no share can be
    # unfair.
    contended = math.fsum(moment.demand.values()) > in_use + _NOTHING
    seconds = (until_ms - moment.at_ms) / 1_000
    for group in moment.demand:
        account = accounts.setdefault(group, Account())
        account.received += moment.running.get(group, 0.0) * seconds
        account.due += due.get(group, 0.0) * seconds
    for group, account in accounts.items():
        account.note(moment.at_ms, due.get(group, 0.0) / in_use if in_use else 0.0)
    if contended:
        for ledger in ledgers:
            ledger.enter(moment, until_ms, due)


class _Ledger:
    """Accounts per window. Time without waiting requests is not counted."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.windows = 0
        self.apart = self.received = self.worst = 0.0
        self._number = -1
        self._open: dict[str, list[float]] = {}

    def enter(self, moment: Moment, until_ms: int, due: Mapping[str, float]) -> None:
        at_ms = moment.at_ms
        while at_ms < until_ms:
            number = at_ms // self.window_ms
            if number != self._number:
                self.close()
                self._number = number
            # An interval can span several windows, and is divided among them.
            end_ms = min(until_ms, (number + 1) * self.window_ms)
            for group in moment.demand:
                sums = self._open.setdefault(group, [0.0, 0.0])
                sums[0] += moment.running.get(group, 0.0) * (end_ms - at_ms)
                sums[1] += due.get(group, 0.0) * (end_ms - at_ms)
            at_ms = end_ms

    def close(self) -> None:
        received = math.fsum(sums[0] for sums in self._open.values())
        if received:
            # Halve the sum, because it counts each error twice: if one group has too much, another
            # group lacks the same amount.
            apart = math.fsum(abs(sums[0] - sums[1]) for sums in self._open.values()) / 2
            self.windows += 1
            self.apart += apart
            self.received += received
            self.worst = max(self.worst, apart / received)
        self._open.clear()

    def closed(self) -> ShareGap:
        self.close()
        error = self.apart / self.received if self.received else 0.0
        return ShareGap(self.window_ms, self.windows, error, self.worst)

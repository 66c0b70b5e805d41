"""Replays a log through the engine with one policy, and measures the outcome.

`Outcome` has everything that a report about a log contains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from finegrain.errors import InvalidArgument
from finegrain.resources import CPU_MILLI, ResourceProfile, booking, total_of
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.ideal import IdealFlow, IdealTree
from resource_manager.simulator.idle import IdleCheck
from resource_manager.simulator.log import JobRecord, RunLog, by_group, cores
from resource_manager.simulator.measures import (
    Account,
    ShareGap,
    Spread,
    bounded_slowdown,
    mean_while,
    moments,
    share_gaps,
    wait_ms,
    waiting_threads,
    whole_capacity_use,
)
from resource_manager.simulator.nodes import Node
from resource_manager.simulator.plan import Effort
from resource_manager.simulator.reference import ReferenceCluster
from resource_manager.simulator.steps import Steps
from resource_manager.simulator.traces.jobs import TraceJob, Workload

HOUR_MS = 3_600_000
SHARE_WINDOWS_MS = (HOUR_MS, 24 * HOUR_MS)

PROGRESS_EVERY = 500
"""Number of simulated moments between two calls of the progress function."""

Progress = Callable[[int, int], None]
"""Called with the number of jobs that have ended, and the number of all jobs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings for the replay of a log.

    `weights` has the weights of resource groups by name. With `moldable`, the parts of a job need
    not start together.
    """

    settings: EngineSettings = field(default_factory=EngineSettings)
    group_by: str = ""  # key of owners; empty: the first key of the log
    weights: Mapping[str, float] = field(default_factory=dict)
    moldable: bool = False


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Measures of the jobs of one resource group."""

    name: str
    weight: float
    jobs: int
    wait: Spread  # in milliseconds
    slowdown: Spread
    account: Account


@dataclass(frozen=True, slots=True)
class Outcome:
    """Measures of a log under one policy. Times are in milliseconds."""

    policy: str
    jobs: int  # number of jobs that ran until they ended
    rejected: Mapping[str, int]  # number of rejected jobs, by reason
    unserved: int  # number of jobs that still waited after the last event
    wait: Spread
    slowdown: Spread
    makespan_ms: int
    utilisation: float  # share of all cpus, from first arrival to last end
    utilisation_while_waiting: float  # share of all cpus, in the time in which requests waited
    waiting_time_ms: int  # length of the time in which requests waited
    shares: Sequence[ShareGap]
    groups: Sequence[GroupResult]
    idle_checks: int
    idle_moments: int
    idle_findings: Sequence[str]
    reservations: int
    effort: Effort
    begin_ms: int  # time of the first arrival
    cores: Mapping[str, Steps]  # cores in use, by group; the groups with most work come first
    ideal: Mapping[str, Steps]  # ideal part of the capacity in use (0 to 1), by group
    waiting: Steps  # number of waiting threads over time
    waits_ms: Sequence[int]  # waits of the jobs, in order of arrival


def replay(
    workload: Workload, nodes: Sequence[Node], plan: Plan, progress: Progress | None = None
) -> Outcome:
    """Replays a whole log. The same input gives the same outcome, except for the cpu time of the
    replay.

    Args:
        workload: the jobs.
        nodes: the nodes of the simulated cluster.
        plan: the settings of the replay.
        progress: called every `PROGRESS_EVERY` moments.

    Raises:
        InvalidArgument: the log does not record the owner key `group_by`, or a weight is for a
            group without jobs.
    """
    fitted, groups, weights = _grouped(workload, nodes, plan)
    cluster = Cluster(nodes, plan.settings)
    # Create the check before anything is submitted. So it sees every moment.
    check = IdleCheck(cluster)
    # Create groups before jobs, because usage is divided by the weight from the first thread on.
    for name, weight in weights.items():
        cluster.set_group(name, weight=weight)
    for job in fitted.jobs:
        _submit(cluster, job, groups[job.name], moldable=plan.moldable)
    if progress is not None:
        cluster.on_settled.append(_teller(progress, len(fitted.jobs)))
    cluster.run()
    made = cluster.events["reservation_made"]
    played = _Played(cluster.log, nodes, cluster.effort, check, made)
    return _outcome(played, plan.settings, weights, plan.settings.fairness.order)


class _Played(NamedTuple):
    """A replay that has ended."""

    log: RunLog
    nodes: Sequence[Node]
    effort: Effort
    check: IdleCheck | None = None  # None: the replay was not checked
    reservations: int = 0


def _grouped(
    workload: Workload, nodes: Sequence[Node], plan: Plan
) -> tuple[Workload, dict[str, str], dict[str, float]]:
    """Returns the jobs as these nodes can serve them, the group of each job, and the weights."""
    fitted = workload.fitted(nodes)
    key = plan.group_by or (workload.owner_keys[0] if workload.owner_keys else "none")
    groups = {job.name: fitted.group_of(job, key) for job in fitted.jobs}
    return fitted, groups, _weights(plan, set(groups.values()))


def _weights(plan: Plan, names: set[str]) -> dict[str, float]:
    for name in plan.weights:
        if name not in names:
            known = ", ".join(sorted(names)[:20]) + (", ..." if len(names) > 20 else "")
            raise InvalidArgument("--weights", name, f"a resource group of the log: {known}")
    return {name: plan.weights.get(name, 1.0) for name in sorted(names)}


def _submit(cluster: Cluster, job: TraceJob, group: str, *, moldable: bool) -> None:
    cluster.submit(
        job.name,
        [job.run_ms] * job.count,
        group=group,
        profile=job.profile,
        at_ms=job.submit_ms,
        gang=job.count > 1 and not moldable,
        labels=job.labels,
        expected_ms=job.requested_ms,
    )


def replay_reference(
    workload: Workload,
    nodes: Sequence[Node],
    plan: Plan,
    policy: str,
    progress: Progress | None = None,
) -> Outcome:
    """Replays a whole log with the rules of another scheduler.

    Args:
        workload: the jobs. Their parts always start together.
        nodes: the nodes of the simulated cluster.
        plan: the groups and weights of the replay; the engine's settings determine the measures.
        policy: one of `REFERENCES`.
        progress: called every `PROGRESS_EVERY` moments.

    Raises:
        InvalidArgument: as for `replay`, or a job needs more than cpu and memory.
    """
    fitted, groups, weights = _grouped(workload, nodes, plan)
    cluster = ReferenceCluster(nodes, policy, weights)
    for job in fitted.jobs:
        cluster.submit(job, groups[job.name])
    cluster.run(None if progress is None else _teller(progress, len(fitted.jobs)))
    played = _Played(cluster.log, nodes, cluster.effort)
    return _outcome(played, plan.settings, weights, policy)


def _teller(progress: Progress, jobs: int) -> Callable[[Cluster | ReferenceCluster], None]:
    def tell(cluster: Cluster | ReferenceCluster) -> None:
        if cluster.effort.moments % PROGRESS_EVERY == 0:
            progress(cluster.jobs_over, jobs)

    return tell


def _outcome(
    played: _Played, settings: EngineSettings, weights: Mapping[str, float], policy: str
) -> Outcome:
    log, check = played.log, played.check
    # Rejected and unserved jobs have no wait and no slowdown. The outcome counts them separately.
    over = [job for job in log.jobs.values() if job.end_ms is not None and job.started]
    rejected: dict[str, int] = {}
    for job in log.jobs.values():
        if job.rejected:
            reason = job.rejected.partition(":")[0]
            rejected[reason] = rejected.get(reason, 0) + 1
    begin_ms = min((job.submit_ms for job in log.jobs.values()), default=0)
    end_ms = max((job.end_ms or 0 for job in over), default=begin_ms)
    in_use = whole_capacity_use(log, cores)
    total = total_of(node.total for node in played.nodes).get(CPU_MILLI, 0) / 1_000
    waiting = waiting_threads(log)
    while_waiting, waited_ms = mean_while(in_use, waiting, begin_ms, end_ms)
    accounts, gaps = _shares(played, settings, weights)
    return Outcome(
        policy=policy,
        jobs=len(over),
        rejected=rejected,
        unserved=len(log.jobs) - len(over) - sum(rejected.values()),
        wait=Spread.of(map(wait_ms, over)),
        slowdown=Spread.of(map(bounded_slowdown, over)),
        makespan_ms=end_ms - begin_ms,
        utilisation=in_use.mean(begin_ms, end_ms) / total if total else 0.0,
        utilisation_while_waiting=while_waiting / total if total else 0.0,
        waiting_time_ms=waited_ms,
        shares=gaps,
        groups=_groups(over, weights, accounts),
        idle_checks=check.checks if check is not None else 0,
        idle_moments=check.idle_moments if check is not None else 0,
        idle_findings=tuple(check.findings) if check is not None else (),
        reservations=played.reservations,
        effort=played.effort,
        begin_ms=begin_ms,
        cores=_most_first(log.running(by_group, cores), begin_ms, end_ms),
        ideal={name: Steps(each.times_ms, each.fractions) for name, each in accounts.items()},
        waiting=waiting,
        waits_ms=tuple(map(wait_ms, over)),
    )


def _shares(
    played: _Played, settings: EngineSettings, weights: Mapping[str, float]
) -> tuple[dict[str, Account], list[ShareGap]]:
    costs = Costs(settings.fairness.usage_measure)
    for node in played.nodes:
        # Dominant shares depend on the totals of the cluster, so count all nodes first.
        costs.count(node.name, dict(node.capacity))

    def cost(profile: ResourceProfile) -> float:
        return costs.of(booking(profile, separate_pools=False))

    tree = IdealTree(IdealFlow(name, weight=weight) for name, weight in weights.items())
    return share_gaps(moments(played.log, cost), tree, SHARE_WINDOWS_MS)


def _most_first(by_name: Mapping[str, Steps], begin_ms: int, end_ms: int) -> dict[str, Steps]:
    amounts = {name: steps.integral(begin_ms, end_ms) for name, steps in by_name.items()}
    return {name: by_name[name] for name in sorted(amounts, key=lambda n: (-amounts[n], n))}


def _groups(
    over: Sequence[JobRecord], weights: Mapping[str, float], accounts: Mapping[str, Account]
) -> list[GroupResult]:
    by_name: dict[str, list[JobRecord]] = {}
    for job in over:
        by_name.setdefault(job.group, []).append(job)
    return [
        GroupResult(
            name,
            weights[name],
            len(jobs),
            Spread.of(map(wait_ms, jobs)),
            Spread.of(map(bounded_slowdown, jobs)),
            accounts.get(name, Account()),
        )
        for name, jobs in sorted(by_name.items())
    ]

"""Jobs that wait for other jobs: long chains, and fair shares after the wait."""

from __future__ import annotations

from finegrain.values.dependencies import JobDependency
from finegrain.values.states import JobOutcome
from resource_manager.engine.model.entities import JobState
from tests.support.engine_cluster import EngineCluster
from tests.support.engine_cluster.hosts import host


def after(*names: str) -> tuple[JobDependency, ...]:
    return tuple(JobDependency(name) for name in names)


def test_a_long_chain_ends_as_a_whole_in_short_steps() -> None:
    """Each step ends some jobs, so neither the stack nor a step grows with the chain."""
    cluster = EngineCluster(jobs=("job-0",))
    for number in range(1, 1_200):
        cluster.job(f"job-{number}", depends_on=after(f"job-{number - 1}"))
    cluster.end_job("job-0", outcome=JobOutcome.FAILED)
    cluster.settle()

    jobs = cluster.state.jobs.values()
    assert {(job.state, job.outcome) for job in jobs} == {(JobState.ENDED, JobOutcome.FAILED)}
    assert {job.end_reason for job in jobs} == {"ENDED", "DEPENDENCY_FAILED"}
    assert not cluster.state.dependencies.ended


def test_waiting_for_other_jobs_earns_no_credit() -> None:
    """Otherwise a job that waited for an hour would get all capacity for a long time."""
    cluster = EngineCluster.settled(host("host-a", 2_000), jobs=("first", "busy"))
    cluster.job("late", depends_on=after("first"))
    cluster.submit("b1", "b2", "b3", "b4", job="busy")
    cluster.submit("l1", "l2", "l3", job="late")
    cluster.wait(600_000)
    cluster.release("b1", job="busy")  # now another slot of `busy` starts
    assert cluster.waiting() == {"b4", "l1", "l2", "l3"}
    cluster.end_job("first")
    cluster.job("newcomer")
    cluster.submit("n1", job="newcomer")
    cluster.settle()

    flows = cluster.state.flows
    busy, late, newcomer = (flows.usage(flows.jobs[name]) for name in ("busy", "late", "newcomer"))
    assert late.service == 0
    assert late.raised >= 0.9 * busy.service
    assert late.raised == newcomer.raised
    assert cluster.state.quotas.limited("late") == []

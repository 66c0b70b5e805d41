"""Draws run times and timeouts of requests, and owners and dependencies of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from finegrain.values.dependencies import JobDependency
from finegrain.values.states import JobCondition
from resource_manager.engine.model.entities import RequestSpec

USERS = ("user/alice", "user/bob")
OWNERS = (*USERS, *USERS, "operator/ann")
LABELS: tuple[tuple[tuple[str, str], ...], ...] = (
    (),
    (("team", "ml"),),
    (("env", "test"), ("team", "web")),
)


def with_times(rng: Random, spec: RequestSpec) -> RequestSpec:
    """Returns the request, with or without a random run time and timeout. Half of the requests are
    alike, because only equal requests can reuse slots.
    """
    if rng.random() < 0.5:
        return replace(spec, time_limit_ms=6_000, expected_run_time_ms=1_500)
    limit_ms = rng.choice((None, None, 1_000, 2_000, 5_000, 12_000))
    expected_ms = rng.choice((None, 200, 800, 3_000))
    if limit_ms is not None and expected_ms is not None:
        expected_ms = min(limit_ms, expected_ms)
    timeout_ms = rng.choice((None, None, None, 800, 3_000, 9_000))
    return replace(
        spec,
        time_limit_ms=limit_ms,
        expected_run_time_ms=expected_ms,
        wait_timeout_ms=timeout_ms,
    )


def some_owner(rng: Random) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Returns an owner of a job, and labels of the job."""
    return rng.choice(OWNERS), rng.choice(LABELS)


def some_dependencies(rng: Random, jobs: Sequence[str]) -> tuple[JobDependency, ...]:
    """Returns dependencies on some of the latest jobs."""
    latest = list(jobs)[-4:]
    found = rng.sample(latest, min(len(latest), rng.choice((1, 1, 2))))
    return tuple(JobDependency(each, rng.choice(tuple(JobCondition))) for each in found)

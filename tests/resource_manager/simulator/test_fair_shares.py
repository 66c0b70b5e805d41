"""Compares the real engine with the ideal fluid schedule: fair, work-conserving, no starvation."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.resources import ResourceProfile
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.idle import IdleCheck
from resource_manager.simulator.log import by_job
from resource_manager.simulator.log import cores as amount_cores
from resource_manager.simulator.nodes import equal_nodes
from resource_manager.simulator.share_error import TOLERANCE
from tests.support.mixes import (
    COMES_MAX_S,
    HORIZON_S,
    Mix,
    MixedGroup,
    MixedJob,
    beside_the_ideal,
    mixes,
    run_mix,
)
from tests.support.properties import examples

CONVERGED_S = COMES_MAX_S + 180
STARVATION_TIMEOUT_MS = 60_000
LOOK_MS = 1_000
"""The interval at which starved requests are checked again."""
LARGE_MS = 5_000
FLOOD_WEIGHTS = {"default": 1, "low": 1, "critical": 64}
"""The weight of the flood by its group; the large threads have weight 1."""


@settings(max_examples=examples(20), derandomize=True)
@given(mixes())
def test_every_flow_gets_its_share_and_nothing_is_idle(mix: Mix) -> None:
    cluster, idle = run_mix(mix)

    comparison = beside_the_ideal(mix, cluster)
    errors = comparison.errors(CONVERGED_S, HORIZON_S)
    assert errors.keys() >= {job.name for job in mix.jobs}
    assert max(errors.values()) <= TOLERANCE, errors
    assert idle.checks > 0
    assert not idle.findings


def test_the_measure_tells_what_is_unfair() -> None:
    """A run that is fair with weights of 4 and 1 is unfair with 2 and 1."""
    groups = (MixedGroup("g", "", 1), MixedGroup("h", "", 4))
    jobs = tuple(
        MixedJob(f"job-{group.name}", group.name, 0, 12, alike=False, memory_mib=64, seed=1)
        for group in groups
    )
    mix = Mix(groups, jobs, (4, 4), "slots")
    cluster, _ = run_mix(mix)

    assert beside_the_ideal(mix, cluster).worst_error(CONVERGED_S, HORIZON_S) <= TOLERANCE
    other = replace(mix, groups=(groups[0], MixedGroup("h", "", 2)))
    assert beside_the_ideal(other, cluster).error("h", CONVERGED_S, HORIZON_S) > 0.15


def test_the_measure_sees_who_gets_nothing_at_all() -> None:
    """In order of arrival the first job has everything, and nothing ever changes."""
    groups = (MixedGroup("g", "", 1), MixedGroup("h", "", 4))
    jobs = tuple(
        MixedJob(name, group, at_s, 12, alike=True, memory_mib=64, seed=1)
        for name, group, at_s in (("first", "g", 0), ("second", "h", 1))
    )
    mix = Mix(groups, jobs, (4, 4), "slots")
    cluster, idle = run_mix(mix, order="arrival")

    errors = beside_the_ideal(mix, cluster).errors(CONVERGED_S, HORIZON_S)
    assert (errors["first"], errors["second"]) == pytest.approx((4, 1))
    assert not idle.findings


@settings(max_examples=examples(15), derandomize=True)
@given(
    flood_ms=st.lists(st.integers(5_000, 40_000), min_size=1, max_size=4),
    flood_group=st.sampled_from(sorted(FLOOD_WEIGHTS)),
    large_cores=st.integers(2, 4),
    large_threads=st.integers(1, 3),
    hosts=st.integers(1, 3),
)
def test_large_threads_are_served_although_small_ones_flood(
    flood_ms: list[int], flood_group: str, large_cores: int, large_threads: int, hosts: int
) -> None:
    """Small threads take every free core at once, so that two are never free.

    The first large thread waits at most for the timeout, and then until the slots of its reserved
    host have ended. Later threads also wait for the large threads before them, and until the job
    has no more than its share: nothing is reserved for a job that has received more than its share.
    """
    fairness = Fairness(usage_measure="cpu", starvation_timeout_ms=STARVATION_TIMEOUT_MS)
    cluster = Cluster(equal_nodes(hosts, cpus=4), EngineSettings(fairness=fairness))
    idle = IdleCheck(cluster)
    # Threads of many durations, so that no two of them end together.
    flood = [flood_ms[number % len(flood_ms)] + number * 137 % 5_000 for number in range(800)]
    longest_ms = max(flood)
    cluster.submit("flood", flood, group=flood_group)
    cluster.submit(
        "large",
        [LARGE_MS] * large_threads,
        profile=ResourceProfile(large_cores * 1_000),
        at_ms=7_000,
    )
    reserved_after_ms = STARVATION_TIMEOUT_MS + longest_ms + 2 * LOOK_MS
    entitled_cores = 4 * hosts / (1 + FLOOD_WEIGHTS[flood_group])
    earned_after_ms = large_cores * LARGE_MS / entitled_cores

    cluster.run(1_000_000)

    starts = sorted(run.start_ms for run in cluster.log if run.job_id == "large")
    assert len(starts) == large_threads
    for number, start_ms in enumerate(starts):
        assert start_ms - 7_000 <= (number + 1) * reserved_after_ms + number * earned_after_ms
    assert not idle.findings


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_large_threads_get_their_share_of_what_small_ones_had(cores: int) -> None:
    """A single free core is too small for a large thread.

    Large threads are placed where another one has ended. So without a reservation there would never
    be more of them.
    """
    fairness = Fairness(usage_measure="cpu", starvation_timeout_ms=30_000)
    cluster = Cluster(equal_nodes(4, cpus=4), EngineSettings(fairness=fairness))
    idle = IdleCheck(cluster)
    for job_id, each, at_ms in (("small", 1, 0), ("large", cores, 60_000)):
        durations = [10_000 + number * 1_237 % 20_000 for number in range(1_200 // each)]
        cluster.submit(job_id, durations, profile=ResourceProfile(each * 1_000), at_ms=at_ms)

    cluster.run(1_200_000)

    running = cluster.log.running(by_job, amount_cores)
    assert running["large"].mean(400_000, 1_200_000) == pytest.approx(8, rel=0.1)
    assert running["small"].mean(400_000, 1_200_000) == pytest.approx(8, rel=0.1)
    assert not idle.findings


def test_another_job_that_asks_for_the_same_keeps_nobody_from_help() -> None:
    """Large threads of one group are placed where others of it have ended.

    Those of the other group never fit, because small threads of their own group take its share.
    """
    fairness = Fairness(usage_measure="cpu", starvation_timeout_ms=30_000)
    cluster = Cluster(equal_nodes(4, cpus=4), EngineSettings(fairness=fairness))
    cluster.set_group("g", weight=1)
    cluster.set_group("h", weight=1)
    for job_id, group, each, at_ms in (
        ("h-large", "h", 4, 0),
        ("g-small", "g", 1, 0),
        ("g-large", "g", 4, 60_000),
    ):
        durations = [10_000 + number * 1_237 % 20_000 for number in range(1_200 // each)]
        profile = ResourceProfile(each * 1_000)
        cluster.submit(job_id, durations, group=group, profile=profile, at_ms=at_ms)

    cluster.run(1_200_000)

    running = cluster.log.running(by_job, amount_cores)
    for job_id, due in (("h-large", 8), ("g-small", 4), ("g-large", 4)):
        assert running[job_id].mean(400_000, 1_200_000) == pytest.approx(due, rel=0.25)

"""Tests which executors of providers get no new slots, so that they can be given back."""

from __future__ import annotations

from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.entities import RangeSpec, RequestSpec
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from tests.support.engine_cluster import EngineCluster, provided

ONE = ResourceProfile(1_000, 256 * MIB)
SHAPE = ExecutorShape("big", "test", {"cpu_milli": 8_000, "memory_bytes": 16 * GIB}, ONE)
IDLE_MS = 5_000


def cluster_with(*used: tuple[int, int | None], **more: Any) -> EngineCluster:
    """One executor of 8 cpus for each pair: the cpus of its slot, and the seconds until its end."""
    cluster = EngineCluster(
        provisioning=Provisioning(shapes=(SHAPE,), idle_timeout_ms=IDLE_MS, **more)
    )
    for number, (cpus, end_s) in enumerate(used):
        size = ResourceProfile(1_000 * cpus, 256 * MIB)
        limit_ms = end_s * 1_000 if end_s is not None else None
        filler = ResourceProfile(8_000 - 1_000 * cpus, 256 * MIB)
        cluster.submit(RequestSpec(f"s{number}", size, time_limit_ms=limit_ms))
        cluster.submit(RequestSpec(f"filler-{number}", filler))
    cluster.wait(1_000)
    for name in list(cluster.state.provisions):
        cluster.register(provided(name, SHAPE))
    cluster.settle()
    cluster.release(*(f"filler-{number}" for number in range(len(used))))
    cluster.settle()
    assert len({cluster.where(f"s{number}") for number in range(len(used))}) == len(used)
    return cluster


def pass_time(cluster: EngineCluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.wait(1_000)
        for executor in cluster.executors.values():
            cluster.report(executor)
    cluster.settle()


def emptied(cluster: EngineCluster) -> set[str]:
    """Returns the slots of the executors that are emptied."""
    return {key[0] for host in cluster.state.hosts.values() if host.emptying for key in host.slots}


def test_the_executor_whose_slots_end_first_is_emptied() -> None:
    cluster = cluster_with((4, 600), (4, 3_600), (2, 1_800))
    pass_time(cluster, 3)
    assert emptied(cluster) == set()  # surplus, but not for long
    pass_time(cluster, 5)
    assert emptied(cluster) == {"s0"}


def test_several_executors_are_emptied_if_the_others_have_room_for_all_their_work() -> None:
    cluster = cluster_with((2, 600), (2, 3_600), (2, 1_800), (2, 60))
    pass_time(cluster, 8)
    assert emptied(cluster) == {"s3", "s0", "s2"}


@pytest.mark.parametrize("used", [((5, 600), (4, 3_600)), ((1, None), (1, None))])
def test_an_executor_that_is_needed_or_whose_end_is_unknown_is_not_emptied(
    used: tuple[tuple[int, int | None], ...],
) -> None:
    cluster = cluster_with(*used)
    pass_time(cluster, 8)
    assert emptied(cluster) == set()


def test_executors_that_the_minimum_needs_are_not_emptied() -> None:
    cluster = cluster_with((1, 600), (1, 60), (1, 300), total_min={"cpu_milli": 16_000})
    pass_time(cluster, 8)
    assert emptied(cluster) == {"s1"}


def test_a_slot_is_not_reused_on_an_executor_that_is_emptied() -> None:
    cluster = cluster_with((4, 60), (4, 3_600))
    pass_time(cluster, 8)
    assert emptied(cluster) == {"s0"}
    size = ResourceProfile(4_000, 256 * MIB)
    next_one = RequestSpec("next", size, time_limit_ms=60_000)
    (range_answer, reused) = cluster.reuse(("s0", 1, "next.0"), ranges=(RangeSpec(next_one, 0, 1),))
    assert (range_answer.reason, reused.reason) == ("", "NOT_REUSABLE")
    cluster.settle()
    assert cluster.where("next.0") == cluster.where("s1")


def test_a_request_that_needs_the_executor_gets_it_at_once() -> None:
    cluster = cluster_with((4, 60), (4, 3_600))
    pass_time(cluster, 8)
    cluster.submit(RequestSpec("wide", ResourceProfile(4_000, 256 * MIB)))
    cluster.submit(RequestSpec("more", ResourceProfile(3_000, 256 * MIB)))
    cluster.settle()
    assert cluster.where("wide") != cluster.where("more")
    assert emptied(cluster) == set()
    pass_time(cluster, 8)
    assert emptied(cluster) == set()  # 15 of 16 cpus are in use


def test_a_gang_gets_the_capacity_of_an_executor_that_is_emptied() -> None:
    cluster = cluster_with((4, 60), (4, 3_600))
    pass_time(cluster, 8)
    cluster.submit_gang("g", [3_000, 3_000], memory_bytes=256 * MIB)
    cluster.settle()
    assert cluster.where("g-0") != cluster.where("g-1")

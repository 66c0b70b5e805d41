"""Tests that the capacity index finds exactly what a full search finds, without that cost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.resources import GIB, MIB, Amounts, ResourceProfile
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import JobRegistered, RequestsSubmitted
from resource_manager.engine.placement import index as index_module
from resource_manager.engine.placement.index import CapacityIndex
from tests.support.engine_cluster import EngineCluster

AMOUNTS = st.fixed_dictionaries(
    {}, optional={name: st.integers(0, 6) for name in ("cpu", "memory", "slots", "score")}
)
NEEDS = st.dictionaries(st.sampled_from(["cpu", "memory", "slots"]), st.integers(1, 6), min_size=1)
VECTORS = st.lists(AMOUNTS, min_size=1, max_size=80)
WRITES = st.lists(st.tuples(st.integers(0, 79), AMOUNTS), max_size=30)


def covers(vector: dict[str, int], need: dict[str, int]) -> bool:
    return all(vector.get(name, 0) >= amount for name, amount in need.items())


def filled(vectors: list[dict[str, int]], writes: list[tuple[int, dict[str, int]]]) -> Any:
    """Returns an index and the real values of each host, after some changes."""
    index = CapacityIndex()
    truth = {f"host-{number:03d}": vector for number, vector in enumerate(vectors)}
    for name, vector in truth.items():
        index.put(name, vector)
    index.freshen()
    for number, vector in writes:
        name = f"host-{number % len(vectors):03d}"
        truth[name] = vector
        index.put(name, vector)
    return index, truth


@given(VECTORS, WRITES, st.lists(NEEDS, min_size=1, max_size=2), st.integers(0, 80))
def test_finds_every_host_that_covers_a_need_and_no_other(
    vectors: Any, writes: Any, needs: Any, start: int
) -> None:
    index, truth = filled(vectors, writes)
    expected = [
        position
        for position, name in enumerate(sorted(truth))
        if position >= start and any(covers(truth[name], need) for need in needs)
    ]
    assert list(index.covering(needs, start)) == expected
    assert index.problems() == []


@given(VECTORS, WRITES, NEEDS)
def test_finds_the_highest_score_first_and_the_first_among_equals(
    vectors: Any, writes: Any, need: Any
) -> None:
    vectors[0]["score"] = 1
    index, truth = filled(vectors, writes)
    names = sorted(truth)
    expected = [p for p, name in enumerate(names) if covers(truth[name], need)]
    expected.sort(key=lambda position: (-truth[names[position]].get("score", 0), position))
    assert list(index.best_first([need], "score")) == expected


@given(VECTORS, WRITES)
def test_logs_every_host_that_grew(vectors: Any, writes: Any) -> None:
    index, truth = filled(vectors, [])
    for number, vector in writes:
        name = f"host-{number % len(vectors):03d}"
        grew = any(value > truth[name].get(column, 0) for column, value in vector.items())
        before = len(index.grown)
        assert index.put(name, vector) == grew
        assert index.grown[before:] == ([index.position[name]] if grew else [])
        truth[name] = vector


def test_hosts_that_come_and_go_keep_the_order_of_ids() -> None:
    index = CapacityIndex()
    for name in ("c", "a"):
        index.put(name, {"cpu": 1})
    index.freshen()
    index.put("b", {"cpu": 2})
    index.remove("c")
    index.freshen()
    assert index.ids == ["a", "b"]
    assert index.vector("a") == {"cpu": 1}
    assert index.vector("b") == {"cpu": 2}


@pytest.mark.parametrize("strategy", ["pack", pytest.param("spread", marks=pytest.mark.full)])
def test_trap_9_a_decision_does_not_look_at_every_host(
    strategy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ten times the hosts, filled alike, a decision reads one more tree level per search."""
    read = [reads_of_a_decision(strategy, hosts, monkeypatch) for hosts in (120, 1_200)]
    searches = 4
    assert read[1] <= read[0] + searches * 32


def reads_of_a_decision(strategy: Any, hosts: int, monkeypatch: pytest.MonkeyPatch) -> int:
    cluster = EngineCluster(jobs=(), strategy=strategy, label_indexes_max=4)
    for number in range(hosts):
        name = f"host-{number:05d}"
        cluster.host(
            name, cpu_milli=2_000, memory_bytes=GIB, default_profile=ResourceProfile(500, 64 * MIB)
        )
    submit(cluster, "filling", 3 * hosts, ResourceProfile(500, 128 * MIB))
    submit(cluster, "too-large", 3, ResourceProfile(1_500, 128 * MIB))
    counted = 0
    survivors, free = index_module._survivors, Host.free

    def counting(columns: Any, level: int, low: int, high: int) -> list[int]:
        nonlocal counted
        counted += high - low
        return survivors(columns, level, low, high)

    def counting_free(host: Host) -> Amounts:
        nonlocal counted
        counted += 1
        return free(host)

    with monkeypatch.context() as patched:
        patched.setattr(index_module, "_survivors", counting)
        patched.setattr(Host, "free", counting_free)
        submit(cluster, "arriving", 2, ResourceProfile(400, 100 * MIB))
    return counted


def submit(cluster: EngineCluster, job_id: str, count: int, profile: ResourceProfile) -> None:
    specs = tuple(
        RequestSpec(f"{job_id}.{number}", profile, allow_pending=True) for number in range(count)
    )
    cluster.batch(
        JobRegistered(cluster.at, job_id, job_id, "default", None, "s", "r"),
        RequestsSubmitted(cluster.at, job_id, specs),
    )
    while cluster.state.unfinished:
        cluster.batch()


def test_a_sound_index_of_several_levels_has_no_problems_and_a_wrong_maximum_is_one() -> None:
    index = CapacityIndex()
    for number in range(2_000):  # the first of each group of leaves is its largest
        index.put(f"host-{number:04d}", {"cpu": 2_000 - number})
    index.freshen()
    assert index.problems() == []
    index.columns["cpu"][1][3] += 1
    found = index.problems()
    assert found
    assert set(found) == {"index column cpu: an inner node is not its children's maximum"}

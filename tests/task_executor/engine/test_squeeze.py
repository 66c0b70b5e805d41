"""Squeezing best-effort slots: how many cpus they keep, and which ones."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.cpuset import EMPTY, CpuSet, union
from task_executor.engine.squeeze import (
    CPUS_MIN,
    CpuLocation,
    budget_milli,
    confined,
    cpu_count,
    pick,
    squeeze,
)

VECTORS = Path(__file__).parents[2] / "data" / "vectors" / "koordinator_be_cpuset.json"


@cache
def vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(VECTORS.read_text())
    return found


def places_of(name: str) -> list[CpuLocation]:
    return [CpuLocation(*row) for row in vectors()["topologies"][name]]


def ids(case: dict[str, Any]) -> str:
    return str(case["id"])


# -- the recorded cases ------------------------------------------------------------------------


@pytest.mark.parametrize("case", vectors()["select"], ids=ids)
def test_picks_the_recorded_cpus(case: dict[str, Any]) -> None:
    assert pick(case["num_cpus"], places_of(case["topology"])) == (case["expect"] or [])


@pytest.mark.parametrize("case", vectors()["adjust"], ids=ids)
def test_squeezes_as_recorded(case: dict[str, Any]) -> None:
    locations = places_of(case["topology"])
    held = {
        qos: union(CpuSet.parse(pod["cpuset"]) for pod in case["pods"] if pod["qos"] == qos)
        for qos in ("LSE", "LSR")
    }
    set_apart = CpuSet.parse(case["reserved_cpus"]) | CpuSet.parse(
        case["system_qos_exclusive_cpus"]
    )
    count = cpu_count(
        case["quantity_cpu_milli"],
        previous=len(CpuSet.parse(case["old_cpuset"])),
        host_cpus=len(locations),
    )
    picked = squeeze(
        count,
        locations,
        pool=CpuSet(location.cpu for location in locations) - held["LSE"] - set_apart,
        lsr_cpus=held["LSR"],
    )
    assert picked == case["expect"]["picked"]
    assert str(CpuSet(picked)) == case["expect"]["cpuset"]
    assert case["expect"]["applied"] == bool(picked)


# -- the budget --------------------------------------------------------------------------------


def test_others_come_first() -> None:
    used = {"others_milli": 20_000, "system_milli": 3_000, "reserved_milli": 2_000}
    assert budget_milli(64_000, 65, **used) == 41_600 - 20_000 - 3_000


def test_what_is_set_aside_counts_even_if_the_system_is_idle() -> None:
    used = {"others_milli": 0, "system_milli": 100, "reserved_milli": 2_000}
    assert budget_milli(8_000, 50, **used) == 2_000


def test_a_busy_host_leaves_nothing_but_the_least() -> None:
    used = {"others_milli": 8_000, "system_milli": 900, "reserved_milli": 0}
    budget = budget_milli(8_000, 65, **used)
    assert budget == 0
    assert cpu_count(budget, previous=8, host_cpus=8) == CPUS_MIN


def test_it_shrinks_at_once_and_grows_by_a_tenth_of_the_host() -> None:
    assert cpu_count(4_001, previous=64, host_cpus=64) == 5
    assert cpu_count(60_000, previous=5, host_cpus=64) == 5 + 7
    assert cpu_count(6_000, previous=5, host_cpus=64) == 6


# -- what is picked ----------------------------------------------------------------------------


def test_without_a_cpu_outside_of_lse_slots_nothing_is_picked() -> None:
    """Upstream divides by zero here."""
    locations = [CpuLocation(0, 0, 0, 0), CpuLocation(1, 1, 0, 0)]
    assert squeeze(2, locations, pool=EMPTY, lsr_cpus=CpuSet.of(0, 1)) == []


def test_a_pool_smaller_than_the_budget_is_taken_whole() -> None:
    locations = [CpuLocation(cpu, cpu // 2, 0, 0) for cpu in range(8)]
    pool = CpuSet.of(1, 4, 5)
    assert CpuSet(squeeze(6, locations, pool=pool, lsr_cpus=CpuSet.of(4))) == pool


def test_one_cpu_is_enough_where_there_is_no_other() -> None:
    locations = [CpuLocation(cpu, cpu, 0, 0) for cpu in range(4)]
    assert squeeze(2, locations, pool=CpuSet.of(3), lsr_cpus=EMPTY) == [3]


def test_what_is_set_aside_for_a_kubelet_goes_first() -> None:
    locations = [CpuLocation(cpu, cpu % 4, 0, 0) for cpu in range(8)]
    pool, lent, kept = CpuSet.parse("0-7"), CpuSet.parse("2,6"), CpuSet.parse("1,5")
    given = {"pool": pool, "lsr_cpus": lent, "first": kept}
    assert squeeze(1, locations, **given) == [1]
    assert squeeze(2, locations, **given) == [1, 5]
    assert squeeze(5, locations, **given) == [1, 5, 2, 0, 4]  # an LSR slot has one of the three
    assert CpuSet(squeeze(99, locations, **given)) == pool


def test_a_slot_bound_to_a_node_without_picked_cpus_keeps_two_of_its_own() -> None:
    node = CpuSet.parse("8-15")
    assert confined(node, CpuSet.parse("0-3")) == CpuSet.of(8, 9)
    assert confined(node, CpuSet.parse("6-12")) == CpuSet.parse("8-12")
    assert confined(EMPTY, CpuSet.parse("0-3")) == EMPTY


# -- for any host ------------------------------------------------------------------------------


@st.composite
def hosts(draw: st.DrawFn) -> list[CpuLocation]:
    """Draws a host: up to four nodes, one to four threads per core, cpu numbers in any order, some
    of them missing.
    """
    threads = draw(st.integers(1, 4))
    cores = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))  # the node of each
    numbers = draw(st.permutations(range(len(cores) * threads)))
    locations = [
        CpuLocation(numbers[at * threads + thread], at, node, node // 2)
        for at, node in enumerate(cores)
        for thread in range(threads)
    ]
    missing = draw(st.sets(st.sampled_from(locations), max_size=len(locations) - 1))
    return [location for location in locations if location not in missing]


@given(hosts(), st.integers(-1, 60))
def test_exactly_as_many_as_asked_or_none(locations: list[CpuLocation], count: int) -> None:
    taken = pick(count, locations)
    assert len(taken) == (count if 0 < count <= len(locations) else 0)
    assert len(set(taken)) == len(taken)
    assert set(taken) <= {location.cpu for location in locations}
    assert taken == pick(count, list(reversed(locations)))


@given(st.integers(1, 24))
def test_on_a_regular_host_nodes_differ_by_a_pair_at_most(count: int) -> None:
    locations = [
        CpuLocation(core + 12 * thread, core, core % 3, 0)
        for core in range(12)
        for thread in (0, 1)
    ]
    taken = set(pick(count, locations))
    per_node = [
        sum(location.cpu in taken for location in locations if location.node == node)
        for node in (0, 1, 2)
    ]
    assert max(per_node) - min(per_node) <= 2
    cores = {location.core for location in locations if location.cpu in taken}
    assert len(cores) == -(-count // 2)


@given(hosts(), st.integers(1, 60), st.data())
def test_the_share_of_lsr_cpus_is_that_of_the_pool(
    locations: list[CpuLocation], count: int, data: st.DataObject
) -> None:
    cpus = [location.cpu for location in locations]
    pool = CpuSet(data.draw(st.sets(st.sampled_from(cpus))))
    lent = CpuSet(data.draw(st.sets(st.sampled_from(cpus))))
    taken = CpuSet(squeeze(count, locations, pool=pool, lsr_cpus=lent))
    assert taken <= pool
    assert len(taken) == min(count, len(pool))
    if pool:
        assert len(taken & lent) == len(taken) * len(pool & lent) // len(pool)


@given(st.integers(0, 10**6), st.integers(1, 512), st.data())
def test_the_count_keeps_its_bounds(budget: int, host_cpus: int, data: st.DataObject) -> None:
    previous = data.draw(st.integers(1, host_cpus))
    count = cpu_count(budget, previous=previous, host_cpus=host_cpus)
    assert count <= previous + -(-host_cpus // 10)
    assert count >= min(CPUS_MIN, previous + 1)
    assert count * 1000 >= budget or count == previous + -(-host_cpus // 10)

"""Squeezing best-effort work: how many cpus it keeps, and which."""

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
    CpuPlace,
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


def places_of(name: str) -> list[CpuPlace]:
    return [CpuPlace(*row) for row in vectors()["topologies"][name]]


def ids(case: dict[str, Any]) -> str:
    return str(case["id"])


# -- the recorded cases ------------------------------------------------------------------------


@pytest.mark.parametrize("case", vectors()["select"], ids=ids)
def test_picks_the_recorded_cpus(case: dict[str, Any]) -> None:
    assert pick(case["num_cpus"], places_of(case["topology"])) == (case["expect"] or [])


@pytest.mark.parametrize("case", vectors()["adjust"], ids=ids)
def test_squeezes_as_recorded(case: dict[str, Any]) -> None:
    places = places_of(case["topology"])
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
        host_cpus=len(places),
    )
    picked = squeeze(
        count,
        places,
        pool=CpuSet(place.cpu for place in places) - held["LSE"] - set_apart,
        held_by_lsr=held["LSR"],
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
    places = [CpuPlace(0, 0, 0, 0), CpuPlace(1, 1, 0, 0)]
    assert squeeze(2, places, pool=EMPTY, held_by_lsr=CpuSet.of(0, 1)) == []


def test_a_pool_smaller_than_the_budget_is_taken_whole() -> None:
    places = [CpuPlace(cpu, cpu // 2, 0, 0) for cpu in range(8)]
    pool = CpuSet.of(1, 4, 5)
    assert CpuSet(squeeze(6, places, pool=pool, held_by_lsr=CpuSet.of(4))) == pool


def test_one_cpu_is_enough_where_there_is_no_other() -> None:
    places = [CpuPlace(cpu, cpu, 0, 0) for cpu in range(4)]
    assert squeeze(2, places, pool=CpuSet.of(3), held_by_lsr=EMPTY) == [3]


def test_what_is_set_aside_for_a_kubelet_goes_first() -> None:
    places = [CpuPlace(cpu, cpu % 4, 0, 0) for cpu in range(8)]
    pool, lent, kept = CpuSet.parse("0-7"), CpuSet.parse("2,6"), CpuSet.parse("1,5")
    given = {"pool": pool, "held_by_lsr": lent, "first": kept}
    assert squeeze(1, places, **given) == [1]
    assert squeeze(2, places, **given) == [1, 5]
    assert squeeze(5, places, **given) == [1, 5, 2, 0, 4]  # one of three is an LSR slot's
    assert CpuSet(squeeze(99, places, **given)) == pool


def test_a_slot_bound_to_a_node_without_picked_cpus_keeps_two_of_its_own() -> None:
    node = CpuSet.parse("8-15")
    assert confined(node, CpuSet.parse("0-3")) == CpuSet.of(8, 9)
    assert confined(node, CpuSet.parse("6-12")) == CpuSet.parse("8-12")
    assert confined(EMPTY, CpuSet.parse("0-3")) == EMPTY


# -- for any host ------------------------------------------------------------------------------


@st.composite
def hosts(draw: st.DrawFn) -> list[CpuPlace]:
    """Up to four nodes, one to four threads per core, cpu numbers in any order, some missing."""
    threads = draw(st.integers(1, 4))
    cores = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))  # the node of each
    numbers = draw(st.permutations(range(len(cores) * threads)))
    places = [
        CpuPlace(numbers[at * threads + thread], at, node, node // 2)
        for at, node in enumerate(cores)
        for thread in range(threads)
    ]
    missing = draw(st.sets(st.sampled_from(places), max_size=len(places) - 1))
    return [place for place in places if place not in missing]


@given(hosts(), st.integers(-1, 60))
def test_exactly_as_many_as_asked_or_none(places: list[CpuPlace], count: int) -> None:
    taken = pick(count, places)
    assert len(taken) == (count if 0 < count <= len(places) else 0)
    assert len(set(taken)) == len(taken)
    assert set(taken) <= {place.cpu for place in places}
    assert taken == pick(count, list(reversed(places)))


@given(st.integers(1, 24))
def test_on_a_regular_host_nodes_differ_by_a_pair_at_most(count: int) -> None:
    places = [
        CpuPlace(core + 12 * thread, core, core % 3, 0) for core in range(12) for thread in (0, 1)
    ]
    taken = set(pick(count, places))
    per_node = [
        sum(place.cpu in taken for place in places if place.node == node) for node in (0, 1, 2)
    ]
    assert max(per_node) - min(per_node) <= 2
    cores = {place.core for place in places if place.cpu in taken}
    assert len(cores) == -(-count // 2)


@given(hosts(), st.integers(1, 60), st.data())
def test_the_share_of_lsr_cpus_is_that_of_the_pool(
    places: list[CpuPlace], count: int, data: st.DataObject
) -> None:
    cpus = [place.cpu for place in places]
    pool = CpuSet(data.draw(st.sets(st.sampled_from(cpus))))
    lent = CpuSet(data.draw(st.sets(st.sampled_from(cpus))))
    taken = CpuSet(squeeze(count, places, pool=pool, held_by_lsr=lent))
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

"""Tests of what a slot costs, relative to the totals of the cluster."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from finegrain.resources import GIB
from resource_manager.engine.fairness.costs import Costs

HOST = {"cpu_milli": 4_000, "memory_bytes": 16 * GIB, "extended.gpu": 1}


def test_the_largest_share_of_the_cluster_counts() -> None:
    costs = Costs("dominant")
    costs.count("a", HOST)
    costs.count("b", {"cpu_milli": 4_000, "memory_bytes": 16 * GIB})
    assert costs.of({"cpu_milli": 1_000, "memory_bytes": 2 * GIB}) == 1 / 8
    assert costs.of({"cpu_milli": 1_000, "memory_bytes": 8 * GIB}) == 1 / 4
    assert costs.of({"cpu_milli": 1_000, "extended.gpu": 1}) == 1.0


def test_every_type_of_device_counts() -> None:
    costs = Costs("dominant")
    costs.count("a", HOST | {"device.gpu-core": 800, "device.rdma": 400, "device.mig-1g": 700})
    assert costs.of({"cpu_milli": 1_000, "device.gpu-core": 600}) == 3 / 4
    assert costs.of({"cpu_milli": 1_000, "device.rdma": 200}) == 1 / 2
    assert costs.of({"cpu_milli": 1_000, "device.gpu-core": 100, "device.mig-1g": 700}) == 1.0


def test_an_executor_that_is_lost_does_not_count() -> None:
    costs = Costs("dominant")
    for name in ("a", "b"):
        costs.count(name, HOST)
        costs.count(name, HOST)
    assert costs.of({"cpu_milli": 1_000}) == 1 / 8
    costs.count("b", {})
    assert costs.of({"cpu_milli": 1_000}) == 1 / 4
    costs.count("a", {})
    assert costs.total == dict.fromkeys(HOST, 0)
    assert 0 < costs.of({"cpu_milli": 1_000}) < 1e-9


def test_memory_in_parts_is_compared_part_by_part_only_where_all_have_parts() -> None:
    parts = {"cpu_milli": 4_000, "task_heap_memory_bytes": 8 * GIB, "managed_memory_bytes": GIB}
    costs = Costs("dominant")
    costs.count("a", parts)
    assert costs.of({"managed_memory_bytes": GIB}) == 1.0
    costs.count("b", {"cpu_milli": 4_000, "memory_bytes": 7 * GIB})
    assert costs.of({"managed_memory_bytes": GIB}) == 1 / 16
    assert costs.of({"memory_bytes": 4 * GIB}) == 1 / 4


def test_the_other_measures() -> None:
    assert Costs("slots").of({"cpu_milli": 250}) == 1.0
    assert Costs("cpu").of({"cpu_milli": 250}) == 0.25


@given(
    st.sampled_from(["dominant", "cpu"]),
    st.lists(st.integers(1, 64_000), min_size=1, max_size=30),
    st.randoms(use_true_random=False),
)
def test_sums_of_costs_are_exact_in_any_order(measure, amounts, random) -> None:  # type: ignore[no-untyped-def]
    """So adding and subtracting the same costs leaves exactly nothing."""
    costs = Costs(measure)
    costs.count("a", {"cpu_milli": 64_000 * 977})
    each = [costs.of({"cpu_milli": amount}) for amount in amounts]
    there = 0.0
    for cost in each:
        there += cost
    random.shuffle(each)
    for cost in each:
        there -= cost
    assert there == 0.0

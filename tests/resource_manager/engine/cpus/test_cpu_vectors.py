"""Compares the choice of cpus with that of Koordinator and the kubelet (tests/data/vectors)."""

import json
from pathlib import Path
from typing import Any

import pytest

from finegrain.cpu_policy import BindPolicy, ExclusivePolicy, NumaStrategy
from resource_manager.engine.cpus.accumulator import Accumulator
from resource_manager.engine.cpus.layout import CpuLayout, layout_of_rows
from resource_manager.engine.cpus.packed import even_shares, take_packed, take_share
from resource_manager.engine.cpus.take import CpuDemand, ExclusiveClaims, Taken, take
from tests.support.cpu_layouts import cpus, listed, machine

VECTORS = Path(__file__).parents[3] / "data" / "vectors"


def recorded(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text())
    return data


ACCUMULATOR = recorded("koordinator_cpu_accumulator")
PACKED = recorded("kubelet_cpu_packed")
DISTRIBUTED = recorded("kubelet_cpu_distributed")


def layout_of(vectors: dict[str, Any], case: dict[str, Any]) -> CpuLayout:
    return layout_of_rows([tuple(row) for row in vectors["topologies"][case["topology"]]["cpus"]])


def cases(*groups: list[dict[str, Any]]) -> pytest.MarkDecorator:
    rows = [pytest.param(case, id=case["id"]) for group in groups for case in group]
    return pytest.mark.parametrize("case", rows)


def held(case: dict[str, Any], level: str) -> int:
    bits = 0
    for each in case["allocated"]:
        if each["exclusive_policy"] == level:
            bits |= cpus(each["cpus"])
    return bits


# Cpus are never shared here, so cases with several holders per cpu do not apply.
NEVER_SHARED = [case for case in ACCUMULATOR["take"] if case["max_ref_count"] == 1]


@cases(NEVER_SHARED)
def test_cpus_are_chosen_like_koordinator_does(case: dict[str, Any]) -> None:
    layout = layout_of(ACCUMULATOR, case)
    taken = take(
        layout,
        cpus(case["available"]),
        ExclusiveClaims(held(case, "PCPULevel"), held(case, "NUMANodeLevel")),
        CpuDemand(
            case["num_cpus"],
            BindPolicy(case["bind_policy"]),
            exclusive=ExclusivePolicy(case["exclusive_policy"]),
            strategy=NumaStrategy(case["numa_strategy"]),
            preferred=cpus(case["preferred"]),
        ),
    )
    if "error" in case["expect"]:
        assert not isinstance(taken, Taken)
    else:
        assert isinstance(taken, Taken)
        assert listed(taken.cpus) == case["expect"]["cpuset"]


def test_only_counts_of_holders_are_left_out() -> None:
    left_out = [case["id"] for case in ACCUMULATOR["take"] if case not in NEVER_SHARED]
    assert left_out == ["take-041", "take-042"]


@cases(ACCUMULATOR["spread_order"])
def test_cpus_are_spread_in_koordinators_order(case: dict[str, Any]) -> None:
    layout, strategy = layout_of(ACCUMULATOR, case), NumaStrategy(case["numa_strategy"])
    available = cpus(case["available"]) & layout.pinnable
    order = Accumulator(layout, available, strategy=strategy).spread_anywhere(0)
    assert [cpu.bit_length() - 1 for cpu in order] == case["expect"]["order"]


def test_a_node_of_its_own_falls_back_to_cores_of_its_own() -> None:
    """Koordinator takes 1-2,4 here, on the core of the other slot; no recorded case shows this."""
    layout = layout_of_rows([(cpu, cpu // 2, 0, 0) for cpu in range(8)])
    taken = take(
        layout,
        cpus("1-7"),
        ExclusiveClaims(node_level=cpus("0")),
        CpuDemand(3, BindPolicy.SPREAD_BY_PCPUS, exclusive=ExclusivePolicy.NUMA_NODE_LEVEL),
    )
    assert taken == Taken(cpus("2,4,6"), ExclusivePolicy.PCPU_LEVEL)


@cases(PACKED["take"])
def test_cpus_are_packed_like_the_kubelet_does(case: dict[str, Any]) -> None:
    packed = take_packed(
        layout_of(PACKED, case),
        cpus(case["available"]),
        case["num_cpus"],
        spread=case["sorting"] == "spread",
        align_caches=case["prefer_align_by_uncore_cache"],
    )
    expected = case["expect"]
    assert (packed is None) == ("error" in expected)
    assert packed is None or listed(packed) == expected["cpuset"]


def take_distributed(layout: CpuLayout, free: int, need: int, group: int) -> int | None:
    """Takes `need` free cpus, evenly over NUMA nodes where possible, else packed."""
    free &= layout.cpus
    shares = even_shares(layout, free, need, group) or ()
    taken = 0
    for share in shares:
        taken |= take_share(layout, free, share)
    return taken if shares else take_packed(layout, free, need)


@cases(DISTRIBUTED["take"])
def test_cpus_are_distributed_like_the_kubelet_does(case: dict[str, Any]) -> None:
    distributed = take_distributed(
        layout_of(DISTRIBUTED, case),
        cpus(case["available"]),
        case["num_cpus"],
        case["cpu_group_size"],
    )
    expected = case["expect"]
    assert (distributed is None) == ("error" in expected)
    assert distributed is None or listed(distributed) == expected["cpuset"]


@cases(DISTRIBUTED["must_terminate"])
def test_shares_are_even_where_the_kubelet_never_ends(case: dict[str, Any]) -> None:
    layout, free, need = layout_of(DISTRIBUTED, case), cpus(case["available"]), case["num_cpus"]
    distributed = take_distributed(layout, free, need, case["cpu_group_size"])
    assert distributed is not None
    assert distributed.bit_count() == case["expect"]["num_cpus"]
    assert distributed & ~free == 0
    counts = [(distributed & node.mask).bit_count() for node in layout.nodes]
    assert max(counts) - min(counts) <= case["cpu_group_size"]


def test_no_node_gives_two_cpus_of_the_remainder_where_the_kubelet_lets_it() -> None:
    """The kubelet takes 1, 1, 1 and 3 cpus of four nodes here; no recorded case shows this."""
    layout = machine(packages=2, nodes=4, cores=3, threads=1)
    free = cpus("3,6,12,15-17,21")
    assert [(free & node.mask).bit_count() for node in layout.nodes] == [0, 1, 1, 0, 1, 3, 0, 1]
    taken = take_distributed(layout, free, 6, 1)
    assert taken is not None
    counts = [(taken & node.mask).bit_count() for node in layout.nodes]
    assert counts == [0, 1, 1, 0, 1, 2, 0, 1]


@cases(DISTRIBUTED["take"])
def test_distributing_is_what_the_strategy_does(case: dict[str, Any]) -> None:
    layout, free, need = layout_of(DISTRIBUTED, case), cpus(case["available"]), case["num_cpus"]
    wish = CpuDemand(need, BindPolicy.NONE, strategy=NumaStrategy.DISTRIBUTE_EVENLY)
    taken = take(layout, free, ExclusiveClaims(), wish)
    distributed = take_distributed(layout, free, need, 1)
    assert distributed == (taken.cpus if isinstance(taken, Taken) else None)


def test_even_shares_of_many_nodes_are_found_without_trying_all_combinations() -> None:
    layout = machine(packages=16, nodes=2, cores=4, threads=1)
    taken = take_distributed(layout, layout.cpus & ~cpus("0-39"), 30, 1)
    assert taken is not None
    counts = [(taken & node.mask).bit_count() for node in layout.nodes if taken & node.mask]
    assert sorted(counts) == [3, 3, 4, 4, 4, 4, 4, 4]

"""Tests of the ideal fluid schedule: cases computed by hand, and properties of any tree."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finegrain.errors import InvalidArgument
from resource_manager.simulator.ideal import (
    ROOT,
    FluidJob,
    IdealFlow,
    IdealTree,
    fluid_schedule,
)
from tests.support.properties import examples

SEED_TREE = IdealTree(
    [
        IdealFlow("medium", weight=4),
        IdealFlow("default"),
        IdealFlow("MED1", "medium"),
        IdealFlow("DEFAULT1", "default"),
        IdealFlow("DEFAULT2", "default"),
    ]
)


def test_sixty_threads_of_capacity_are_divided_as_the_seed_says() -> None:
    everybody = {"MED1": 1000.0, "DEFAULT1": 1000.0, "DEFAULT2": 1000.0}
    shares = SEED_TREE.shares(everybody, 60)
    assert {flow: shares[flow] for flow in everybody} == pytest.approx(
        {"MED1": 48, "DEFAULT1": 6, "DEFAULT2": 6}
    )
    assert shares["default"] == pytest.approx(12)
    del everybody["DEFAULT2"]
    shares = SEED_TREE.shares(everybody, 60)
    assert (shares["MED1"], shares["DEFAULT1"]) == pytest.approx((48, 12))
    del everybody["MED1"]
    assert SEED_TREE.shares(everybody, 60)["DEFAULT1"] == pytest.approx(60)


def test_what_one_cannot_use_goes_to_the_others_by_weight() -> None:
    tree = IdealTree([IdealFlow("a", weight=3), IdealFlow("b", weight=2), IdealFlow("c")])
    shares = tree.shares({"a": 6, "b": 100, "c": 100}, 36)
    # By weight alone a would have 18: the 12 that it cannot use go to b and c, 2 : 1.
    assert shares == pytest.approx({ROOT: 36, "a": 6, "b": 20, "c": 10})


def test_what_a_group_cannot_use_leaves_the_group() -> None:
    shares = SEED_TREE.shares({"MED1": 10, "DEFAULT1": 5, "DEFAULT2": 500}, 60)
    assert shares == pytest.approx(
        {ROOT: 60, "medium": 10, "default": 50, "MED1": 10, "DEFAULT1": 5, "DEFAULT2": 45}
    )


def test_a_maximum_is_not_exceeded_even_if_capacity_stays_unused() -> None:
    tree = IdealTree([IdealFlow("g", maximum=8), IdealFlow("h"), IdealFlow("job", "g")])
    assert tree.shares({"job": 100, "h": 4}, 20) == pytest.approx(
        {ROOT: 12, "g": 8, "job": 8, "h": 4}
    )


def test_a_minimum_is_served_before_weights_count() -> None:
    tree = IdealTree(
        [IdealFlow("small", minimum=10), IdealFlow("a", weight=4), IdealFlow("b", weight=4)]
    )
    shares = tree.shares({"small": 50, "a": 50, "b": 50}, 30)
    assert shares == pytest.approx({ROOT: 30, "small": 10, "a": 10, "b": 10})
    # A minimum is a lower bound, not a supplement: with more capacity, weights decide again.
    shares = tree.shares({"small": 50, "a": 500, "b": 500}, 180)
    assert shares == pytest.approx({ROOT: 180, "small": 20, "a": 80, "b": 80})


def test_minimums_that_are_more_than_there_is_are_cut_alike() -> None:
    tree = IdealTree([IdealFlow("a", minimum=30), IdealFlow("b", minimum=10), IdealFlow("c")])
    shares = tree.shares({"a": 90, "b": 90, "c": 90}, 20)
    assert shares == pytest.approx({ROOT: 20, "a": 15, "b": 5, "c": 0})


def test_groups_within_groups_and_jobs_beside_them() -> None:
    tree = IdealTree(
        [
            IdealFlow("outer", weight=3),
            IdealFlow("inner", "outer", weight=2),
            IdealFlow("beside", "outer"),
            IdealFlow("deep1", "inner"),
            IdealFlow("deep2", "inner", weight=3),
            IdealFlow("alone"),
        ]
    )
    shares = tree.shares(dict.fromkeys(("beside", "deep1", "deep2", "alone"), 1e9), 16)
    assert shares == pytest.approx(
        {ROOT: 16, "outer": 12, "inner": 8, "beside": 4, "deep1": 2, "deep2": 6, "alone": 4}
    )


def test_figure_3_10_as_fluids() -> None:
    """48/6/6 until DEFAULT2 is done, 48/12 until MED1 is done, then 60."""
    schedule = fluid_schedule(
        SEED_TREE,
        [
            FluidJob("MED1", 0, work=48 * 900),
            FluidJob("DEFAULT1", 0, work=6 * 600 + 12 * 300 + 60 * 100),
            FluidJob("DEFAULT2", 0, work=6 * 600),
        ],
        60,
    )
    assert [each.end_s for each in schedule.segments] == pytest.approx([600, 900, 1000])
    assert [schedule.share_at("DEFAULT1", at_s) for at_s in (300, 700, 950)] == pytest.approx(
        [6, 12, 60]
    )
    assert schedule.ends_s == pytest.approx({"DEFAULT2": 600, "MED1": 900, "DEFAULT1": 1000})


def test_a_job_that_comes_later_gets_its_share_from_then_on_and_nothing_for_before() -> None:
    tree = IdealTree([IdealFlow("first"), IdealFlow("second")])
    schedule = fluid_schedule(
        tree, [FluidJob("first", 0, work=150), FluidJob("second", 10, work=50)], 10
    )
    assert schedule.ends_s == pytest.approx({"first": 20, "second": 20})
    assert (schedule.share_at("first", 5), schedule.share_at("first", 15)) == (10, 5)


def test_nobody_is_there_between_two_jobs() -> None:
    tree = IdealTree([IdealFlow("first"), IdealFlow("second")])
    schedule = fluid_schedule(
        tree, [FluidJob("first", 5, work=20, width=2), FluidJob("second", 100, work=10)], 10
    )
    assert [(each.start_s, each.end_s) for each in schedule.segments] == [(5, 15), (100, 101)]
    assert schedule.share_at("first", 50) == 0


@pytest.mark.parametrize(
    "flows",
    [
        [IdealFlow("a", weight=0)],
        [IdealFlow("a", weight=math.nan)],
        [IdealFlow("a", "nowhere")],
        [IdealFlow("a", "b"), IdealFlow("b", "a")],
    ],
)
def test_a_tree_that_is_none_is_refused(flows: list[IdealFlow]) -> None:
    with pytest.raises(InvalidArgument):
        IdealTree(flows)


def test_a_job_that_can_never_end_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="maximum"):
        fluid_schedule(IdealTree([IdealFlow("a", maximum=0)]), [FluidJob("a", 0, 1)], 10)


amounts = st.integers(1, 400).map(lambda each: each / 4)
bounds = st.tuples(amounts | st.just(0.0), amounts | st.just(math.inf))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[IdealFlow], dict[str, float]]:
    """Draws flows up to three levels deep, and demands of the leaves."""
    flows: list[IdealFlow] = []
    for index in range(draw(st.integers(1, 8))):
        parent = draw(st.sampled_from([ROOT, *(each.id for each in flows if each.id != ROOT)]))
        minimum, maximum = draw(bounds)
        weight = draw(st.sampled_from([0.5, 1.0, 2.0, 4.0, 16.0]))
        flows.append(IdealFlow(f"f{index}", parent, weight, min(minimum, maximum), maximum))
    parents = {each.parent for each in flows}
    leaves = [each.id for each in flows if each.id not in parents]
    return flows, {leaf: draw(amounts | st.just(0.0)) for leaf in leaves}


def _children(flows: list[IdealFlow], parent: str) -> list[IdealFlow]:
    return [each for each in flows if each.parent == parent]


def _usable(flows: list[IdealFlow], demands: Mapping[str, float], flow: str) -> float:
    below = _children(flows, flow)
    if not below:
        return demands.get(flow, 0.0)
    return sum(min(each.maximum, _usable(flows, demands, each.id)) for each in below)


@settings(max_examples=examples(150))
@given(trees(), amounts)
def test_work_conserving_within_limits_and_summing_up(
    tree: tuple[list[IdealFlow], dict[str, float]], capacity: float
) -> None:
    flows, demands = tree
    shares = IdealTree(flows).shares(demands, capacity)
    assert shares[ROOT] == pytest.approx(min(capacity, _usable(flows, demands, ROOT)))
    for flow in [ROOT, *(each.id for each in flows)]:
        below = _children(flows, flow)
        if below:
            total = math.fsum(shares.get(each.id, 0.0) for each in below)
            assert total == pytest.approx(shares.get(flow, 0.0))
        else:
            assert shares.get(flow, 0.0) <= demands[flow] * (1 + 1e-9)
    for each in flows:
        assert shares.get(each.id, 0.0) <= each.maximum * (1 + 1e-9)


@settings(max_examples=examples(150))
@given(trees(), amounts)
def test_who_wants_more_has_no_less_per_weight_than_a_sibling(
    tree: tuple[list[IdealFlow], dict[str, float]], capacity: float
) -> None:
    """Max-min: a flow has more per weight than a sibling that wants more only by its minimum."""
    flows, demands = tree
    shares = IdealTree(flows).shares(demands, capacity)
    for flow in flows:
        mine = shares.get(flow.id, 0.0)
        if mine >= min(flow.maximum, _usable(flows, demands, flow.id)) - 1e-6:
            continue
        for sibling in _children(flows, flow.parent):
            other = shares.get(sibling.id, 0.0)
            if other > sibling.minimum + 1e-6:
                assert mine / flow.weight >= other / sibling.weight - 1e-6


@settings(max_examples=examples(100))
@given(trees(), amounts, amounts, st.randoms(use_true_random=False))
def test_monotone_in_capacity_and_independent_of_the_order(
    tree: tuple[list[IdealFlow], dict[str, float]], capacity: float, more: float, random: object
) -> None:
    flows, demands = tree
    shares = IdealTree(flows).shares(demands, capacity)
    grown = IdealTree(flows).shares(demands, capacity + more)
    for flow, share in shares.items():
        assert grown[flow] >= share - 1e-6
    random.shuffle(flows)  # type: ignore[attr-defined]
    turned = dict(sorted(demands.items(), reverse=True))
    assert IdealTree(flows).shares(turned, capacity) == pytest.approx(shares)


@settings(max_examples=examples(100))
@given(trees(), amounts, st.data())
def test_whoever_wants_more_takes_from_siblings_and_gives_them_nothing(
    tree: tuple[list[IdealFlow], dict[str, float]], capacity: float, data: st.DataObject
) -> None:
    flows, demands = tree
    # Without minimums of groups: a group that wants more uses more of its minimum, for all in it.
    flows = [replace(flow, minimum=0.0) if _children(flows, flow.id) else flow for flow in flows]
    greedy = data.draw(st.sampled_from(sorted(demands)))
    shares = IdealTree(flows).shares(demands, capacity)
    more = IdealTree(flows).shares({**demands, greedy: demands[greedy] + 10}, capacity)
    for leaf in demands:
        if leaf == greedy:
            assert more[leaf] >= shares.get(leaf, 0.0) - 1e-6
        else:
            assert more.get(leaf, 0.0) <= shares.get(leaf, 0.0) + 1e-6


@settings(max_examples=examples(100))
@given(trees(), amounts, st.data())
def test_the_schedule_does_all_work_and_wastes_nothing(
    tree: tuple[list[IdealFlow], dict[str, float]], capacity: float, data: st.DataObject
) -> None:
    flows = [IdealFlow(each.id, each.parent, each.weight) for each in tree[0]]
    jobs = [
        FluidJob(leaf, data.draw(st.integers(0, 20)), data.draw(amounts), max(1.0, width))
        for leaf, width in tree[1].items()
    ]
    schedule = fluid_schedule(IdealTree(flows), jobs, capacity)
    for job in jobs:
        received = math.fsum(
            (each.end_s - each.start_s) * each.shares.get(job.flow, 0.0)
            for each in schedule.segments
        )
        assert received == pytest.approx(job.work)
    for segment in schedule.segments:
        widths = sum(
            job.width
            for job in jobs
            if job.arrives_s <= segment.start_s and segment.start_s < schedule.ends_s[job.flow]
        )
        assert segment.shares[ROOT] == pytest.approx(min(capacity, widths))

"""Slot sharing groups and slots: defaults, groups of the user, co-location, spreading."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import finegrain_client as fg
from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.spreading import spread_evenly
from finegrain_client.graph.values import GraphSpec, JobMode
from tests.client.graph.graphs import graphs
from tests.client.graph.test_regions import graph_of


def test_each_region_of_a_batch_job_has_a_group() -> None:
    plan = graph_of("batch", "a -> b", "b => c").compile()

    assert {each.name: each.regions for each in plan.groups} == {"region-1": (1,), "region-2": (2,)}


def test_a_streaming_job_has_one_group_as_if_one_source_fed_all_sources() -> None:
    plan = graph_of("streaming", "a -> b", "c -> d").compile()

    assert {each.name: each.regions for each in plan.groups} == {"default": (1, 2)}


@pytest.mark.parametrize(
    ("mode", "option", "groups"),
    [("streaming", False, ["region-1", "region-2"]), ("batch", True, ["default"])],
)
def test_the_default_can_be_set_for_the_job(mode: str, option: bool, groups: list[str]) -> None:
    options = fg.JobOptions(all_vertices_in_same_slot_sharing_group_by_default=option)
    graph = fg.JobGraph("job", mode, options=options)
    graph.operator("a")
    graph.operator("b")

    assert [each.name for each in graph.compile().groups] == groups


def test_a_group_of_the_user_is_respected_also_across_regions() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("a", slot_sharing_group="shared")
    graph.operator("b", slot_sharing_group="shared", parallelism=3)
    graph.operator("c")
    graph.connect("a", "b", exchange="blocking")
    graph.connect("b", "c", exchange="blocking")
    shared, default = graph.compile().groups

    assert (shared.name, shared.by_user, shared.regions, shared.slots) == (
        "shared",
        True,
        (1, 2),
        3,
    )
    assert (default.name, default.by_user) == ("region-3", False)


def test_a_name_of_a_default_group_cannot_be_set() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("a", slot_sharing_group="region-2")

    with pytest.raises(GraphError, match="region-1 are reserved for default groups"):
        graph.compile()


@given(graph=graphs(with_groups=True))
def test_a_group_has_as_many_slots_as_its_highest_parallelism(graph: GraphSpec) -> None:
    try:
        plan = compile_graph(graph)
    except GraphError:
        assume(False)
    parallelism = {each.name: each.parallelism for each in graph.operators}
    for group in plan.groups:
        members = [
            operator.name for name in group.chains for operator in plan.chain_named[name].operators
        ]
        assert group.slots == max(parallelism[name] for name in members)
    for operator in graph.operators:
        if operator.slot_sharing_group:
            assert plan.chain_of[operator.name].group == operator.slot_sharing_group


@given(graph=graphs())
def test_without_groups_a_job_needs_as_many_slots_as_its_highest_parallelism(
    graph: GraphSpec,
) -> None:
    """Clause O14, for streaming jobs with any number of components, and for batch jobs."""
    try:
        plan = compile_graph(graph)
    except GraphError:
        assume(False)

    assert plan.slots_needed == max(each.parallelism for each in graph.operators)


def test_without_the_default_group_components_of_a_streaming_job_need_the_sum() -> None:
    options = fg.JobOptions(all_vertices_in_same_slot_sharing_group_by_default=False)
    graph = fg.JobGraph("job", "streaming", options=options)
    graph.operator("a", parallelism=3)
    graph.operator("b", parallelism=2)

    assert graph.compile().slots_needed == 5


def slots_of(graph: fg.JobGraph, chain: str) -> list[int]:
    found = graph.compile().chain_named[chain]
    return [found.spread.slot_of(index) for index in range(found.parallelism)]


def test_lower_parallelism_is_spread_evenly() -> None:
    graph = fg.JobGraph("job", "streaming")
    for name, parallelism in {"wide": 4, "half": 2, "one": 1, "other": 1}.items():
        graph.operator(name, parallelism=parallelism)

    assert slots_of(graph, "wide") == [0, 1, 2, 3]
    assert slots_of(graph, "half") == [0, 2]
    assert (slots_of(graph, "one"), slots_of(graph, "other")) == ([1], [3])


def test_subtasks_of_a_co_location_group_share_slots_index_by_index() -> None:
    graph = fg.JobGraph("job", "streaming")
    graph.operator("wide", parallelism=6)
    graph.operator("head", parallelism=3, co_location_group="loop")
    graph.operator("tail", parallelism=2, co_location_group="loop")

    assert slots_of(graph, "head") == [0, 2, 4]
    assert slots_of(graph, "tail") == [0, 2]


def test_co_located_operators_must_be_in_one_slot_sharing_group() -> None:
    graph = fg.JobGraph("job", "streaming")
    graph.operator("head", co_location_group="loop", slot_sharing_group="left")
    graph.operator("tail", co_location_group="loop")

    with pytest.raises(GraphError, match="set the same slot_sharing_group for both") as caught:
        graph.compile()

    assert caught.value.operators == ("head", "tail")


def test_co_located_operators_of_a_batch_job_must_run_at_the_same_time() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("head", co_location_group="loop", slot_sharing_group="both")
    graph.operator("tail", co_location_group="loop", slot_sharing_group="both")
    graph.connect("head", "tail", exchange="blocking")

    with pytest.raises(GraphError, match="not in the same pipelined region"):
        graph.compile()


@given(
    slots=st.integers(1, 12),
    parts=st.lists(st.floats(0.01, 1), min_size=1, max_size=8),
)
def test_spreading_gives_each_subtask_another_slot_at_equal_distances(
    slots: int, parts: list[float]
) -> None:
    counts = [max(1, int(slots * part)) for part in parts]
    for count, spread in zip(counts, spread_evenly(slots, counts), strict=True):
        taken = sorted(spread.slot_of(index) for index in range(count))
        assert len(set(taken)) == count
        assert set(taken) <= set(range(slots))
        gaps = [(two - one) % slots for one, two in zip(taken, taken[1:] + taken[:1], strict=True)]
        assert count == 1 or max(gaps) - min(gaps) <= 1


@given(slots=st.integers(1, 12), chains=st.integers(1, 30))
def test_single_subtasks_fill_the_slots_evenly(slots: int, chains: int) -> None:
    used = Counter(each.slot_of(0) for each in spread_evenly(slots, [1] * chains))

    loads = [used[slot] for slot in range(slots)]
    assert max(loads) - min(loads) <= 1


def test_a_batch_region_needs_only_the_slots_that_its_tasks_run_in() -> None:
    graph = fg.JobGraph("job", JobMode.BATCH)
    graph.operator("small", parallelism=2, slot_sharing_group="g")
    graph.operator("large", parallelism=5, slot_sharing_group="g")
    graph.connect("small", "large", exchange="blocking")
    plan = graph.compile()

    assert [each.slots for each in plan.regions] == [2, 5]
    assert plan.slots_needed == 5

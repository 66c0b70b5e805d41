"""Operator chaining: what is chained, and why not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given

import finegrain_client as fg
from finegrain_client.graph.chains import Obstacle
from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.values import Exchange, GraphSpec, Pattern
from tests.client.graph.graphs import graphs
from tests.client.graph.test_regions import graph_of


def pair(
    first: dict[str, Any] | None = None,
    second: dict[str, Any] | None = None,
    edge: dict[str, Any] | None = None,
    options: fg.JobOptions | None = None,
) -> fg.JobGraph:
    graph = fg.JobGraph("job", "batch", options=options)
    graph.operator("a", **(first or {}))
    graph.operator("b", **(second or {}))
    graph.connect("a", "b", **(edge or {}))
    return graph


def test_a_forward_edge_of_equal_parallelism_is_chained() -> None:
    plan = pair({"parallelism": 3}, {"parallelism": 3}).compile()

    (chain,) = plan.chains
    assert (chain.name, chain.parallelism) == ("a+b", 3)
    assert plan.edges[0].chained


@pytest.mark.parametrize(
    ("graph", "obstacle"),
    [
        pytest.param(pair(edge={"exchange": "blocking"}), Obstacle.BLOCKING, id="blocking"),
        pytest.param(pair(edge={"pattern": "all-to-all"}), Obstacle.ALL_TO_ALL, id="all-to-all"),
        pytest.param(pair({"parallelism": 2}), Obstacle.PARALLELISM, id="other parallelism"),
        pytest.param(pair({"chaining": False}), Obstacle.SWITCHED_OFF, id="off for the producer"),
        pytest.param(
            pair(None, {"chaining": False}), Obstacle.SWITCHED_OFF, id="off for the consumer"
        ),
        pytest.param(
            pair(options=fg.JobOptions(chaining=False)), Obstacle.SWITCHED_OFF, id="off for the job"
        ),
        pytest.param(pair({"program": ["./a"]}), Obstacle.PROGRAM, id="a program of its own"),
        pytest.param(
            pair({"slot_sharing_group": "g"}), Obstacle.GROUP, id="another slot sharing group"
        ),
    ],
)
def test_what_speaks_against_chaining_is_named(graph: fg.JobGraph, obstacle: Obstacle) -> None:
    (edge,) = graph.compile().edges

    assert not edge.chained
    assert edge.obstacle is obstacle


def test_an_operator_with_two_inputs_begins_a_chain() -> None:
    plan = graph_of("batch", "a -> c", "b -> c", "c -> d").compile()

    assert [each.name for each in plan.chains] == ["a", "b", "c+d"]
    assert plan.edges[0].obstacle is Obstacle.INPUTS


def test_a_chain_may_branch() -> None:
    plan = graph_of("batch", "a -> b", "a -> c", "c -> d").compile()

    (chain,) = plan.chains
    assert {each.name for each in chain.operators} == {*"abcd"}


def test_a_program_given_twice_is_the_same_program() -> None:
    options = fg.JobOptions(program=["./run", "-v"])
    plan = pair({"program": ["./run", "-v"]}, options=options).compile()

    assert plan.chains[0].program == ("./run", "-v")
    assert plan.edges[0].chained


def test_the_plan_lists_chains_that_only_a_group_broke() -> None:
    graph = pair({"slot_sharing_group": "g"})
    graph.operator("c", parallelism=2, slot_sharing_group="other")
    graph.connect("b", "c")  # other parallelism, so no chain without the groups either

    assert [each.name for each in graph.compile().broken_chains] == ["a -> b"]


@given(graph=graphs(with_groups=True))
def test_operators_of_a_chain_share_region_group_and_parallelism(graph: GraphSpec) -> None:
    try:
        plan = compile_graph(graph)
    except GraphError:
        assume(False)
    operators = {each.name: each for each in graph.operators}
    regions = {name: region.number for region in plan.regions for name in region.chains}
    for chain in plan.chains:
        assert regions[chain.name] == chain.region
        assert {operators[each.name].parallelism for each in chain.operators} == {chain.parallelism}
    for edge in plan.edges:
        if edge.chained:
            assert plan.chain_of[edge.producer] is plan.chain_of[edge.consumer]
            assert (edge.exchange, edge.pattern) == (Exchange.PIPELINED, Pattern.FORWARD)
            assert (edge.obstacle, edge.channels, edge.subpartitions) == (None, 0, 0)
        else:
            assert edge.obstacle is not None
            assert edge.channels > 0
            assert edge.subpartitions > 0

"""Pipelined regions, and the errors of graphs whose regions could not run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given

import finegrain_client as fg
from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.values import Exchange, GraphSpec, JobMode
from tests.client.graph.graphs import graphs


def graph_of(mode: str, *edges: str) -> fg.JobGraph:
    """Returns a graph; "a -> b" is a pipelined edge, "a => b" a blocking one."""
    graph = fg.JobGraph("job", mode)
    known = set()
    for edge in edges:
        producer, arrow, consumer = edge.split()
        for name in (producer, consumer):
            if name not in known:
                graph.operator(name)
                known.add(name)
        graph.connect(producer, consumer, exchange="blocking" if arrow == "=>" else "pipelined")
    return graph


def regions(plan: Plan) -> list[set[str]]:
    return [
        {operator.name for name in region.chains for operator in plan.chain_named[name].operators}
        for region in plan.regions
    ]


def test_operators_that_pipelined_edges_connect_are_one_region() -> None:
    plan = graph_of("batch", "read -> map", "map => reduce", "reduce -> write").compile()

    assert regions(plan) == [{"read", "map"}, {"reduce", "write"}]
    assert [each.waits_for for each in plan.regions] == [(), (1,)]


def test_a_region_comes_after_all_regions_that_it_waits_for() -> None:
    plan = graph_of("batch", "a => d", "b => c", "c => d", "d -> e").compile()

    assert regions(plan) == [{"a"}, {"b"}, {"c"}, {"d", "e"}]
    assert plan.regions[3].waits_for == (1, 3)


def test_without_edges_each_operator_is_a_region() -> None:
    graph = fg.JobGraph("job", "batch")
    graph.operator("a")
    graph.operator("b")

    assert regions(graph.compile()) == [{"a"}, {"b"}]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        pytest.param(
            graph_of("batch", "a -> b", "b -> c", "c => b2", "c -> a"),
            "the edges a -> b -> c -> a form a circle, so none of these operators could be the "
            "first to get input; remove one of the edges",
            id="a circle of edges",
        ),
        pytest.param(
            graph_of("streaming", "a -> b", "b => c"),
            "edge b => c is blocking in a streaming job: c would wait for the end of b, which runs "
            "until the job is ended; make edge b => c pipelined, or the job's mode batch",
            id="a blocking edge in a streaming job",
        ),
        pytest.param(
            graph_of("batch", "a -> b", "b -> c", "a => c"),
            "edge a => c is blocking, but pipelined edges connect the two operators (a -> b, "
            "b -> c): c must run together with a, and could not wait for its end; make edge a => c "
            "pipelined, or edge a -> b blocking",
            id="a blocking edge within a region",
        ),
        pytest.param(
            graph_of("batch", "a -> b", "a => c", "c => b"),
            "pipelined regions wait for each other in a circle, by the blocking edges a => c, "
            "c => b: operators that pipelined edges connect run together, so none of these regions "
            "could start; make edge a -> b blocking",
            id="regions that wait for each other",
        ),
        pytest.param(
            graph_of("batch", "a -> b", "b2 -> a2", "a => a2", "b2 => b"),
            "pipelined regions wait for each other in a circle, by the blocking edges a => a2, "
            "b2 => b: operators that pipelined edges connect run together, so none of these regions"
            " could start; make edge a -> b blocking",
            id="two regions with two operators each",
        ),
    ],
)
def test_a_graph_that_could_not_run_is_an_error_that_names_the_edge_to_change(
    graph: fg.JobGraph, message: str
) -> None:
    with pytest.raises(GraphError) as caught:
        graph.compile()

    assert caught.value.message == message.replace("=>", "->")
    assert set(caught.value.operators) <= {*"abc", "a2", "b2"}
    assert caught.value.operators


def test_regions_that_no_single_edge_separates_become_one() -> None:
    """Two pipelined paths connect a and d, so making one edge blocking does not separate them."""
    graph = graph_of("batch", "a -> b", "b -> d", "a -> c", "c -> d", "a => x", "x => d")

    with pytest.raises(GraphError, match="make the edges a -> x, x -> d pipelined") as caught:
        graph.compile()

    assert caught.value.changes == (("a -> x", "pipelined"), ("x -> d", "pipelined"))
    assert regions(compile_graph(_changed(graph.spec, caught.value))) == [{*"abcdx"}]


def _changed(graph: GraphSpec, error: GraphError) -> GraphSpec:
    changes = dict(error.changes)
    return replace(
        graph,
        edges=tuple(
            replace(edge, exchange=Exchange(changes.get(edge.name, edge.exchange)))
            for edge in graph.edges
        ),
    )


@given(graph=graphs())
def test_each_error_disappears_with_the_change_that_it_names(graph: GraphSpec) -> None:
    """If the changes that the errors name are made one by one, the graph compiles in the end."""
    seen = set()
    while (error := _error_of(graph)) is not None:
        assert error.changes
        assert error.message not in seen
        seen.add(error.message)
        graph = _changed(graph, error)
    assert len(seen) <= len(graph.edges)


def _error_of(graph: GraphSpec) -> GraphError | None:
    try:
        compile_graph(graph)
    except GraphError as error:
        return error
    return None


@given(graph=graphs())
def test_regions_are_a_partition_in_an_order_in_which_they_can_run(graph: GraphSpec) -> None:
    try:
        plan = compile_graph(graph)
    except GraphError:
        assume(False)
    found = regions(plan)
    assert sorted(name for region in found for name in region) == sorted(
        each.name for each in graph.operators
    )
    region_of = {name: at for at, region in enumerate(found) for name in region}
    for edge in graph.edges:
        producer, consumer = region_of[edge.producer], region_of[edge.consumer]
        if edge.exchange is Exchange.PIPELINED:
            assert producer == consumer
        else:
            assert producer < consumer
            assert producer + 1 in plan.regions[consumer].waits_for


def test_a_streaming_job_has_no_region_that_waits() -> None:
    plan = graph_of("streaming", "a -> b", "c -> d").compile()

    assert plan.mode is JobMode.STREAMING
    assert [each.waits_for for each in plan.regions] == [(), ()]

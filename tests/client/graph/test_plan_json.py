"""The JSON form of plans."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given

import finegrain_client as fg
from finegrain.errors import InvalidArgument
from finegrain_client.graph import plan_from_json, plan_to_json
from finegrain_client.graph.compiler import compile_graph
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.values import GraphSpec
from tests.client.graph.graphs import graphs


def _plan() -> dict[str, object]:
    graph = fg.JobGraph("job")
    for name in ("a", "b", "c"):
        graph.operator(name, uses_managed_memory=True)
    return plan_to_json(graph.compile())


@given(graph=graphs(with_groups=True))
def test_a_plan_is_read_as_it_was_written(graph: GraphSpec) -> None:
    try:
        plan = compile_graph(graph)
    except GraphError:
        assume(False)

    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_fractions_are_exact_in_json() -> None:
    text = json.dumps(_plan())

    assert '"managed": {"on_heap": "0", "off_heap": "1/3"}' in text


def test_a_plan_of_a_later_schema_is_refused() -> None:
    with pytest.raises(GraphError, match=r"the plan has schema_version 2; this version .* reads 1"):
        plan_from_json({**_plan(), "schema_version": 2})


def test_keys_of_a_later_version_are_ignored() -> None:
    assert plan_from_json({**_plan(), "later": 1}) == plan_from_json(_plan())


def test_a_wrong_fraction_is_an_error() -> None:
    text = json.dumps(_plan()).replace('"1/3"', '"1/0"')

    with pytest.raises(InvalidArgument, match="expected a fraction"):
        plan_from_json(json.loads(text))

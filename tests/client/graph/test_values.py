"""Wrong parts of a job graph: one error each, which names the operator and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import InvalidArgument
from finegrain_client.graph.errors import GraphError


def add(name: str = "map", **fields: Any) -> Callable[[fg.JobGraph], object]:
    return lambda graph: graph.operator(name, **fields)


def resources(**fields: Any) -> Callable[[fg.JobGraph], object]:
    return add(resources=fg.ResourceSpec(**{"cpu_milli": 1, "task_heap_memory_bytes": 1, **fields}))


def connect(*ends: str, **fields: Any) -> Callable[[fg.JobGraph], object]:
    return lambda graph: graph.connect(*ends, **fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (resources(cpu_milli=None), "cpu_milli of operator map is 'missing'; expected an amount"),
        (
            resources(task_heap_memory_bytes=None),
            "task_heap_memory_bytes of operator map is 'missing'; expected an amount above 0",
        ),
        (resources(cpu_milli=0), "cpu_milli of operator map is 0; expected an integer from 1"),
        (
            resources(managed_memory_bytes=5, managed_on_heap_memory_bytes=6),
            "managed_on_heap_memory_bytes of operator map is 6; expected an integer from 0 to 5",
        ),
        (
            resources(devices={"gpu.shared": 2}),
            "devices.gpu.shared of operator map is 2; expected no number of devices to share",
        ),
        (
            add(
                resources=fg.ResourceSpec(cpu_milli=1, task_heap_memory_bytes=1),
                uses_managed_memory=True,
            ),
            "expected neither for an operator with resources",
        ),
        (add(resources={"cpu_milli": 1}), "expected a ResourceSpec"),
        (add("a b"), "operator name is 'a b'; expected 1 to 128 characters"),
        (add(parallelism=0), "parallelism of operator map is 0; expected an integer from 1 to"),
        (add(parallelism=True), "parallelism of operator map is True; expected an integer from 1"),
        (add(program="./run"), "program of operator map is './run'; expected a list of texts"),
        (add(output="disk"), "output of operator map is 'disk'; expected one of host, durable"),
        (
            add(managed_memory_weight=2),
            "managed_memory_weight of operator map is 2; expected 1, or uses_managed_memory = true",
        ),
        (add("source"), "there are two operators named source; give one of them another name"),
        (connect("source", "snk"), "there is no operator 'snk', did you mean sink?"),
        (connect("source", "source"), "begins and ends at the same operator"),
        (connect("source", "sink"), "there are two edges source -> sink; remove one of them"),
        (
            connect("sink", "source", exchange="piped"),
            "exchange of edge sink -> source is 'piped'; expected one of pipelined, blocking; did",
        ),
        (
            connect("sink", "source", pattern="any"),
            "pattern of edge sink -> source is 'any'; expected one of forward, all-to-all",
        ),
    ],
)
def test_a_wrong_part_is_one_clear_error(
    change: Callable[[fg.JobGraph], object], message: str
) -> None:
    graph = fg.JobGraph("job")
    graph.operator("source")
    graph.operator("sink")
    graph.connect("source", "sink")
    before = graph.spec

    with pytest.raises(InvalidArgument) as caught:
        change(graph)

    assert message in caught.value.message
    assert graph.spec == before


def test_network_memory_cannot_be_set_on_an_operator() -> None:
    with pytest.raises(TypeError, match="network_memory_bytes"):
        fg.ResourceSpec(cpu_milli=1, network_memory_bytes=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"network_buffer_bytes": 0}, "network_buffer_bytes is 0; expected an integer from 1"),
        ({"default_managed_memory_percent": 101}, "is 101; expected an integer from 0 to 100"),
        ({"restart_delay_s": -1}, "restart_delay_s is -1; expected 0 to 86400 seconds"),
        ({"chaining": "no"}, "chaining is 'no'; expected true or false"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        fg.JobOptions(**options)


def test_a_wrong_mode_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="mode is 'stream'; expected one of streaming, batch"):
        fg.JobGraph("job", "stream")


def test_a_job_without_operators_cannot_be_compiled() -> None:
    with pytest.raises(GraphError, match="job empty has no operators; add one or more"):
        fg.JobGraph("empty").compile()


def test_a_graph_has_a_limited_number_of_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegrain_client.graph.job_graph.OPERATORS_MAX", 2)
    graph = fg.JobGraph("job")
    graph.operator("a")
    graph.operator("b")

    with pytest.raises(GraphError, match="operator c is one too many; a job has at most 2"):
        graph.operator("c")


def test_a_plan_does_not_change_with_the_graph() -> None:
    graph = fg.JobGraph("job")
    graph.operator("a")
    plan = graph.compile()
    graph.operator("b")

    assert [each.name for each in plan.chains] == ["a"]
    assert graph.compile() != plan

"""Job files: all keys, and one clear error for each mistake."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

import finegrain_client as fg
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.job_file import parse_job_file
from finegrain_client.graph.values import Exchange, OperatorSpec, Output, Pattern

EVERYTHING = """
schema_version = 1

[job]
name = "all keys"
mode = "streaming"
program = ["./run", "--fast"]
chaining = false
all_vertices_in_same_slot_sharing_group_by_default = false
network_buffer = "64K"
network_buffers_per_channel = 3
network_floating_buffers_per_gate = 4
default_managed_memory_percent = 50
default_managed_on_heap_memory_percent = 10
restarts_max = 7
restart_delay = "500ms"
time_limit = "2h"
expected_run_time = "90s"
revocable = true

[[operator]]
name = "a"
parallelism = 2
program = ["./a"]
slot_sharing_group = "left"
co_location_group = "both"
chaining = false
ports = 2
output = "durable"
revocable = false

[operator.resources]
cpu = 0.5
task_heap_memory = "256M"
task_off_heap_memory = "1M"
managed_memory = "64M"
managed_on_heap_memory = "16M"
extended = { licence = 2 }
devices = { gpu = 0.5, gpu-memory = "4Gi", gpu-core = 30 }

[[operator]]
name = "b"
uses_managed_memory = true
uses_managed_on_heap_memory = true
managed_memory_weight = 3

[[edge]]
from = "a"
to = "b"
exchange = "blocking"
pattern = "all-to-all"
"""

SMALL = """
schema_version = 1
[job]
name = "small"
mode = "batch"
[[operator]]
name = "map"
[[operator]]
name = "reduce"
[[edge]]
from = "map"
to = "reduce"
"""


def test_every_key_of_a_job_file() -> None:
    spec = parse_job_file(EVERYTHING, "all.toml").spec

    assert (spec.name, spec.mode) == ("all keys", "streaming")
    assert spec.options == fg.JobOptions(
        all_vertices_in_same_slot_sharing_group_by_default=False,
        chaining=False,
        program=("./run", "--fast"),
        network_buffer_bytes=64 * fg.KIB,
        network_buffers_per_channel=3,
        network_floating_buffers_per_gate=4,
        default_managed_memory_percent=50,
        default_managed_on_heap_memory_percent=10,
        restarts_max=7,
        restart_delay_s=0.5,
        time_limit_s=7_200.0,
        expected_run_time_s=90.0,
        revocable=True,
    )
    assert spec.operators[0] == OperatorSpec(
        name="a",
        parallelism=2,
        resources=fg.ResourceSpec(
            cpu_milli=500,
            task_heap_memory_bytes=256 * fg.MIB,
            task_off_heap_memory_bytes=fg.MIB,
            managed_memory_bytes=64 * fg.MIB,
            managed_on_heap_memory_bytes=16 * fg.MIB,
            extended={"licence": 2},
            devices={"gpu": 50, "gpu-core": 30, "gpu-memory": 4 * fg.GIB},
        ),
        program=("./a",),
        slot_sharing_group="left",
        co_location_group="both",
        chaining=False,
        ports=2,
        output=Output.DURABLE,
        revocable=False,
    )
    assert spec.operators[1] == OperatorSpec(
        name="b",
        uses_managed_memory=True,
        uses_managed_on_heap_memory=True,
        managed_memory_weight=3,
    )
    (edge,) = spec.edges
    assert (edge.name, edge.exchange, edge.pattern) == (
        "a -> b",
        Exchange.BLOCKING,
        Pattern.ALL_TO_ALL,
    )


def test_what_is_not_given_has_the_defaults_of_the_builder() -> None:
    built = fg.JobGraph("small", "batch")
    built.operator("map")
    built.operator("reduce")
    built.connect("map", "reduce")

    assert parse_job_file(SMALL, "small.toml").spec == built.spec


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"small"', '"small', "Illegal character '\\n' (at line 4, column 14)"),
        ("schema_version = 1", "", "schema_version is missing; expected a whole number"),
        (
            "= 1\n",
            "= 2\n",
            "schema_version is 2; expected 1, which this version of finegrain reads",
        ),
        ("[job]", "[jobs]", "unknown key jobs, did you mean 'job'?"),
        ('mode = "batch"', "", "job.mode is missing; expected one of streaming, batch"),
        ('"batch"', '"bach"', "job.mode is 'bach'; expected one of streaming, batch (did you mean"),
        ("mode =", "moode =", "job.mode is missing"),
        ('"batch"', '"batch"\nrestart_max = 1', "unknown key job.restart_max, did you mean 'resta"),
        ('"batch"', '"batch"\nrestart_delay = "2d"', "job.restart_delay is '2d'; expected at most"),
        ('"batch"', '"batch"\nchaining = 1', "job.chaining is 1; expected true or false"),
        ('name = "map"', "", "operator 1.name is missing"),
        ('"map"', '"map"\nparalelism = 2', "operator map.paralelism, did you mean 'parallelism'?"),
        ('"map"', '"map"\nparallelism = 0', "operator map.parallelism is 0; expected a whole numb"),
        ('"map"', '"map"\nprogram = "./x"', "operator map.program is './x'; expected a list of st"),
        (
            '"map"',
            '"map"\nresources = {cpu = 1}',
            "operator map.resources.task_heap_memory is miss",
        ),
        (
            '"map"',
            '"map"\nresources = {cpu = 1, task_heap_memory = "1M", network_memory = "1M"}',
            "operator map.resources.network_memory is '1M'; expected no network memory: it follows",
        ),
        (
            '"map"',
            '"map"\nresources = {cpu = 1, task_heap_memory = "1M", managed_on_heap_memory = "1M"}',
            "managed_on_heap_memory is '1M'; expected at most managed_memory",
        ),
        (
            '"map"',
            '"map"\nresources = {cpu = 1, task_heap_memory = "1M", devices = {gpu = 0.333}}',
            "resources.devices.gpu is 0.333; expected devices with at most two decimals",
        ),
        ('"map"', '"m ap"', "operator name is 'm ap'; expected 1 to 128 characters"),
        ('"reduce"\n[[edge]]', '"map"\n[[edge]]', "there are two operators named map"),
        ('to = "reduce"', 'to = "redce"', "there is no operator 'redce', did you mean reduce?"),
        (
            'to = "reduce"',
            'to = "reduce"\nexchnge = "x"',
            "edge map -> reduce.exchnge, did you mean",
        ),
        ("[[edge]]", "[edge]", "expected a list of tables, each written [[edge]]"),
    ],
)
def test_a_mistake_is_one_error_that_names_the_file_and_the_key(
    before: str, after: str, message: str
) -> None:
    text = SMALL.replace(before, after, 1)
    assert text != SMALL

    with pytest.raises(GraphError) as caught:
        parse_job_file(text, "small.toml")

    assert caught.value.message.startswith("small.toml")
    assert message in caught.value.message


def test_a_job_file_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("finegrain_client.graph.job_file.SIZE_MAX", 10)

    with pytest.raises(GraphError, match="a job file has at most 10"):
        parse_job_file(SMALL, "small.toml")


def known_keys(table: str, text: str) -> set[str]:
    """Returns the keys that a table may have, which the error for an unknown key lists."""
    heading = "[job]" if table == "job" else f"[[{table}]]"
    with pytest.raises(GraphError) as caught:
        parse_job_file(text.replace(heading, f"{heading}\nzzz = 1", 1), "all.toml")
    return set(caught.value.message.partition("known keys: ")[2].split(", "))


def test_the_example_with_all_keys_has_all_keys() -> None:
    """So if a key is added to the reader, it must also be added to the example."""
    content: dict[str, Any] = tomllib.loads(EVERYTHING)
    given = {
        "job": set(content["job"]),
        "operator": {key for each in content["operator"] for key in each},
        "edge": set(content["edge"][0]),
    }
    for table, keys in given.items():
        assert known_keys(table, EVERYTHING) == keys

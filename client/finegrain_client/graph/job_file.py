"""Reads job files, which describe a job graph in TOML.

A file has `schema_version`, a table [job], and tables [[operator]] and [[edge]].
docs/job-graphs.md lists all keys. Each error names the file, the key and the value as typed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from decimal import Decimal

from finegrain.config_table import ConfigTable
from finegrain.devices.device import GPU_MEMORY, WHOLE
from finegrain.errors import InvalidArgument
from finegrain.units import parse_bytes
from finegrain.values.bounds import AMOUNT_MAX, TIME_LIMIT_MS_MAX
from finegrain_client.graph.errors import GraphError
from finegrain_client.graph.job_graph import JobGraph
from finegrain_client.graph.values import (
    DELAY_MAX_S,
    PARALLELISM_MAX,
    PORTS_MAX,
    RESTARTS_MAX,
    WEIGHT_MAX,
    Exchange,
    JobMode,
    JobOptions,
    OperatorSpec,
    Output,
    Pattern,
    ResourceSpec,
    summed,
)

SCHEMA_VERSION = 1
SIZE_MAX = 4 * 1024 * 1024

_PERCENT_DEVICES = ("gpu-core", "gpu-memory-ratio")
_ALL_IN_ONE_GROUP = "all_vertices_in_same_slot_sharing_group_by_default"


def parse_job_file(text: str, file: str) -> JobGraph:
    """Returns the job graph that a job file describes.

    Args:
        text: content of the file.
        file: name of the file, for errors.

    Raises:
        GraphError: the text is not TOML, has an unknown key, or has an invalid value.
    """
    if len(text) > SIZE_MAX:
        raise GraphError(f"{file} has {len(text)} characters; a job file has at most {SIZE_MAX}")
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise GraphError(f"{file} is not TOML: {error}") from None
    whole = ConfigTable(content, file, error=GraphError)
    version = whole.integer("schema_version", most=AMOUNT_MAX)
    if version != SCHEMA_VERSION:
        whole.wrong(
            "schema_version", version, f"{SCHEMA_VERSION}, which this version of finegrain reads"
        )
    job, operators, edges = whole.table("job"), whole.tables("operator"), whole.tables("edge")
    whole.end()
    try:
        graph = _job(job)
        for operator in operators:
            graph.add_operator(_operator(operator))
        for edge in edges:
            _edge(graph, edge)
    except GraphError as error:
        if not error.message.startswith(f"{file}: "):
            error.message = f"{file}: {error.message}"
        raise
    except InvalidArgument as error:
        raise GraphError(f"{file}: {error.message}", details=error.details) from None
    return graph


def _job(table: ConfigTable) -> JobGraph:
    default = JobOptions()
    mode = table.choice("mode", list(JobMode))
    on_heap = "default_managed_on_heap_memory_percent"
    options = JobOptions(
        all_vertices_in_same_slot_sharing_group_by_default=table.flag(_ALL_IN_ONE_GROUP, False)
        if _ALL_IN_ONE_GROUP in table
        else None,
        chaining=table.flag("chaining", True),
        program=table.words("program", []),
        network_buffer_bytes=table.size("network_buffer", default.network_buffer_bytes),
        network_buffers_per_channel=table.integer(
            "network_buffers_per_channel", default.network_buffers_per_channel
        ),
        network_floating_buffers_per_gate=table.integer(
            "network_floating_buffers_per_gate", default.network_floating_buffers_per_gate
        ),
        default_managed_memory_percent=table.integer(
            "default_managed_memory_percent", default.default_managed_memory_percent, most=100
        ),
        default_managed_on_heap_memory_percent=table.integer(on_heap, 0, most=100)
        if on_heap in table
        else None,
        restarts_max=table.integer("restarts_max", default.restarts_max, most=RESTARTS_MAX),
        restart_delay_s=table.duration_ms(
            "restart_delay", int(default.restart_delay_s * 1000), most_ms=DELAY_MAX_S * 1000
        )
        / 1000,
        time_limit_s=_seconds(table, "time_limit"),
        expected_run_time_s=_seconds(table, "expected_run_time"),
        revocable=table.flag("revocable", False),
    )
    name = table.text("name")
    # These keys are read only if they are present, so mark them as known.
    for key in (_ALL_IN_ONE_GROUP, on_heap):
        table.note(key)
    table.end()
    return JobGraph(name, mode, options=options)


def _seconds(table: ConfigTable, key: str) -> float | None:
    table.note(key)  # the key is read only if it is present
    return table.duration_ms(key, most_ms=TIME_LIMIT_MS_MAX) / 1000 if key in table else None


def _operator(table: ConfigTable) -> OperatorSpec:
    name = table.text("name")
    table.path = f"operator {name}"
    resources = _resources(table.table("resources")) if "resources" in table else None
    table.note("resources")
    operator = OperatorSpec(
        name=name,
        parallelism=table.integer("parallelism", 1, least=1, most=PARALLELISM_MAX),
        resources=resources,
        program=table.words("program", []),
        slot_sharing_group=table.text("slot_sharing_group", ""),
        co_location_group=table.text("co_location_group", ""),
        chaining=table.flag("chaining", True),
        uses_managed_memory=table.flag("uses_managed_memory", False),
        uses_managed_on_heap_memory=table.flag("uses_managed_on_heap_memory", False),
        managed_memory_weight=table.integer("managed_memory_weight", 1, least=1, most=WEIGHT_MAX),
        ports=table.integer("ports", 0, most=PORTS_MAX),
        output=Output(table.choice("output", list(Output), Output.HOST)),
        revocable=table.flag("revocable", False) if "revocable" in table else None,
    )
    table.note("revocable")  # the key is read only if it is present
    table.end()
    return operator


def _resources(table: ConfigTable) -> ResourceSpec:
    for key in ("network_memory", "network"):
        if key in table:
            expected = "no network memory: it follows from the edges; remove the key"
            table.wrong(key, table.plain()[key], expected)
    spec = ResourceSpec(
        cpu_milli=table.cpu("cpu"),
        task_heap_memory_bytes=table.size("task_heap_memory"),
        task_off_heap_memory_bytes=table.size("task_off_heap_memory", 0),
        managed_memory_bytes=table.size("managed_memory", 0),
        managed_on_heap_memory_bytes=table.size("managed_on_heap_memory", 0),
        extended=dict(summed([table.amounts("extended", lambda _: _count)])),
        devices=dict(summed([table.amounts("devices", _device_parser)])),
    )
    if spec.managed_on_heap_memory_bytes > spec.managed_memory_bytes:
        expected = "at most managed_memory, of which it is a part"
        table.wrong("managed_on_heap_memory", table.plain()["managed_on_heap_memory"], expected)
    table.end()
    return spec


def _count(field: str, text: str) -> int:
    if not text.isdecimal() or int(text) > AMOUNT_MAX:
        raise InvalidArgument(field, text, "a whole number")
    return int(text)


def _device_parser(name: str) -> Callable[[str, str], int]:
    """Returns the parser for amounts of a device, in the unit of `finegrain run`."""
    if name == GPU_MEMORY:
        return parse_bytes
    return _count if name in _PERCENT_DEVICES else _hundredths


def _hundredths(field: str, text: str) -> int:
    try:
        amount = Decimal(text) * WHOLE
    except ArithmeticError:
        amount = Decimal(-1)
    if not (0 <= amount <= AMOUNT_MAX and amount == int(amount)):
        raise InvalidArgument(field, text, "devices with at most two decimals, such as 2 or 0.5")
    return int(amount)


def _edge(graph: JobGraph, table: ConfigTable) -> None:
    producer, consumer = table.text("from"), table.text("to")
    table.path = f"edge {producer} -> {consumer}"
    exchange = table.choice("exchange", list(Exchange), Exchange.PIPELINED)
    pattern = table.choice("pattern", list(Pattern), Pattern.FORWARD)
    table.end()
    graph.connect(producer, consumer, exchange=exchange, pattern=pattern)

"""The nodes of a simulated cluster, from a short description or from a file.

A description lists kinds of nodes, separated by commas. A kind has the form `COUNTxCPUScpu`,
followed by optional parts: `:SIZE` of memory, `:COUNTgpu`, `:NAME=AMOUNT` of an extended resource,
`*SPEED`, `@LABEL=VALUE`. Examples:

    128x1cpu
    20x80cpu:505G@cluster=zewura,48x12cpu:90G@cluster=zegox
    100x96cpu:768G:8gpu:rdma=100*1.5@model=G2
"""

from __future__ import annotations

import re
from pathlib import Path

from finegrain.errors import InvalidArgument
from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES, MIB
from finegrain.units import parse_bytes, parse_cpu_milli, parse_pair
from resource_manager.simulator.nodes import Node, equal_gpus
from resource_manager.simulator.traces.gpu_cluster import MODEL
from resource_manager.simulator.traces.rows import Row, csv_rows

NODES_MAX = 100_000
GPUS_MAX = 64
"""Maximum number of GPUs per node."""

_KIND = re.compile(r"(?:(\d+)x)?([\d.]+m?)cpu((?::[^:*@]+)*)(?:\*(\d+(?:\.\d+)?))?((?:@[^:*@]+)*)")
_GPUS = re.compile(r"(\d+)gpu")
_EXPECTED = "kinds of nodes such as 128x1cpu or 20x80cpu:505G:8gpu@zone=a, or a file"


def read_nodes(text: str, field: str = "--nodes") -> list[Node]:
    """Returns nodes from a description, or from a CSV file if `text` is the path of such a file.

    Raises:
        InvalidArgument: `text` is neither a description nor such a path, or there are no nodes, or
            too many nodes.
    """
    path = Path(text)
    nodes = _listed(path) if path.is_file() else _in_words(text, field)
    if not 0 < len(nodes) <= NODES_MAX:
        raise InvalidArgument(field, f"{len(nodes)} nodes", f"1 to {NODES_MAX} nodes")
    return nodes


def _in_words(text: str, field: str) -> list[Node]:
    nodes: list[Node] = []
    for words in text.split(","):
        match = _KIND.fullmatch(words.strip())
        if not match:
            raise InvalidArgument(field, words, _EXPECTED)
        count = int(match[1] or 1)
        # Check the count before the nodes are created: a mistyped count must not fill the memory.
        if len(nodes) + count > NODES_MAX:
            raise InvalidArgument(field, words, f"at most {NODES_MAX} nodes")
        total, gpus = {CPU_MILLI: parse_cpu_milli(field, match[2])}, 0
        for part in filter(None, match[3].split(":")):
            if counted := _GPUS.fullmatch(part):
                gpus = _gpu_count(field, part, int(counted[1]))
                continue
            name, amount = _part(field, part)
            total[name] = amount
        labels = sorted(parse_pair(field, part) for part in match[5].split("@") if part)
        devices = equal_gpus(gpus, dict(labels).get(MODEL, ""))
        speed = float(match[4] or 1)
        if not speed:
            raise InvalidArgument(field, words, "a speed above 0")
        nodes += [
            Node(f"node-{len(nodes) + number:04}", total, tuple(labels), speed, devices)
            for number in range(count)
        ]
    return nodes


def _part(field: str, text: str) -> tuple[str, int]:
    if "=" not in text:
        return MEMORY_BYTES, parse_bytes(field, text)
    name, amount = parse_pair(field, text)
    if not amount.isdigit():
        raise InvalidArgument(field, text, "a whole number of an extended resource: NAME=AMOUNT")
    return EXTENDED_PREFIX + name, int(amount)


def _gpu_count(field: str, text: str, count: int) -> int:
    if count > GPUS_MAX:
        raise InvalidArgument(field, text, f"at most {GPUS_MAX} GPUs per node")
    return count


def _listed(path: Path) -> list[Node]:
    """Reads a CSV file with a header.

    Columns are a name (`name` or `sn`), `cpu_milli`, and optionally `memory_mib`, `gpu` and
    `speed`. Every other column is a label, for example `model`.
    """
    nodes, seen = [], set()
    for row in csv_rows(path, (CPU_MILLI,)):
        node = _node(row)
        if node.name in seen:
            raise row.wrong("sn" if "sn" in row else "name", "a name that no other node has")
        seen.add(node.name)
        nodes.append(node)
    return nodes


def _node(row: Row) -> Node:
    name = "sn" if "sn" in row else "name"
    if name not in row or not row.text(name):
        raise InvalidArgument(f"{row.path.name}, line {row.line}", "", "a name in column name")
    total = {CPU_MILLI: row.amount(CPU_MILLI)}
    if "memory_mib" in row:
        total[MEMORY_BYTES] = row.amount("memory_mib", factor=MIB)
    gpus = row.amount("gpu") if "gpu" in row else 0
    if gpus > GPUS_MAX:
        raise row.wrong("gpu", f"at most {GPUS_MAX}")
    speed = 1.0
    if "speed" in row:
        try:
            speed = float(row.text("speed"))
        except ValueError:
            speed = 0
        if not 0 < speed < float("inf"):
            raise row.wrong("speed", "a number above 0")
    plain = {name, CPU_MILLI, "memory_mib", "gpu", "speed"}
    labels = [(key, value) for key, value in row.texts.items() if key not in plain and value]
    # Leave out zeros: an absent dimension means zero, as in all amounts.
    total = {dimension: amount for dimension, amount in total.items() if amount}
    devices = equal_gpus(gpus, dict(labels).get(MODEL, ""))
    return Node(row.text(name), total, tuple(sorted(labels)), speed, devices)

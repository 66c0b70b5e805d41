"""Selects the reader for a log: by the log's first line, or by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from finegrain.errors import InvalidArgument
from resource_manager.simulator.traces import gpu_cluster, grid, inference
from resource_manager.simulator.traces.jobs import Workload
from resource_manager.simulator.traces.rows import lines_of
from resource_manager.simulator.traces.swf import FIELDS, read_swf

READERS: dict[str, Callable[[Path], Workload]] = {
    "swf": read_swf,
    "wagap": grid.read_grid,
    "openb": gpu_cluster.read_gpu_cluster,
    "dlrm": inference.read_inference,
}
"""Readers by name of the format."""

_COLUMNS = {"wagap": grid.COLUMNS, "openb": gpu_cluster.COLUMNS, "dlrm": inference.COLUMNS}


def read_workload(path: Path, format_name: str = "") -> Workload:
    """Reads a log.

    Args:
        path: path of the log.
        format_name: name of the format; empty: detected from the first line that is not blank.

    Raises:
        InvalidArgument: the log cannot be read, has no known format, or has an invalid record.
    """
    name = format_name or _detected(path)
    if name not in READERS:
        raise InvalidArgument("--format", name, f"one of {', '.join(READERS)}")
    return READERS[name](path)


def _detected(path: Path) -> str:
    first = next((line for line in lines_of(path) if line.strip()), "")
    if first.startswith(";") or len(first.split()) == len(FIELDS):
        return "swf"
    header = {column.strip() for column in first.split(",")}
    for name, columns in _COLUMNS.items():
        if header.issuperset(columns):
            return name
    # A list of nodes instead of a log is a frequent mistake, so it has its own error.
    if header.issuperset(("cpu_milli", "memory_mib", "gpu")):
        expected = "a log of requests; this is a list of nodes, which --nodes takes"
        raise InvalidArgument("FILE", str(path), expected)
    expected = f"a log that begins like one of {', '.join(READERS)}, or use --format"
    raise InvalidArgument(f"{path.name}, line 1", first, expected)

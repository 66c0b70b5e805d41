"""A log of two clusters of the Czech national grid, with selected columns of an SWF log.

The column `nodespec` has the request: `8:ppn=8:cl_zegox` is 8 nodes with 8 cpus each of cluster
zegox, and `#excl` means whole nodes. Other properties (file systems, sites, excluded nodes) are
ignored. A request for a named node counts as a request for the cluster of this node.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from finegrain.resources import ResourceProfile
from resource_manager.simulator.nodes import Labels
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.rows import Row, csv_rows

COLUMNS = (
    "job",
    "submit",
    "wait",
    "run",
    "req_procs",
    "req_mem_bytes",
    "user",
    "queue",
    "nodespec",
)
NODES = "20x80cpu:529426432K@cluster=zewura,48x12cpu:94035968K@cluster=zegox"

_NODE_COUNT = re.compile(r"(\d+):")
_CLUSTER = re.compile(r"(?::|^|=)(?:cl_)?(zewura|zegox)")
_EXCLUSIVE = "#excl"
_NOTES = (
    "memory is per node; properties of nodes other than the cluster are not modeled",
    "requested times are hints: no job is ended at its time limit",
)


def read_grid(path: Path) -> Workload:
    """Returns the jobs of the log. The part of a job on one node becomes one slot.

    Raises:
        InvalidArgument: the log cannot be read, or a record is invalid.
    """
    left_out: Counter[str] = Counter()
    jobs = [_job(row, left_out) for row in csv_rows(path, COLUMNS)]
    return Workload(
        name=path.name,
        format="wagap",
        jobs=tuple(job for job in jobs if job is not None),
        owner_keys=("user", "queue"),
        nodes=NODES,
        left_out=left_out,
        notes=_NOTES,
    )


def _job(row: Row, left_out: Counter[str]) -> TraceJob | None:
    if row.text("run").startswith("-"):  # negative: the log has no end of this job
        left_out["no end recorded"] += 1
        return None
    request = row.text("nodespec")
    match = _NODE_COUNT.match(request)
    nodes = max(1, int(match[1])) if match else 1
    processors = row.amount("req_procs", least=1, missing=1)
    return TraceJob(
        name=row.text("job"),
        submit_ms=row.amount("submit", factor=1_000),
        run_ms=row.amount("run", factor=1_000),
        count=nodes,
        # Round cpus up, because each node must have enough for its part.
        profile=ResourceProfile(
            -(-processors // nodes) * 1_000, task_heap_memory_bytes=row.amount("req_mem_bytes")
        ),
        owners={"user": row.text("user"), "queue": row.text("queue")},
        labels=_labels(request),
        waited_ms=row.amount_if_known("wait", factor=1_000),
        # Logs without this column can be replayed, too.
        requested_ms=row.amount_if_known("req_time", factor=1_000)
        if "req_time" in row.texts
        else None,
        whole_nodes=request.endswith(_EXCLUSIVE),
    )


def _labels(request: str) -> Labels:
    cluster = _CLUSTER.search(request)
    return (("cluster", cluster[1]),) if cluster else ()

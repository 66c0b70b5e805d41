"""Requests of a production GPU cluster in which several requests may share a GPU (openb, 2023).

A GPU counts as 1000 of its node's extended resource gpu_milli. This is coarser than reality: it is
not modelled which of the node's GPUs a part comes from, so two free halves of two GPUs count as a
whole GPU.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from finegrain.resources import MIB, ResourceProfile, extended_items
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.rows import Row, csv_rows

GPU_MILLI = "gpu_milli"
MODEL = "model"
COLUMNS = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)

_NOTES = (
    "a GPU is 1000 gpu_milli of its node: which GPU of a node a part comes from is not modelled",
    "a request that was never scheduled there runs from its creation to its deletion",
)


def read_gpu_cluster(path: Path) -> Workload:
    """Returns the requests of the log; each is one slot.

    Raises:
        InvalidArgument: the log cannot be read, or a record is invalid.
    """
    left_out: Counter[str] = Counter()
    jobs = [_job(row, left_out) for row in csv_rows(path, COLUMNS)]
    return Workload(
        name=path.name,
        format="openb",
        jobs=tuple(job for job in jobs if job is not None),
        owner_keys=("qos",),
        left_out=left_out,
        notes=_NOTES,
    )


def _job(row: Row, left_out: Counter[str]) -> TraceJob | None:
    if row.is_missing("deletion_time"):
        left_out["no end recorded"] += 1
        return None
    created = row.amount("creation_time", factor=1_000)
    began = row.amount("scheduled_time", factor=1_000, missing=created)
    ended = row.amount("deletion_time", factor=1_000)
    # A negative run time would end a thread before its start.
    if ended < began:
        raise row.wrong("deletion_time", "a moment that is not before the request began")
    models = tuple(sorted(model for model in row.text("gpu_spec").split("|") if model))
    gpu_milli = row.amount("num_gpu") * row.amount("gpu_milli")
    return TraceJob(
        name=row.text("name"),
        submit_ms=created,
        run_ms=ended - began,
        count=1,
        waited_ms=None if row.is_missing("scheduled_time") else max(0, began - created),
        profile=ResourceProfile(
            row.amount("cpu_milli"),
            task_heap_memory_bytes=row.amount("memory_mib", factor=MIB),
            extended=extended_items({GPU_MILLI: gpu_milli}),
        ),
        owners={"qos": row.text("qos")},
        one_of=(MODEL, models) if models else ("", ()),
    )

"""Instances of recommendation inference services, split into CPU and GPU parts (dlrm, 2025).

RDMA (percent of a network card) and disk (GiB) are extended resources. The maximum number of
instances of one application per node is not modeled.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from finegrain.resources import GIB, ResourceProfile, extended_items
from resource_manager.simulator.traces.gpu_cluster import gpus
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.rows import Row, csv_rows

COLUMNS = (
    "instance_sn",
    "role",
    "app_name",
    "cpu_request",
    "gpu_request",
    "rdma_request",
    "memory_request",
    "disk_request",
    "creation_time",
    "scheduled_time",
    "deletion_time",
)

_NOTES = (
    "instances from before the log arrive at its start; instances without an end run to its end",
    "the limit on instances of one application per node is not modeled",
)


def read_inference(path: Path) -> Workload:
    """Returns the instances of the log. Each instance becomes one slot.

    Raises:
        InvalidArgument: the log cannot be read, or a record is invalid.
    """
    # Read all rows first, because instances without an end run until the last moment of the log.
    rows = list(csv_rows(path, COLUMNS))
    moments = ("creation_time", "scheduled_time", "deletion_time")
    end_ms = max(
        (row.amount(moment, factor=1_000) for row in rows for moment in moments), default=0
    )
    return Workload(
        name=path.name,
        format="dlrm",
        jobs=tuple(_job(row, end_ms) for row in rows),
        owner_keys=("app", "role"),
        left_out=Counter(),
        notes=_NOTES,
    )


def _job(row: Row, end_ms: int) -> TraceJob:
    created = row.amount("creation_time", factor=1_000)
    began = row.amount("scheduled_time", factor=1_000, missing=created)
    ended = row.amount("deletion_time", factor=1_000, missing=end_ms)
    if ended < began:
        raise row.wrong("deletion_time", "a time that is not before the instance began")
    return TraceJob(
        name=row.text("instance_sn"),
        submit_ms=created,
        run_ms=ended - began,
        count=1,
        waited_ms=None if row.is_missing("scheduled_time") else max(0, began - created),
        profile=ResourceProfile(
            row.amount("cpu_request", factor=1_000),
            task_heap_memory_bytes=row.amount("memory_request", factor=GIB),
            extended=extended_items(
                {"rdma": row.amount("rdma_request"), "disk_gib": row.amount("disk_request")}
            ),
            devices=gpus(row.amount("gpu_request")),
        ),
        owners={
            "app": row.text("app_name").removeprefix("app_"),
            "role": row.text("role"),
        },
    )

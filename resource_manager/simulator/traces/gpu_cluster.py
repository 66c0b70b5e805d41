"""Requests of a production GPU cluster in which several requests can share a GPU (openb, 2023).

The log counts thousandths of a GPU. Slots get hundredths, so shares are rounded up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from finegrain.devices.device import GPU, GPU_CORE, GPU_MEMORY_RATIO, WHOLE
from finegrain.devices.names import GPU_SHARED, device_requests
from finegrain.devices.request import DeviceRequest, LabelRule
from finegrain.resources import MIB, ResourceProfile
from resource_manager.simulator.traces.jobs import TraceJob, Workload
from resource_manager.simulator.traces.rows import Row, csv_rows

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

_NOTES = ("a request that was never scheduled there runs from its creation to its deletion",)


def read_gpu_cluster(path: Path) -> Workload:
    """Returns the requests of the log. Each request becomes one slot.

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
        raise row.wrong("deletion_time", "a time that is not before the request began")
    return TraceJob(
        name=row.text("name"),
        submit_ms=created,
        run_ms=ended - began,
        count=1,
        waited_ms=None if row.is_missing("scheduled_time") else max(0, began - created),
        profile=ResourceProfile(
            row.amount("cpu_milli"),
            task_heap_memory_bytes=row.amount("memory_mib", factor=MIB),
            devices=gpus(
                row.amount("num_gpu"),
                row.amount("gpu_milli"),
                [model for model in row.text("gpu_spec").split("|") if model],
            ),
        ),
        owners={"qos": row.text("qos")},
    )


def gpus(count: int, milli: int = 1_000, models: Iterable[str] = ()) -> tuple[DeviceRequest, ...]:
    """Returns a request for GPUs.

    Args:
        count: number of GPUs; 0: no request.
        milli: requested part of each GPU, in thousandths.
        models: accepted models; empty: all models.
    """
    if not count or not milli:
        return ()
    part = -(-min(milli, 1_000) * WHOLE // 1_000)
    if part == WHOLE or count == 1:
        amounts = {GPU: count * part}
    else:
        amounts = {GPU_SHARED: count, GPU_CORE: count * part, GPU_MEMORY_RATIO: count * part}
    (request,) = device_requests(amounts)
    accepted = tuple(sorted(models))
    rules = (LabelRule(MODEL, accepted),) if accepted else ()
    return (replace(request, selector=rules),)

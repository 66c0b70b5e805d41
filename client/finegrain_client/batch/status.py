"""Reads the status of a batch from its state file, with or without a runner that works on the
batch.

Reading does not change the file.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from finegrain.mapping.value import SHOWN, Value
from finegrain_client.batch.lock import runner_of
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.state_file import read_results, reading
from finegrain_client.batch.values import BatchState, Progress, ThreadResult
from finegrain_client.state_folder import BATCHES

default_folder = BATCHES.path
default_state_file = BATCHES.new_file
state_files = BATCHES.files


@dataclass(frozen=True, slots=True)
class BatchStatus(Value):
    """A batch as its state file shows it.

    `runner_pid` and `runner_host` identify the runner. If there is no runner, they are 0 and empty.
    If a runner has just started and has not written its name yet, they are 0 and "?". While a
    runner exists, `progress` is at most about a second old. Without a runner, `progress` is the
    last progress that was saved, and no thread counts as running.
    """

    state_file: str
    batch_id: str
    # id of the last job that was registered for the batch; empty if there was no job yet
    job_id: str
    spec: BatchSpec
    results_dir: str
    create_time: datetime
    runner_pid: int
    runner_host: str
    progress: Progress

    @property
    def is_worked_on(self) -> bool:
        """True if a runner works on the batch."""
        return bool(self.runner_host)

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        shown = Value.to_dict(self)
        shown["spec"] = json.loads(self.spec.to_json())
        return shown


def read_status(state_file: str | os.PathLike[str]) -> BatchStatus:
    """Returns the status of a batch.

    Raises:
        NotFound: there is no such file.
        ConfigurationError: the file is not the state file of a batch, or has another version.
    """
    path = Path(state_file)
    # Read the runner before the file. If the runner ends between the two reads, the file has the
    # last progress of the runner.
    runner = runner_of(path)
    with reading(path) as connection:
        meta = dict(connection.execute("select key, value from meta").fetchall())
        counts = dict(
            connection.execute("select state, count(*) from results group by state").fetchall()
        )
        job = connection.execute("select job_id from jobs order by number desc limit 1").fetchone()
    spec = BatchSpec.from_json(meta["spec"])
    created = datetime.fromtimestamp(float(meta["create_time"]), UTC)
    progress = _progress(spec, meta, counts, is_worked_on=runner is not None)
    return BatchStatus(
        state_file=str(path),
        batch_id=meta["batch_id"],
        job_id=job[0] if job else "",
        spec=spec,
        results_dir=meta["results_dir"],
        create_time=created,
        # Never return a negative pid, because `kill` with a negative pid ends a whole process
        # group, or every process.
        runner_pid=max(0, int(runner.get("pid", 0))) if runner is not None else 0,
        runner_host=str(runner.get("host", "?")) if runner is not None else "",
        progress=progress,
    )


def read_thread_results(
    state_file: str | os.PathLike[str], *, failed_only: bool = False
) -> Iterator[ThreadResult]:
    """Yields the results so far, ordered by index.

    Raises:
        NotFound, ConfigurationError: see `read_status`.
    """
    with reading(Path(state_file)) as connection:
        yield from read_results(connection, failed_only=failed_only)


def _progress(
    spec: BatchSpec, meta: dict[str, str], counts: dict[str, int], *, is_worked_on: bool
) -> Progress:
    if is_worked_on and "progress" in meta:
        return SHOWN.from_json(Progress, json.loads(meta["progress"]))
    done, failed = counts.get("DONE", 0), counts.get("FAILED", 0)
    # Count the results: the progress that a killed runner has saved may be up to a second older
    # than the results.
    last = json.loads(meta.get("progress", "{}"))
    return Progress(
        state=BatchState(meta["state"]),
        threads=spec.threads,
        done=done,
        failed=failed,
        running=0,
        queued=spec.threads - done - failed,
        retries=last.get("retries", 0),
        lost=last.get("lost", 0),
        elapsed_s=last.get("elapsed_s", 0.0),
        message=last.get("message", ""),
        update_time=_time(last.get("update_time")) or datetime.fromtimestamp(time.time(), UTC),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

"""Batches as they lie on disk: made, worked on and left, without any cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain_client.batch.look import default_folder
from finegrain_client.batch.rows import Changes
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.values import BatchState, ThreadResult, ThreadState

MakeBatch = Callable[..., Path]
"""Makes a state file: name, results so far, state, and what else its spec says."""

BEGAN = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def result(index: int, *, ok: bool = True, stderr: bytes = b"", **more: Any) -> ThreadResult:
    """How a thread came out."""
    found = ThreadResult(
        index=index,
        state=ThreadState.DONE if ok else ThreadState.FAILED,
        attempts=1 if ok else 3,
        attempt=1 if ok else 3,
        exit_code=0 if ok else 7,
        signal=0,
        oom_killed=False,
        timed_out=False,
        reason="",
        message=f"ended with exit code {0 if ok else 7}",
        executor_id="host-a",
        start_time=BEGAN,
        end_time=BEGAN + timedelta(seconds=2),
        duration_s=2.0,
        cpu_time_s=1.5,
        peak_memory_bytes=1 << 20,
        stdout_bytes=3,
        stderr_bytes=len(stderr),
        dropped_bytes=0,
        stdout_tail=b"42\n",
        stderr_tail=stderr,
    )
    return replace(found, **more)


@pytest.fixture
def make_batch() -> MakeBatch:
    """Batches in the folder where they lie by default."""

    def make(
        stem: str,
        *results: ThreadResult,
        threads: int = 4,
        state: BatchState = BatchState.OPEN,
        results_dir: Path | None = None,
        **spec: Any,
    ) -> Path:
        wish = {"name": stem, "slot": fg.SlotSpec(cpu_milli=250), **spec}
        path = default_folder() / f"{stem}.batch"
        file = StateFile.create(
            path, BatchSpec(threads, ["./work.sh", "{index}"], **wish), results_dir
        )
        job = file.add_job("01bbbbbb-0000-7000-8000-000000000001", "secret")
        file.write(job.number, Changes(results=list(results), meta={"state": state.value}))
        file.close()
        return path

    return make

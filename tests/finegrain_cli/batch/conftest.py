"""State files of batches on disk, without a cluster: new batches, batches with a runner, and left
batches.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import Reason, Unavailable
from finegrain_client.batch.rows import Changes
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.status import default_folder, read_status
from finegrain_client.batch.values import BatchState, Progress, ThreadResult, ThreadState

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
    """Batches in the default folder."""

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
        job = file.add_job("01bbbbbb-0000-7000-8000-000000000001")
        file.write(job.number, Changes(results=list(results), meta={"state": state.value}))
        file.close()
        return path

    return make


@dataclass
class Runners:
    """The script of runners, and the values that they received."""

    outcomes: dict[int, bool] = field(default_factory=dict)  # by thread; other threads do not end
    message: str = ""
    signals: tuple[signal.Signals, ...] = ()  # that come while it works
    error: Exception | None = None
    unreachable: bool = False
    meanwhile: Callable[[], None] = lambda: None
    cancelled: list[Path] = field(default_factory=list)
    retried: list[bool] = field(default_factory=list)

    def ends(self, threads: int, *failed: int) -> None:
        self.outcomes = {index: index not in failed for index in range(threads)}


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> Runners:
    """Uses these runners for every batch of a test."""
    script = Runners()

    class ScriptedJob:
        def __init__(self, cluster: Any, *, state_file: Path) -> None:
            self.path = state_file
            self.stop = asyncio.Event()

        async def run(
            self, on_progress: Callable[[Progress], None], *, retry_failed: bool = False
        ) -> None:
            script.retried.append(retry_failed)
            script.meanwhile()
            if script.error is not None:
                raise script.error
            file = StateFile.open(self.path)
            job = file.add_job("01bbbbbb-0000-7000-8000-000000000001")
            results = [result(index, ok=ok) for index, ok in script.outcomes.items()]
            left = file.spec.threads - len(results)
            for number in script.signals:
                os.kill(os.getpid(), number)
                await self.stop.wait()
                await asyncio.sleep(0.05)  # the next signal arrives, too
            state = BatchState.ENDED if not left else BatchState.STOPPED
            if script.signals:
                state = BatchState.CANCELLED
            file.write(job.number, Changes(results=results, meta={"state": state.value}))
            progress = read_status(self.path).progress
            progress = replace(progress, state=state, message=script.message)
            kept = {"progress": json.dumps(progress.to_dict())}
            file.write(job.number, Changes(meta=kept))
            on_progress(progress)
            file.close()

        async def cancel(self) -> None:
            script.cancelled.append(self.path)
            self.stop.set()

    class Somewhere:
        async def info(self) -> None:
            if script.unreachable:
                raise Unavailable("nobody answers", reason=Reason.UNREACHABLE)

    @asynccontextmanager
    async def opened(budget_s: float) -> AsyncIterator[Any]:
        yield Somewhere()

    monkeypatch.setattr("finegrain_cli.batch.running.BatchJob", ScriptedJob)
    monkeypatch.setattr("finegrain_cli.batch.running.open_cluster_async", opened)
    return script

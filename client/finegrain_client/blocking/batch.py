"""A batch for blocking callers; what it means stands with its asyncio twin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from finegrain_client.batch import job as aio_batch
from finegrain_client.batch.spec import BatchSpec
from finegrain_client.batch.values import BatchOutcome, Progress, ThreadResult
from finegrain_client.blocking.cluster import Cluster


class BatchJob:
    """See `finegrain_client.BatchJob`. `on_progress` is called on the client's own thread."""

    def __init__(
        self,
        cluster: Cluster,
        spec: BatchSpec | None = None,
        *,
        state_file: str | os.PathLike[str] | None = None,
        results_dir: str | os.PathLike[str] | None = None,
        lease_s: float = aio_batch.LEASE_DEFAULT_S,
    ) -> None:
        self.loop = cluster.loop
        self.inner = aio_batch.BatchJob(
            cluster.inner, spec, state_file=state_file, results_dir=results_dir, lease_s=lease_s
        )

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def state_file(self) -> Path:
        return self.inner.state_file

    @property
    def spec(self) -> BatchSpec:
        return self.inner.spec

    @property
    def progress(self) -> Progress:
        return self.inner.progress

    def run(
        self,
        on_progress: Callable[[Progress], None] | None = None,
        *,
        retry_failed: bool = False,
    ) -> BatchOutcome:
        return self.loop.run(self.inner.run(on_progress, retry_failed=retry_failed))

    def cancel(self) -> None:
        self.loop.run(self.inner.cancel())

    def leave(self) -> None:
        self.loop.run(self.inner.leave())

    def results(self, *, failed_only: bool = False) -> Iterator[ThreadResult]:
        return self.inner.results(failed_only=failed_only)

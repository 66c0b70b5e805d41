"""At intervals, reports the progress of a batch to the caller, and saves the progress in the state
file.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError
from finegrain.resources import EXTENDED_PREFIX
from finegrain_client.batch.rows import Changes
from finegrain_client.batch.session import Session
from finegrain_client.batch.slots import BatchSlots
from finegrain_client.batch.threads import DELAYED, DONE, FAILED, RUNNING
from finegrain_client.batch.values import BatchState, Progress

if TYPE_CHECKING:
    from finegrain_client.cluster import Cluster

REPORT_INTERVAL_S = 0.2
SAVE_INTERVAL_S = 1.0
POLL_INTERVAL_S = 5.0


class Report:
    """The progress of one runner's work.

    Attributes:
        progress: the progress at the last update.
    """

    def __init__(
        self,
        cluster: Cluster,
        threads: int,
        create_time: float,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._cluster = cluster
        self._create_time = create_time
        self._on_progress = on_progress
        self._total: Mapping[str, int] = {}
        self._trouble = ""
        self._reported_s, self._saved_s = -REPORT_INTERVAL_S, -SAVE_INTERVAL_S
        self.progress = Progress(BatchState.OPEN, threads, 0, 0, 0, threads)

    def before_write(self, session: Session, changes: Changes) -> None:
        """Updates the progress, and adds it to `changes` at intervals. The caller writes the
        changes.
        """
        now = time.monotonic()
        if now - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s = now
            self.progress = self._progress_of(session)
            self._report()
        if now - self._saved_s >= SAVE_INTERVAL_S:
            self._saved_s = now
            changes.meta.update(self._kept_progress())

    def conclude(self, state: BatchState, done: int, failed: int, why: str) -> Changes:
        """Sets the final progress when the runner ends, and returns the changes to write.

        Args:
            state: final state of the batch.
            done: number of threads that are done.
            failed: number of threads that have failed and are not tried again.
            why: the reason why the runner ends; empty if every thread has its result.
        """
        left = self.progress.threads - done - failed
        self.progress = replace(
            self.progress,
            state=state,
            done=done,
            failed=failed,
            running=0,
            queued=left,
            delayed=0,
            slots=0,
            requests_waiting=0,
            speculative=0,
            share=None,
            elapsed_s=max(0.0, time.time() - self._create_time),
            estimate=None,
            message=why,
            update_time=datetime.now(UTC),
        )
        self._report()
        return Changes(meta=self._kept_progress())

    async def watch_cluster(self) -> None:
        """Polls the capacity of the cluster for `share_of`, and checks whether the cluster
        answers.
        """
        while True:
            trouble = ""
            try:
                self._total = (await self._cluster.info()).total
            except FinegrainError as error:
                trouble = error.message
            if trouble != self._trouble:
                self._trouble = trouble
                self.progress = replace(self.progress, message=trouble)
                self._report()
            await asyncio.sleep(POLL_INTERVAL_S)

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self.progress)

    def _kept_progress(self) -> dict[str, str]:
        return {
            "progress": json.dumps(self.progress.to_dict()),
            "state": self.progress.state.value,
        }

    def _progress_of(self, session: Session) -> Progress:
        scheduler, now = session.scheduler, session.now()
        counts = scheduler.threads.counts
        running_s = scheduler.running_times_s(now)
        moment = datetime.fromtimestamp(now, UTC)
        queued = scheduler.threads.left - counts[RUNNING]
        return Progress(
            state=BatchState.STOPPING if scheduler.stopping else BatchState.OPEN,
            threads=len(scheduler.threads),
            done=counts[DONE],
            failed=counts[FAILED],
            running=counts[RUNNING],
            queued=queued,
            delayed=counts[DELAYED],
            slots=scheduler.slots,
            requests_waiting=len(scheduler.waiting),
            retries=scheduler.retried,
            lost=scheduler.losses,
            speculative=scheduler.speculative,
            share=share_of(session.slots, self._total),
            elapsed_s=max(0.0, now - self._create_time),
            estimate=scheduler.rate.estimate(
                moment, to_run=queued, running_s=running_s, at_once=len(running_s)
            ),
            message=scheduler.stopping or self._trouble,
            update_time=moment,
        )


def share_of(slots: BatchSlots, total: Mapping[str, int]) -> float | None:
    """Returns the dominant share of the slots: the largest of their fractions of the cluster's
    dimensions. The result is None if the capacity of the cluster is unknown.
    """
    held: dict[str, int] = {"cpu_milli": 0, "memory_bytes": 0}
    for slot in slots.held:
        held["cpu_milli"] += slot.profile.cpu_milli
        held["memory_bytes"] += slot.memory_bytes
        for name, amount in slot.profile.extended:
            dimension = f"{EXTENDED_PREFIX}{name}"
            held[dimension] = held.get(dimension, 0) + amount
    # Skip a dimension that the cluster does not have, or whose capacity is still unknown.
    parts = [amount / total[name] for name, amount in held.items() if total.get(name)]
    return min(1.0, max(parts)) if parts else None

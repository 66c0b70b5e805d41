"""Two groups, on the real kernel, that both have more work than the cluster has room for. Their
shares of cpu time follow their weights, as the control groups of their tasks measure it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain_client.batch import BatchJob, BatchSpec, Progress
from resource_manager.engine.model.settings import Fairness
from tests.e2e.driving import Small, small_cluster

pytestmark = pytest.mark.slow

BURN = "import time\nwhile time.process_time() < 0.06: pass"
"""A thread of work: it uses a fixed cpu time, which may take long on a busy machine."""

WEIGHTS = {"medium": 4, "default": 1}
SETTLED, ENOUGH = 10, 110
"""Number of threads of both groups that are done when shares have settled, and at the end."""


@pytest.fixture(scope="module")
def crowded(home: Path) -> Iterator[Small]:
    """Two cores in total, and a lookahead of about one thread."""
    shares = Fairness(
        usage_measure="cpu", half_life_ms=60_000, lookahead_ms=2_000, usage_interval_ms=500
    )
    with small_cluster(home, fairness=shares) as small:
        yield small


async def flood(cluster: fg.Cluster, executors: list[str], folder: Path) -> dict[str, float]:
    """The cpu seconds of each group, from the time when shares had settled until the end."""
    jobs = {
        group: BatchJob(
            cluster,
            BatchSpec(
                5_000,
                [sys.executable, "-S", "-E", "-c", BURN],
                slot=fg.SlotSpec(cpu_milli=200, memory_bytes=32 * fg.MIB),
                name=group,
                group=group,
            ),
            state_file=folder / f"{group}.batch",
        )
        for group in WEIGHTS
    }
    enough, since = asyncio.Event(), datetime.max.replace(tzinfo=UTC)

    def look(_progress: Progress) -> None:
        nonlocal since
        done = sum(job.progress.done for job in jobs.values())
        if done >= SETTLED:
            since = min(since, datetime.now(UTC))
        if done >= ENOUGH:
            enough.set()

    # No job must have all capacity for a time because the other jobs have not arrived yet.
    await asyncio.gather(*(cluster.drain(name) for name in executors))
    running = [asyncio.create_task(job.run(look)) for job in jobs.values()]
    while sum(each.pending_requests > 0 for each in await cluster.jobs()) < len(jobs):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    await asyncio.gather(*(cluster.undrain(name) for name in executors))
    try:
        await asyncio.wait_for(enough.wait(), 60)
    finally:
        await asyncio.gather(*(job.cancel() for job in jobs.values()))
        await asyncio.gather(*running)
    return {
        group: sum(
            result.cpu_time_s
            for result in job.results()
            if result.start_time is not None and result.start_time > since
        )
        for group, job in jobs.items()
    }


async def test_cpu_time_goes_by_weight(crowded: Small, tmp_path: Path) -> None:
    async with crowded.connect() as cluster:
        used = await flood(cluster, crowded.names, tmp_path)
        groups = {each.name: each for each in (await cluster.groups()).groups}
    crowded.cli.settle()

    assert min(used.values()) > 0.5, used  # the shares were measured
    # With some hundred threads, the ratio is about 4 to 1, and far from 1 to 1.
    assert 2.8 < used["medium"] / used["default"] < 5.7, used
    assert 2.8 < groups["medium"].service / groups["default"].service < 5.7

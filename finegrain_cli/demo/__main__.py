"""Starts the cluster, runs the story, checks the books, stops. Exit code 1 on any mismatch."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from itertools import cycle
from pathlib import Path

import finegrain_client as fg
from finegrain.resources import MIB
from finegrain_cli.demo import wordcount
from finegrain_cli.demo.report import Story, report
from finegrain_cli.demo.story import Plan, count_words
from finegrain_cli.local.cluster import ExecutorShare, LocalCluster

# Control groups carry these names: two demos at once on one host must not share them.
EXECUTORS = (f"demo-{os.getpid()}-a", f"demo-{os.getpid()}-b")
MEMORY_BYTES = 1024 * MIB
SETTLE_TRIES = 100
SETTLE_INTERVAL_S = 0.1
PACKAGES = ("finegrain", "finegrain_cli", "finegrain_client", "resource_manager", "task_executor")


def main() -> int:
    """Runs the demo; 0 if everything was as it should be."""
    story = Story()
    cpus = sorted(os.sched_getaffinity(0))
    share_milli = min(1000, 1000 * len(cpus) // len(EXECUTORS))
    own_cpus = len(cpus) >= len(EXECUTORS)  # else they share the time of one
    shares = [
        ExecutorShare(
            executor_id=name,
            cpus=str(cpu) if own_cpus else "",
            cpu_milli=None if own_cpus else share_milli,
            memory_bytes=MEMORY_BYTES,
        )
        for name, cpu in zip(EXECUTORS, cycle(cpus), strict=False)
    ]
    plan = Plan(_sources(), share_milli, *EXECUTORS, own_cpus=own_cpus)
    story.tell("starting one resource manager and two task executors on this host")
    cluster = LocalCluster(shares=shares)
    with cluster:
        words = asyncio.run(_run(cluster, plan, story))
        leftovers = cluster.stop()
    for left in leftovers:
        story.expect(False, f"left behind: {left}")
    _check_words(words, plan, story)
    print()
    print(report(story.records))
    print()
    common = ", ".join(f"{word} {count}" for word, count in words.most_common(8))
    print(f"{len(plan.files)} files, {words.total()} words; most common: {common}")
    if story.mismatches:
        print(f"{len(story.mismatches)} mismatches:")
        for each in story.mismatches:
            print(f"  {each}")
        return 1
    print("the books are at zero, no process and no cgroup is left")
    return 0


async def _run(local: LocalCluster, plan: Plan, story: Story) -> Counter[str]:
    async with fg.connect(local.address, token_file=local.token_file) as cluster:
        for executor in await cluster.executors():
            total = executor.total
            isolation = executor.isolation
            story.tell(
                f"{executor.executor_id}: {total['cpu_milli']} milli cpu, "
                f"{total['memory_bytes'] // MIB} MiB, "
                f"isolation {isolation.driver if isolation else 'unknown'}"
            )
            for note in isolation.notes if isolation else ():
                story.tell(f"  not enforced: {note}")
        words = await count_words(cluster, plan, story)
        await _settle(cluster, story)
    return words


async def _settle(cluster: fg.Cluster, story: Story) -> None:
    """Waits until the last slot is gone, then checks that the books are at zero."""
    for _ in range(SETTLE_TRIES):
        if not await cluster.slots():
            break
        await asyncio.sleep(SETTLE_INTERVAL_S)
    info = await cluster.info()
    story.expect(not await cluster.slots(), "slots are left")
    story.expect(not await cluster.requests(), "requests are left")
    story.expect(not any(info.allocated.values()), f"still booked: {dict(info.allocated)}")
    for executor in await cluster.executors():
        story.expect(
            dict(executor.available) == dict(executor.total),
            f"{executor.executor_id} has not got everything back: {dict(executor.available)}",
        )
    story.tell("everything was given back")


def _check_words(words: Counter[str], plan: Plan, story: Story) -> None:
    direct = wordcount.count_words(str(path) for path in plan.files)
    story.expect(words == direct, "the cluster counted other words than one process does")


def _sources() -> tuple[Path, ...]:
    """The project's own sources, wherever it is installed."""
    from importlib.util import find_spec

    files: list[Path] = []
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            files += Path(folder).rglob("*.py")
    return tuple(sorted(files))


if __name__ == "__main__":
    sys.exit(main())

"""Measures on the real kernel how much cpu time each job gets, in two groups of weights 4 and 1.

    nice -n 10 python -m bench.real_shares [--seconds 25] [--slots 20] [--thread-cpu 0.15]

A resource manager has one executor with two cores, divided into slots of equal size. MED1 (group
medium, weight 4), DEFAULT1 and DEFAULT2 (group default, weight 1) each have far more threads of
work than there are slots. A thread of work uses `--thread-cpu` seconds of cpu time and ends. The
benchmark queues all threads before the executor gets its first slot. Otherwise a job that is alone
would get all slots, and this usage would count against the job. After each period of `--seconds`,
the benchmark cancels one job: first DEFAULT2, then MED1, then DEFAULT1. So there are three phases.
The shares by weight are 8:1:1 in the first phase and 8:2 in the second phase; in the third phase,
one job gets everything.

The benchmark prints a row of Markdown for each phase. The first fifth of the phase is left out,
because shares settle in this time. The row has the cpu seconds of each job (measured by the control
groups of its tasks), the share of each job, the shares by weight, and the load of the host. A
thread that overlaps the beginning or end of a phase counts in proportion.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import finegrain_client as fg
from finegrain_cli.local.cluster import ExecutorShare, LocalCluster
from finegrain_client.batch import BatchJob, BatchSpec, ThreadResult
from resource_manager.engine.model.settings import Fairness

CPU_MILLI = 2_000
JOBS = {"MED1": "medium", "DEFAULT1": "default", "DEFAULT2": "default"}
WEIGHTS = {"medium": 4.0, "default": 1.0}
SETTLING = 0.2
"""The fraction at the beginning of each phase that the figures leave out."""


@dataclass(frozen=True)
class Phase:
    """A period during which the same jobs had work. Times are seconds since 1970."""

    jobs: tuple[str, ...]
    begin_s: float
    end_s: float
    load: float  # one-minute load of the host at the end of the phase


async def measure(cluster: fg.Cluster, args: argparse.Namespace, folder: Path) -> list[Phase]:
    """Runs the three phases."""
    burn = f"import time\nwhile time.process_time() < {args.thread_cpu}: pass"
    slot = fg.SlotSpec(cpu_milli=CPU_MILLI // args.slots, memory_bytes=32 * fg.MIB)
    jobs = {
        name: BatchJob(
            cluster,
            BatchSpec(
                100_000, [sys.executable, "-S", "-E", "-c", burn], slot=slot, name=name, group=group
            ),
            state_file=folder / f"{name}.batch",
        )
        for name, group in JOBS.items()
    }
    (executor,) = await cluster.executors()
    await cluster.drain(executor.executor_id)
    running = {name: asyncio.create_task(job.run()) for name, job in jobs.items()}
    while sum(each.pending_requests > 0 for each in await cluster.jobs()) < len(jobs):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    await cluster.undrain(executor.executor_id)
    phases = []
    for done in ("DEFAULT2", "MED1", "DEFAULT1"):
        begin_s, names = time.time(), tuple(running)
        await asyncio.sleep(args.seconds)
        phases.append(Phase(names, begin_s, time.time(), os.getloadavg()[0]))
        await jobs[done].cancel()
        await running.pop(done)
    return phases


def cpu_within(results: list[ThreadResult], begin_s: float, end_s: float) -> float:
    """Returns the cpu seconds that threads used between two moments."""
    return sum(
        each.cpu_time_s * overlap(each.start_time, each.end_time, begin_s, end_s)
        for each in results
        if each.start_time is not None and each.end_time is not None
    )


def overlap(start: datetime, end: datetime, begin_s: float, end_s: float) -> float:
    """Returns the fraction of a thread's duration that lies between two moments."""
    first, last = start.timestamp(), end.timestamp()
    inside = min(last, end_s) - max(first, begin_s)
    return max(0.0, inside / max(last - first, 1e-3)) if last > first else float(first >= begin_s)


def entitled(names: tuple[str, ...]) -> dict[str, float]:
    """Returns the share of each job by weight: the share of its group, divided by the number of the
    group's jobs.
    """
    groups = {JOBS[name] for name in names}
    whole = sum(WEIGHTS[group] for group in groups)
    return {
        name: WEIGHTS[JOBS[name]] / whole / sum(JOBS[each] == JOBS[name] for each in names)
        for name in names
    }


def row(phase: Phase, results: dict[str, list[ThreadResult]]) -> str:
    """Returns one line of the table."""
    begin_s = phase.begin_s + SETTLING * (phase.end_s - phase.begin_s)
    used = {name: cpu_within(results[name], begin_s, phase.end_s) for name in phase.jobs}
    whole, right = sum(used.values()), entitled(phase.jobs)
    cells = [
        ", ".join(phase.jobs),
        " / ".join(f"{used[name]:.1f} s" for name in phase.jobs),
        " / ".join(f"{used[name] / whole:.1%}" for name in phase.jobs),
        " / ".join(f"{right[name]:.0%}" for name in phase.jobs),
        f"{max(abs(used[name] / whole / right[name] - 1) for name in phase.jobs):.1%}",
        f"{phase.load:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


async def run(args: argparse.Namespace) -> None:
    fairness = Fairness(usage_measure="cpu", lookahead_ms=args.lookahead * 1_000)
    share = ExecutorShare(f"bench-{os.getpid()}", cpu_milli=CPU_MILLI, memory_bytes=2 * fg.GIB)
    with (
        tempfile.TemporaryDirectory(prefix="fg-shares-") as folder,
        LocalCluster(shares=[share], fairness=fairness) as here,
    ):
        async with fg.connect(here.address, credentials=here.credentials_file) as cluster:
            phases = await measure(cluster, args, Path(folder))
        results = {
            name: list(BatchJob(cluster, state_file=Path(folder) / f"{name}.batch").results())
            for name in JOBS
        }
    print("| who has work | cpu time | share | entitled | largest error | load |")
    print("| --- | --- | --- | --- | --- | --- |")
    for phase in phases:
        print(row(phase, results))
    threads = sum(len(each) for each in results.values())
    took = sorted(each.duration_s for found in results.values() for each in found)
    print(f"\n{threads} threads, half of them within {took[len(took) // 2]:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=float, default=25.0, help="of each of three phases")
    parser.add_argument("--slots", type=int, default=20, help="that two cores are divided into")
    parser.add_argument("--thread-cpu", type=float, default=0.15, help="cpu seconds of a thread")
    parser.add_argument("--lookahead", type=int, default=10, help="in seconds")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

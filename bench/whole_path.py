"""Measures the whole path of a slot: the request, the commit, the placement, the carving, the
offer, the release and the removal.

    .venv/bin/python -m bench.whole_path [--database sqlite|postgresql|URL] [--slots 20000]
        [--batch 1000] [--jobs 4] [--executors 100] [--single 500] [--heartbeats 1000]
        [--seconds 20] [--gpus 4000] [--json]

The resource manager is a real resource manager in a separate process, with full durability. This
process simulates the executors and the job masters over real gRPC (`light_cluster.py`), and also
shows its own cost. Without a URL of a database, this process starts PostgreSQL.

1. throughput: `--jobs` job masters request and release batches of `--batch` slots, one batch after
   the other, until `--slots` slots have ended. The measured time ends when no slot is left.
2. latency: a job master requests `--single` slots, one at a time; the time is from the call to the
   event "granted" on the stream.
3. heartbeats: `--heartbeats` executors report every 5 s for `--seconds`.
4. graph (only with `--graph N`): N slots of a job graph with managed and network memory. Its
   regions run one after the other, each with `--batch` slots in one gang.
5. gpus: `--jobs` job masters at the same time request `--gpus` slots with one GPU each. There are
   as many hosts with 8 GPUs as the slots need. The time is measured from the first call to the last
   event "granted".

Each part starts from an empty database. CPU seconds are the time of all threads of a process. Wall
time depends on other work on the machine, so compare `rm us/slot`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.devices import host_devices
from bench.identities import authority_of
from bench.light_cluster import LightCluster, profile
from finegrain.ids import new_id
from finegrain.options import ListenOptions, LogOptions
from resource_manager.options import ResourceManagerOptions
from tests.support.postgresql import PostgresqlServer

GPUS_PER_HOST = 8
HEARTBEAT_INTERVAL_S = 5.0
START_TIMEOUT_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Result:
    """The figures of one part. Times are in seconds."""

    database: str
    part: str
    count: int
    wall_s: float = 0.0
    rm_cpu_s: float = 0.0
    load_cpu_s: float = 0.0
    server_cpu_s: float = 0.0  # CPU time of PostgreSQL
    more: dict[str, float] = field(default_factory=dict)


class Database:
    """Makes an empty database for each part."""

    def __init__(self, name: str, server: PostgresqlServer | None) -> None:
        self.name = name
        self._server = server

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Yields the URL of an empty database. An empty URL means SQLite in the state directory."""
        if self._server is None:
            yield "" if self.name == "sqlite" else self.name
            return
        made = self._server.create_database()
        try:
            yield self._server.url(made)
        finally:
            self._server.drop_database(made)

    def cpu_s(self) -> float:
        """Returns the CPU seconds of all processes of the database server."""
        if self._server is None:
            return 0.0
        return sum(cpu_of(pid) for pid in family(self._server.pid))


@dataclass
class Meter:
    """Measures the CPU time of all involved processes between two moments."""

    rm_pid: int
    database: Database
    marks: list[tuple[float, float, float, float]] = field(default_factory=list)

    def mark(self) -> None:
        moment = (
            time.perf_counter(),
            cpu_of(self.rm_pid),
            time.process_time(),
            self.database.cpu_s(),
        )
        self.marks.append(moment)

    def result(self, part: str, count: int) -> Result:
        first, last = self.marks[0], self.marks[-1]
        wall, rm, load, server = (round(b - a, 4) for a, b in zip(first, last, strict=True))
        return Result(self.database.name, part, count, wall, rm, load, server)


def cpu_of(pid: int) -> float:
    """Returns the CPU seconds of a process and of its children that have ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(word) for word in words[11:15]) / TICKS_PER_S


def family(pid: int) -> list[int]:
    """Returns a process and its children."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return [pid]
    return [pid, *map(int, children)]


def serve_rm(options: ResourceManagerOptions) -> None:
    """Runs the resource manager. This function is the entry point of its process."""
    from resource_manager.main import run

    sys.exit(run(options))


@asynccontextmanager
async def running(database: Database) -> AsyncIterator[tuple[LightCluster, Meter]]:
    """Runs a resource manager with an empty database, and a cluster without executors."""
    with tempfile.TemporaryDirectory(prefix="finegrain-bench-") as folder, database.fresh() as url:
        state_dir = Path(folder, "state")
        options = ResourceManagerOptions(
            state_dir=state_dir,
            database_url=url,
            listen=ListenOptions(address="127.0.0.1:0", metrics_address="127.0.0.1:0"),
            log=LogOptions(level="warning"),
            report_interval_ms=5_000,
            lost_timeout_ms=60_000,
            database_lease_ms=10_000,  # other work on the machine may stop this process for a while
        )
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve_rm, args=(options,), daemon=True)
        process.start()
        try:
            address = await address_of(state_dir)
            async with LightCluster(address, authority_of(state_dir)) as cluster:
                yield cluster, Meter(process.pid or 0, database)
        finally:
            process.terminate()
            await asyncio.to_thread(process.join, 20)


async def address_of(state_dir: Path) -> str:
    """Waits until the resource manager serves; returns its address."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            try:
                return str(json.loads((state_dir / "endpoint.json").read_text())["address"])
            except (OSError, ValueError, KeyError):
                await asyncio.sleep(0.05)


async def throughput(database: Database, arguments: argparse.Namespace) -> Result:
    """Measures many slots in batches, from the first call until no slot is left."""
    async with running(database) as (cluster, meter):
        await cluster.register(arguments.executors)
        jobs = [await cluster.job() for _ in range(arguments.jobs)]
        # run once to warm up
        await jobs[0].live([new_id() for _ in range(min(200, arguments.batch))], profile())
        await cluster.until_empty()
        rounds = max(1, round(arguments.slots / arguments.batch / arguments.jobs))
        batches = [
            [[new_id() for _ in range(arguments.batch)] for _ in range(rounds)] for _ in jobs
        ]

        async def life(job: Any, mine: list[list[str]]) -> None:
            for batch in mine:
                await job.live(batch, profile())

        meter.mark()
        await asyncio.gather(*(life(job, mine) for job, mine in zip(jobs, batches, strict=True)))
        await cluster.until_empty()
        meter.mark()
        result = meter.result("throughput", rounds * arguments.batch * len(jobs))
        result.more = {
            "slots_per_s": round(result.count / result.wall_s),
            "rm_us_per_slot": round(1e6 * result.rm_cpu_s / result.count),
            "load_us_per_slot": round(1e6 * result.load_cpu_s / result.count),
            "server_us_per_slot": round(1e6 * result.server_cpu_s / result.count),
        }
        return result


async def graph(database: Database, arguments: argparse.Namespace) -> Result:
    """Measures the slots of a job graph whose regions run one after the other.

    Job masters send tasks to the executors, so the resource manager has work only for the slots.
    """
    async with running(database) as (cluster, meter):
        await cluster.register(arguments.executors)
        job = await cluster.job()
        wanted = profile()
        wanted.managed_memory_bytes = wanted.network_memory_bytes = 32 << 20
        regions = max(1, round(arguments.graph / arguments.batch))
        meter.mark()
        for _ in range(regions):
            await job.live([new_id() for _ in range(arguments.batch)], wanted, gang_id=new_id())
        await cluster.until_empty()
        meter.mark()
        result = meter.result("graph", regions * arguments.batch)
        result.more = {
            "slots_per_s": round(result.count / result.wall_s),
            "rm_us_per_slot": round(1e6 * result.rm_cpu_s / result.count),
            "load_us_per_slot": round(1e6 * result.load_cpu_s / result.count),
        }
        return result


async def latency(database: Database, arguments: argparse.Namespace) -> Result:
    """Measures one slot after the other, with a short pause between them."""
    async with running(database) as (cluster, meter):
        await cluster.register(arguments.executors)
        job = await cluster.job()
        acknowledged, granted = [], []
        for number in range(arguments.single + 20):
            ids = [new_id()]
            if number == 20:
                meter.mark()
            times = await job.ask(ids, profile())
            if number >= 20:  # the first 20 slots warm up
                acknowledged.append(times[0])
                granted.append(times[1])
            await job.give_back(ids)
            await asyncio.sleep(0.01)
        meter.mark()
        result = meter.result("latency", arguments.single)
        for name, times_s in ("acknowledged", sorted(acknowledged)), ("granted", sorted(granted)):
            for percent in (50, 99):
                at = times_s[min(len(times_s) - 1, len(times_s) * percent // 100)]
                result.more[f"{name}_p{percent}_ms"] = round(1e3 * at, 2)
        result.more["granted_max_ms"] = round(1e3 * max(granted), 2)
        return result


async def heartbeats(database: Database, arguments: argparse.Namespace) -> Result:
    """Measures executors that only report."""
    async with running(database) as (cluster, meter):
        await cluster.register(arguments.heartbeats)
        # Connect, and run once to warm up.
        await cluster.heartbeats(HEARTBEAT_INTERVAL_S, HEARTBEAT_INTERVAL_S)
        meter.mark()
        sent = await cluster.heartbeats(HEARTBEAT_INTERVAL_S, arguments.seconds)
        meter.mark()
        result = meter.result("heartbeats", sent)
        result.more = {
            "rm_percent_of_a_core": round(100 * result.rm_cpu_s / result.wall_s, 1),
            "rm_us_per_report": round(1e6 * result.rm_cpu_s / sent),
        }
        return result


async def gpus(database: Database, arguments: argparse.Namespace) -> Result:
    """Measures one slot with one GPU for each GPU of the cluster."""
    async with running(database) as (cluster, meter):
        await cluster.register(arguments.gpus // GPUS_PER_HOST, host_devices(GPUS_PER_HOST))
        jobs = [await cluster.job() for _ in range(arguments.jobs)]
        wanted = profile(gpu=100)
        await jobs[0].live([new_id() for _ in range(100)], wanted)  # run once to warm up
        await cluster.until_empty()
        share = arguments.gpus // arguments.jobs
        meter.mark()
        times = await asyncio.gather(
            *(job.ask([new_id() for _ in range(share)], wanted) for job in jobs)
        )
        meter.mark()
        result = meter.result("gpus", share * arguments.jobs)
        result.more = {
            "acknowledged_s": round(max(each[0] for each in times), 2),
            "granted_s": round(max(each[1] for each in times), 2),
            "rm_us_per_slot": round(1e6 * result.rm_cpu_s / result.count),
            "load_us_per_slot": round(1e6 * result.load_cpu_s / result.count),
        }
        return result


def shown(result: Result) -> str:
    """Returns the figures of one part as a paragraph."""
    spent = (
        f"wall {result.wall_s:.2f} s, cpu: rm {result.rm_cpu_s:.2f} s, "
        f"load {result.load_cpu_s:.2f} s"
    )
    if result.server_cpu_s:
        spent += f", server {result.server_cpu_s:.2f} s"
    more = ", ".join(f"{name} {value:g}" for name, value in result.more.items())
    return f"{result.database:<11}{result.part:<11}{result.count:>7}  {more}\n{'':31}{spent}"


def run_all(
    database: Database, arguments: argparse.Namespace, show: Callable[[str], None]
) -> list[Result]:
    parts: list[tuple[int, Callable[..., Coroutine[Any, Any, Result]]]] = [
        (arguments.slots, throughput),
        (arguments.graph, graph),
        (arguments.single, latency),
        (arguments.heartbeats, heartbeats),
        (arguments.gpus, gpus),
    ]
    results = []
    for count, part in parts:
        if count:
            results.append(_run(part(database, arguments)))
            show(shown(results[-1]))
    return results


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "--database", default="", help="sqlite, postgresql or a URL; both if absent"
    )
    parser.add_argument("--slots", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--executors", type=int, default=100)
    parser.add_argument("--single", type=int, default=500)
    parser.add_argument("--heartbeats", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--gpus", type=int, default=4_000)
    parser.add_argument("--graph", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    show: Callable[[str], None] = (lambda _text: None) if arguments.json else print
    show(
        f"Python {platform.python_version()}, {os.cpu_count()} cpus, load {os.getloadavg()[0]:.1f}"
    )
    results: list[Result] = []
    for name in [arguments.database] if arguments.database else ["sqlite", "postgresql"]:
        server = PostgresqlServer() if name == "postgresql" else None
        try:
            results += run_all(Database(name, server), arguments, show)
        finally:
            if server is not None:
                server.stop()
    if arguments.json:
        json.dump([asdict(each) for each in results], sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

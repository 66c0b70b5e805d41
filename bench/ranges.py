"""Measures a range of very many requests. The measured values are its submission, its memory, its
restoration and its service.

    .venv/bin/python -m bench.ranges [--members 1000000] [--through 100000] [--running 5000]
        [--json]

One job requests `--members` equal slots, once in one call and once in calls of 10,000. The first
part runs the engine and an SQLite store on a real disk in this process. This part shows CPU time,
transactions, and bytes that Python has allocated. It serves `--through` members: each member is
granted and later released, in random order, with `--running` slots at a time. The hosts are
simulated, and their work is not counted. The second part runs a real resource manager in a separate
process. It shows resident memory, the time of the calls over the network, and the time of a restart
after a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import shutil
import sqlite3
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.rm_process import RmProcess, free_port
from finegrain.ids import new_id
from finegrain.resources import GIB, MIB, ResourceProfile
from finegrain.rpc.wire import profile_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Instant, RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    Event,
    SlotsReleased,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import restore
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.support.engine_cluster import Command, EngineCluster, FakeExecutor

CALL_MEMBERS = 10_000
RELEASED_AT_ONCE = 500
HOST_SLOTS = 50
PROFILE = ResourceProfile(250, 128 * MIB)
SETTLE_S = 2.0


@dataclass(slots=True)
class Asked:
    """The cost of a request for all members."""

    calls: int
    cpu_ms: float = 0.0
    commit_cpu_ms: float = 0.0
    transactions: int = 0
    bytes_per_member: float = 0.0  # memory allocated by Python
    rows: int = 0
    database_bytes: int = 0


@dataclass(slots=True)
class Through:
    """The cost to serve some members, from the grant to the release."""

    members: int = 0
    running: int = 0
    cpu_us: float = 0.0  # CPU time of the engine per member, from the placement to the release
    commit_cpu_us: float = 0.0
    # additional memory of Python per running member, halfway through
    bytes_per_running: float = 0.0
    bytes_after: int = 0  # additional memory of Python when all served members have ended
    requests_after: int = 0
    rows_after: int = 0
    row_bytes_max: int = 0  # longest text in a row of a range, halfway through
    read_again_ms: float = 0.0


@dataclass(slots=True)
class Process:
    """The figures of the real resource manager."""

    calls: int
    call_s: float = 0.0  # wall time of all calls
    cpu_s: float = 0.0
    rss_bytes: int = 0  # growth of the resident memory
    ready_s: float = 0.0  # from a kill until the process serves
    ready_empty_s: float = 0.0


@dataclass(slots=True)
class Figures:
    """All figures."""

    members: int
    asked: list[Asked] = field(default_factory=list)
    restored_cpu_ms: float = 0.0
    through: Through = field(default_factory=Through)
    processes: list[Process] = field(default_factory=list)


class TimedExecutor(FakeExecutor):
    """A simulated executor that measures its own CPU time."""

    cpu_s = 0.0  # CPU time of all simulated executors

    def execute(self, command: Command, at: Instant, rm_epoch: int) -> Event:
        """Executes a command."""
        begun = time.process_time()
        answer = super().execute(command, at, rm_epoch)
        TimedExecutor.cpu_s += time.process_time() - begun
        return answer


class CountingStore:
    """Passes transactions to the real store, and counts them."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.commits = 0
        self.cpu_s = 0.0

    def apply(self, changes: Changes) -> None:
        """Commits one transaction, if there are changes."""
        if changes:
            begun = time.process_time()
            self.store.commit(changes)
            self.cpu_s += time.process_time() - begun
            self.commits += 1


class Bench:
    """Runs the engine with a store and simulated executors."""

    def __init__(self, store: Store) -> None:
        self.cluster = EngineCluster(job_events_max=1_000, cluster_events_max=1_000)
        self.counting = CountingStore(store)
        self.cluster.store = self.counting  # type: ignore[assignment]

    def ask(self, first: int, count: int) -> None:
        """Requests `count` members in one call."""
        spec = RangeSpec(RequestSpec("r", PROFILE, allow_pending=True), first, count)
        (outcome,) = self.cluster.submit(spec)
        assert not outcome.reason, outcome.message


@contextmanager
def database() -> Iterator[tuple[Store, Path]]:
    """Returns an empty database."""
    folder = Path(tempfile.mkdtemp(prefix="finegrain-ranges-"))
    try:
        with open_store(sqlite_url(folder / "books.db")) as store:
            store.lead("bench")
            yield store, folder / "books.db"
    finally:
        shutil.rmtree(folder)


def taken_bytes() -> int:
    """Returns the bytes that Python has allocated and not freed."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def rows_of(path: Path) -> dict[str, int]:
    """Returns the numbers of rows in tables that could grow, and the longest text in a row of a
    range.
    """
    with sqlite3.connect(path) as connection:
        found = {
            table: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
            for table in ("requests", "request_ranges", "slots")
        }
        longest = "SELECT coalesce(max(length(ended)), 0) FROM request_ranges"
        return found | {"longest": int(connection.execute(longest).fetchone()[0])}


def asked(members: int, calls: int) -> Asked:
    """Measures the time in a first run and the bytes in a second run, because the count of bytes
    takes time.
    """
    figures = Asked(calls)
    each = members // calls
    for counted in (False, True):
        with database() as (store, path):
            bench = Bench(store)
            if counted:
                tracemalloc.start()
            before, commits = taken_bytes() if counted else 0, bench.counting.commits
            begun, bench.counting.cpu_s = time.process_time(), 0.0
            for first in range(0, members, each):
                bench.ask(first, each)
            if counted:
                figures.bytes_per_member = (taken_bytes() - before) / members
                tracemalloc.stop()
                continue
            figures.commit_cpu_ms = 1e3 * bench.counting.cpu_s
            figures.cpu_ms = 1e3 * (time.process_time() - begun) - figures.commit_cpu_ms
            figures.transactions = bench.counting.commits - commits
            figures.rows = sum(rows_of(path)[name] for name in ("requests", "request_ranges"))
            figures.database_bytes = path.stat().st_size
    return figures


def restored_ms(members: int) -> float:
    """Returns the CPU time to restore the state from the store, including the queue."""
    with database() as (store, _path):
        bench = Bench(store)
        bench.ask(0, members)
        return _read_ms(store)


def _read_ms(store: Store) -> float:
    begun = time.process_time()
    restore(store.load(), EngineSettings(), EngineCluster().at)
    return 1e3 * (time.process_time() - begun)


def through(members: int, count: int, running: int) -> Through:
    """Serves `count` members in two runs, and measures the time in one run and the bytes in the
    other run.
    """
    figures = Through(count, running)
    for counted in (False, True):
        with database() as (store, path):
            bench = Bench(store)
            if counted:
                tracemalloc.start()
            bench.ask(0, members)
            before = taken_bytes() if counted else 0
            _run_through(bench, path, figures, before if counted else None, (count, running))
            if counted:
                figures.bytes_after = taken_bytes() - before
                tracemalloc.stop()
            else:
                figures.read_again_ms = _read_ms(store)
    return figures


def _run_through(
    bench: Bench, path: Path, figures: Through, before: int | None, size: tuple[int, int]
) -> None:
    count, running = size
    cluster, chance = bench.cluster, random.Random(1)
    bench.counting.cpu_s = TimedExecutor.cpu_s = 0.0
    begun = time.process_time()
    for number in range(-(-running // HOST_SLOTS)):
        total = {"cpu_milli": 64_000, "memory_bytes": 64 * GIB}
        cluster.register(TimedExecutor(f"host-{number}", total, PROFILE, slots_max=HOST_SLOTS))
    ended, looked = 0, False
    while ended < count:
        if not looked and ended >= count // 2:
            looked = True
            slots = len(cluster.state.slots)
            figures.row_bytes_max = rows_of(path)["longest"]
            if before is not None:
                figures.bytes_per_running = (taken_bytes() - before) / slots
        while cluster.wire:
            cluster.deliver(cluster.wire[0])
        held = [key for key, slot in cluster.state.slots.items() if slot.state == "ALLOCATED"]
        some = chance.sample(held, min(RELEASED_AT_ONCE, len(held), count - ended))
        cluster.batch(SlotsReleased(cluster.at, "job", tuple(some)))
        ended += len(some)
    if before is None:
        cpu_s = time.process_time() - begun - bench.counting.cpu_s - TimedExecutor.cpu_s
        figures.cpu_us = 1e6 * cpu_s / count
        figures.commit_cpu_us = 1e6 * bench.counting.cpu_s / count
    have = sum(slot.state != "FREEING" for slot in cluster.state.slots.values())
    figures.requests_after = len(cluster.state.requests) - have
    figures.rows_after = rows_of(path)["requests"]


async def process(members: int, calls: int) -> Process:
    """Measures the real resource manager before the call, with all members, and after a kill."""
    figures = Process(calls)
    folder = Path(tempfile.mkdtemp(prefix="finegrain-ranges-"))
    manager = RmProcess(folder / "rm", free_port())
    manager.state_dir.mkdir(mode=0o700)
    try:
        manager.start()
        figures.ready_empty_s = await manager.ready()
        await asyncio.sleep(SETTLE_S)
        before, cpu_s = manager.memory_bytes(), manager.cpu_s()
        figures.call_s = await _ask(manager, members, calls)
        figures.cpu_s = manager.cpu_s() - cpu_s
        await asyncio.sleep(SETTLE_S)
        figures.rss_bytes = manager.memory_bytes() - before
        manager.kill()
        manager.start()
        figures.ready_s = await manager.ready()
    finally:
        manager.kill()
        shutil.rmtree(folder)
    return figures


async def _ask(manager: RmProcess, members: int, calls: int) -> float:
    async with manager.channel() as channel:
        rm: Any = ResourceManagerServiceStub(channel)
        job_id = new_id()
        await rm.RegisterJob(
            rm_pb2.RegisterJobRequest(
                job_id=job_id, request_id=new_id(), name="bench", detached=True
            )
        )
        each = members // calls
        request = slots_pb2.SlotRequest(profile=profile_to_proto(PROFILE), allow_pending=True)
        begun = time.monotonic()
        for first in range(0, members, each):
            part = slots_pb2.RequestRange(
                range_id="r", first_index=first, count=each, request=request
            )
            answer = await rm.RequestResource(
                rm_pb2.RequestResourceRequest(job_id=job_id, ranges=[part])
            )
            assert not answer.range_results[0].HasField("error"), answer
        return time.monotonic() - begun


def show(figures: Figures) -> None:
    """Prints the figures as text."""
    print(f"{figures.members:,} members; {os.cpu_count()} cpus, load {os.getloadavg()[0]:.1f}")
    for each in figures.asked:
        print(
            f"requested in {each.calls} calls: {each.cpu_ms:.1f} ms CPU, and"
            f" {each.commit_cpu_ms:.1f} ms for {each.transactions} transactions, {each.rows} rows,"
            f" {each.database_bytes / MIB:.2f} MiB of database;"
            f" {each.bytes_per_member:.3f} bytes of memory each"
        )
    print(f"read after a restart: {figures.restored_cpu_ms:.1f} ms CPU")
    some = figures.through
    print(
        f"{some.members:,} were run, {some.running:,} at a time, and released in random order:"
        f" {some.cpu_us:.0f} us CPU each, and"
        f" {some.commit_cpu_us:.0f} us for commits"
    )
    print(
        f"  {some.bytes_per_running:.0f} bytes per running member, {some.bytes_after:,} in total"
        f" when all had ended ({some.requests_after} of their requests and {some.rows_after} rows"
        f" of requests left); longest row {some.row_bytes_max:,} bytes; read after a restart in"
        f" {some.read_again_ms:.1f} ms"
    )
    for one in figures.processes:
        print(
            f"real process, {one.calls} calls: {one.call_s:.2f} s of wall-clock time,"
            f" {one.cpu_s:.2f} s CPU, {one.rss_bytes / MIB:.1f} MiB more"
            f" ({one.rss_bytes / figures.members:.2f} bytes each); ready {one.ready_s:.2f} s after"
            f" a kill ({one.ready_empty_s:.2f} s when empty)"
        )


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--members", type=int, default=1_000_000)
    parser.add_argument("--through", type=int, default=100_000)
    parser.add_argument("--running", type=int, default=5_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = Figures(options.members)
    for calls in (1, max(1, options.members // CALL_MEMBERS)):
        figures.asked.append(asked(options.members, calls))
    figures.restored_cpu_ms = restored_ms(options.members)
    figures.through = through(options.members, options.through, options.running)
    for calls in (1, max(1, options.members // CALL_MEMBERS)):
        figures.processes.append(asyncio.run(process(options.members, calls)))
    if options.json:
        print(json.dumps({"python": platform.python_version(), **asdict(figures)}))
    else:
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

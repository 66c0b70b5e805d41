"""Measures how many rows per second the store makes durable, for each batch size.

    .venv/bin/python -m bench.storage [--seconds 2] [--url URL ...] [--json]

Each batch is one `Store.commit`. The rows are those that the service writes when it places
requests. Of every four rows, one is a request, one is a slot, one is an entry of a job's log, and
one is an update of an earlier request. Without `--url`, the benchmark measures an SQLite file in
the file system of the working directory, and a PostgreSQL server that the benchmark starts. Both
databases have full durability. One writer commits one batch after the other, whereas the real
service fills the next batch during a commit.
"""

from __future__ import annotations

import argparse
import json
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from finegrain.ids import new_id
from finegrain.resources import GIB, ResourceProfile
from finegrain.values.states import RequestState, SlotState
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Job, JobEvent, Request, RequestSpec, Slot
from resource_manager.storage.opening import open_store
from resource_manager.storage.store import Store
from tests.support.postgresql import PostgresqlServer

BATCHES = (1, 10, 100, 500, 2000, 10_000)
PROFILE = ResourceProfile(cpu_milli=1500, task_heap_memory_bytes=2 * GIB)


@dataclass(frozen=True)
class Measured:
    """One line of the result."""

    database: str
    rows_per_commit: int
    rows_per_s: int
    commits_per_s: int
    commit_ms_median: float
    commit_ms_p99: float


class Workload:
    """Makes batches of the rows that the service writes when it places requests."""

    def __init__(self) -> None:
        self.job = Job(new_id(), "bench", "default", 30_000, "a" * 64, "b" * 64, 1, 1)
        self._sequence = 0
        self._placed: list[Request] = []

    def batch(self, size: int) -> Changes:
        """Returns `size` rows: a quarter each of requests, slots, log entries and updates."""
        updated = [replace(each, state=RequestState.GRANTED) for each in self._placed]
        updated = updated[: size // 4]
        changes = Changes(requests=updated, counters={"arrival_number": self._sequence})
        self._placed = []
        for number in range(size - len(updated)):
            self._add(changes, number % 3)
        return changes

    def _add(self, changes: Changes, kind: int) -> None:
        self._sequence += 1
        allocation_id = new_id()
        if kind == 0:
            spec = RequestSpec(allocation_id, PROFILE)
            request = Request(spec, self.job.job_id, self._sequence, 1)
            self._placed.append(request)
            changes.requests.append(request)
        elif kind == 1:
            state = SlotState.PENDING
            slot = Slot(
                allocation_id, 1, self.job.job_id, "host-a", PROFILE, 1500, 512, "0-1", state
            )
            changes.slots.append(slot)
        else:
            told: dict[str, object] = {
                "executor_id": "host-a",
                "address": "127.0.0.1:4711",
                "cpus": "0-1",
            }
            changes.job_events.append(
                JobEvent(
                    self.job.job_id,
                    self._sequence,
                    1,
                    allocation_id,
                    RequestState.GRANTED,
                    slot=told,
                )
            )


def measure(store: Store, name: str, size: int, seconds: float) -> Measured:
    """Commits batches of `size` rows for `seconds`. The time to make the batches does not count."""
    workload = Workload()
    store.commit(Changes(jobs=[workload.job]))
    store.commit(workload.batch(size))
    taken: list[float] = []
    while sum(taken) < seconds:
        changes = workload.batch(size)
        begin = time.perf_counter()
        store.commit(changes)
        store.maintain()
        taken.append(time.perf_counter() - begin)
    taken.sort()
    total = sum(taken)
    return Measured(
        database=name,
        rows_per_commit=size,
        rows_per_s=round(size * len(taken) / total),
        commits_per_s=round(len(taken) / total),
        commit_ms_median=round(taken[len(taken) // 2] * 1000, 2),
        commit_ms_p99=round(taken[int(len(taken) * 0.99)] * 1000, 2),
    )


@contextmanager
def databases(urls: list[str]) -> Iterator[list[tuple[str, str]]]:
    """Yields the name and the URL of each database to measure."""
    if urls:
        yield [(url.partition(":")[0], url) for url in urls]
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-storage-") as folder:
        server = PostgresqlServer()
        try:
            yield [
                (f"SQLite {sqlite3.sqlite_version}", f"sqlite:///{folder}/books.db"),
                ("PostgreSQL", server.url(server.create_database())),
            ]
        finally:
            server.stop()


def main() -> None:
    """Measures each database and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=2.0, help="per batch size")
    parser.add_argument("--url", action="append", default=[], help="database to measure")
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")
    options = parser.parse_args()
    results = []
    with databases(options.url) as found:
        for name, url in found:
            with open_store(url, lease_ms=60_000) as store:
                store.lead("bench")
                for size in BATCHES:
                    results.append(measure(store, name, size, options.seconds))
                    print(f"{name}: {size} rows per commit done", file=sys.stderr)
    if options.json:
        print(json.dumps([vars(each) for each in results], indent=2))
        return
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print("| database | rows per commit | rows/s | commits/s | median ms | p99 ms |")
    print("|---|---|---|---|---|---|")
    for each in results:
        print("| " + " | ".join(str(value) for value in vars(each).values()) + " |")


if __name__ == "__main__":
    main()

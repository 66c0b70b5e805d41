"""Measures two things: the time until a resource manager serves calls after a restart, and the
memory that it needs.

    .venv/bin/python -m bench.restart [--executors 10000] [--slots 100000] [--queued 200000]
        [--returning 2000] [--database sqlite|postgresql] [--seconds 20] [--json]

The benchmark fills databases through the store (`filled_books.py`), starts the real process on each
database, and measures the time until the process has registered a job. It also measures two kinds
of growth of the resident memory: with executors, compared with an empty database; and with waiting
requests, compared with no requests. The process once restores the waiting requests from the
database, and once receives them over the network. At the end, `--returning` executors (0: no
executors) of a second process register at the same time, and send heartbeats for `--seconds`. The
longest time without a heartbeat must stay below the lost timeout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.filled_books import TOO_LARGE, Size, fill
from bench.identities import authority_of
from bench.returning_cluster import LOST_TIMEOUT_S, Returned, come_back, registration
from bench.rm_process import RmProcess, free_port
from finegrain.certificates.authority import Authority
from finegrain.ids import new_id
from finegrain.resources import KIB, MIB
from finegrain.rpc.wire import profile_to_proto
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.cluster_pb2_grpc import ClusterServiceStub
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from resource_manager.engine.model.entities import Slot
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from tests.support.postgresql import PostgresqlServer

BATCH = 5_000
SETTLE_S = 2.0


@dataclass(frozen=True, slots=True)
class Started:
    """The figures of one start of the process."""

    size: Size
    ready_s: float
    cpu_s: float
    rss_bytes: int
    peak_bytes: int


@dataclass(slots=True)
class Figures:
    """All figures."""

    database: str
    starts: list[Started] = field(default_factory=list)
    executor_bytes: int = 0
    queued_read_bytes: int = 0
    queued_asked_bytes: int = 0
    returned: Returned | None = None
    rm_cpu_s_of_return: float = 0.0
    executors_after: dict[str, int] = field(default_factory=dict)


class Place:
    """Makes empty databases and state directories."""

    def __init__(self, postgresql: PostgresqlServer | None) -> None:
        self._postgresql = postgresql

    @contextmanager
    def filled(self, size: Size) -> Iterator[tuple[RmProcess, list[Slot]]]:
        """Yields a resource manager that is not started, with a database of this size, and the
        slots in the database.
        """
        folder = Path(tempfile.mkdtemp(prefix="finegrain-restart-"))
        state_dir = folder / "rm"
        state_dir.mkdir(mode=0o700)
        url = sqlite_url(state_dir / "finegrain.db")
        options: tuple[str, ...] = ()
        if self._postgresql is not None:
            url = self._postgresql.url(self._postgresql.create_database())
            options = ("--database", url)
        manager = RmProcess(state_dir, free_port(), options)
        try:
            with open_store(url) as store:
                store.lead("bench")
                fill(store, size)
                slots = store.load().slots
            yield manager, slots
        finally:
            manager.kill()
            shutil.rmtree(folder)


async def started(manager: RmProcess, size: Size) -> Started:
    """Starts the resource manager and waits until it serves."""
    manager.start()
    ready_s = await manager.ready()
    cpu_s = manager.cpu_s()
    await asyncio.sleep(SETTLE_S)
    return Started(size, ready_s, cpu_s, manager.memory_bytes(), manager.memory_bytes("VmHWM"))


async def ask(manager: RmProcess, count: int) -> None:
    """Submits, over the network, requests that must wait."""
    async with manager.channel() as channel:
        rm: Any = ResourceManagerServiceStub(channel)
        job_id = new_id()
        await rm.RegisterJob(
            rm_pb2.RegisterJobRequest(
                job_id=job_id, request_id=new_id(), name="bench", detached=True
            )
        )
        for first in range(0, count, BATCH):
            requests = [
                slots_pb2.SlotRequest(
                    allocation_id=new_id(), profile=profile_to_proto(TOO_LARGE), allow_pending=True
                )
                for _ in range(min(BATCH, count - first))
            ]
            answer = await rm.RequestResource(
                rm_pb2.RequestResourceRequest(job_id=job_id, requests=requests)
            )
            refused = [each.error.message for each in answer.results if each.HasField("error")]
            assert not refused, refused[0]


def _return_in_process(
    address: str,
    authority: tuple[bytes, bytes],
    executors: int,
    slots: list[Slot],
    seconds: float,
) -> Returned:
    of: dict[str, list[Slot]] = {}
    for slot in slots:
        of.setdefault(slot.executor_id, []).append(slot)
    from bench.filled_books import host_id

    registrations = [
        registration(number, of.get(host_id(number), [])) for number in range(executors)
    ]
    return asyncio.run(come_back(address, Authority.from_pem(*authority), registrations, seconds))


async def returned(
    figures: Figures, place: Place, size: Size, returning: int, seconds: float
) -> None:
    """Starts the resource manager with the whole database, and lets `returning` executors return at
    once.
    """
    with place.filled(size) as (manager, slots):
        figures.starts.append(await started(manager, size))
        if not min(returning, size.executors):
            return
        before_s, authority = manager.cpu_s(), authority_of(manager.state_dir)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            figures.returned = await asyncio.get_running_loop().run_in_executor(
                pool,
                _return_in_process,
                manager.address,
                (authority.certificate_pem, authority.private_key_pem),
                min(returning, size.executors),
                slots,
                seconds,
            )
        figures.rm_cpu_s_of_return = manager.cpu_s() - before_s
        async with manager.channel() as channel:
            cluster: Any = ClusterServiceStub(channel)
            view = await cluster.GetCluster(cluster_pb2.GetClusterRequest())
            figures.executors_after = dict(view.executors)


async def measure(place: Place, name: str, size: Size, returning: int, seconds: float) -> Figures:
    """Measures the starts one after the other."""
    figures = Figures(name)

    async def weighed(of: Size, queued: int = 0) -> int:
        with place.filled(of) as (manager, _slots):
            start = await started(manager, of)
            figures.starts.append(start)
            if queued:
                await ask(manager, queued)
                await asyncio.sleep(SETTLE_S)
                return manager.memory_bytes() - start.rss_bytes
            return start.rss_bytes

    empty = await weighed(Size())
    if size.executors:
        with_executors = await weighed(Size(executors=size.executors))
        figures.executor_bytes = (with_executors - empty) // size.executors
    if size.queued:
        few = Size(executors=1, queued=size.queued)
        figures.queued_read_bytes = (await weighed(few) - empty) // size.queued
        figures.queued_asked_bytes = await weighed(Size(executors=1), size.queued) // size.queued
    await returned(figures, place, Size(size.executors, size.slots), returning, seconds)
    return figures


def show(figures: Figures) -> None:
    """Prints the figures as text."""
    print(f"{figures.database}; {os.cpu_count()} cpus, load {os.getloadavg()[0]:.1f}")
    for start in figures.starts:
        size = start.size
        print(
            f"{size.executors:7} executors {size.slots:7} slots {size.queued:7} queued: ready after"
            f" {start.ready_s:.1f} s ({start.cpu_s:.1f} s CPU),"
            f" {start.rss_bytes / MIB:.0f} MiB (at most {start.peak_bytes / MIB:.0f})"
        )
    print(f"per executor with 64 cpus: {figures.executor_bytes / KIB:.1f} KiB")
    print(
        f"per queued request: {figures.queued_read_bytes / KIB:.2f} KiB as read,"
        f" {figures.queued_asked_bytes / KIB:.2f} KiB as asked for"
    )
    back = figures.returned
    if back is not None:
        print(
            f"they were registered {back.registered_s:.1f} s after the first call; longest"
            f" silence {back.longest_silence_s:.1f} s (lost after {LOST_TIMEOUT_S:g});"
            f" {back.failed_calls} calls failed; CPU {figures.rm_cpu_s_of_return:.1f} s here,"
            f" {back.cpu_s:.1f} s there; afterwards {figures.executors_after}"
        )


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--executors", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=100_000)
    parser.add_argument("--queued", type=int, default=200_000)
    parser.add_argument(
        "--returning",
        type=int,
        default=2_000,
        help="executors that return (0: none); each needs three open files",
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    size = Size(arguments.executors, arguments.slots, arguments.queued)
    server = PostgresqlServer() if arguments.database == "postgresql" else None
    try:
        figures = asyncio.run(
            measure(Place(server), arguments.database, size, arguments.returning, arguments.seconds)
        )
    finally:
        if server is not None:
            server.stop()
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), **asdict(figures)}))
    else:
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures the effect of a job master that floods the resource manager with requests.

    .venv/bin/python -m bench.flood [--requests 1000000] [--call-items 10000] [--parallel 100]
        [--streams 16] [--rude] [--database sqlite|postgresql] [--json]

Three real processes take part:

- a resource manager;
- a job master, the flooder. The flooder requests `--requests` slots that fit on no host, in large
  parallel calls. It also opens streams, and never reads from them. When a call is refused, the
  flooder waits as long as the error says. With `--rude` it does not wait;
- a process with light executors that send heartbeats, and with another job. This job requests one
  slot at a time, waits for the grant, and releases the slot.

The benchmark prints the time from a request of the other job to its grant. It measures this time
without the flood, during the flood, and while the flooder's job ends. It also prints the memory of
the resource manager.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import grpc.aio

from bench.filled_books import TOO_LARGE, Size
from bench.identities import authority_of, channel_as
from bench.light_cluster import LightCluster, LightExecutor, LightJob
from bench.restart import Place
from bench.rm_process import RmProcess
from finegrain.certificates.authority import Authority
from finegrain.errors import ResourceExhausted
from finegrain.ids import new_id
from finegrain.resources import MIB
from finegrain.rpc.status import error_from_rpc
from finegrain.rpc.wire import profile_to_proto
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import resources_pb2, slots_pb2
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub
from tests.support.postgresql import PostgresqlServer

EXECUTORS = 100
REPORT_INTERVAL_S = 3.0
QUIET_S = 10.0
SAMPLE_PAUSE_S = 0.05
CALL_TIMEOUT_S = 120.0
PROFILE = resources_pb2.ResourceProfile(cpu_milli=1000, task_heap_memory_bytes=256 * MIB)


@dataclass(frozen=True, slots=True)
class Flooded:
    """The figures of the flooder."""

    seconds: float
    accepted: int
    calls: int
    told_to_wait: int
    failed: int


@dataclass(frozen=True, slots=True)
class Waits:
    """The times from a request of the other job to its grant, in milliseconds."""

    samples: int
    p50_ms: float
    p99_ms: float
    longest_ms: float


@dataclass(frozen=True, slots=True)
class Result:
    """All figures."""

    database: str
    before: Waits
    during: Waits
    ending: Waits
    flooded: Flooded
    rss_before_bytes: int
    rss_after_bytes: int
    rss_peak_bytes: int
    rm_cpu_s: float
    executors: int
    longest_silence_s: float


class Flooder:
    """A job master that sends too many requests."""

    def __init__(self, rm: Any, job_id: str, *, rude: bool) -> None:
        self._rm = rm
        self._job_id = job_id
        self._rude = rude
        self._calls: list[int] = []
        self.accepted = self.calls = self.told_to_wait = self.failed = 0

    def neglect(self, streams: int) -> list[Any]:
        """Opens streams, and never reads from them."""
        request = rm_pb2.WatchJobRequest(job_id=self._job_id)
        return [self._rm.WatchJob(request) for _ in range(streams)]

    async def send(self, requests: int, call_items: int, parallel: int) -> None:
        """Sends all requests."""
        self._calls = [call_items] * (requests // call_items)
        await asyncio.gather(*(self._sender() for _ in range(parallel)))

    async def _sender(self) -> None:
        while self._calls:
            items = self._calls.pop()
            message = rm_pb2.RequestResourceRequest(
                job_id=self._job_id,
                requests=[
                    slots_pb2.SlotRequest(
                        allocation_id=new_id(),
                        profile=profile_to_proto(TOO_LARGE),
                        allow_pending=True,
                    )
                    for _ in range(items)
                ],
            )
            while not await self._sent(message):
                pass

    async def _sent(self, message: rm_pb2.RequestResourceRequest) -> bool:
        self.calls += 1
        try:
            answer = await self._rm.RequestResource(message, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as failure:
            error = error_from_rpc(failure)
            if isinstance(error, ResourceExhausted) and error.retry_after_s:
                self.told_to_wait += 1
                await asyncio.sleep(0 if self._rude else error.retry_after_s)
            else:
                self.failed += 1
            return False
        self.accepted += sum(not each.HasField("error") for each in answer.results)
        return True


async def _flood(
    address: str, authority: tuple[bytes, bytes], arguments: argparse.Namespace
) -> Flooded:
    async with channel_as(Authority.from_pem(*authority), "user/flood", address) as channel:
        rm: Any = ResourceManagerServiceStub(channel)
        job_id = new_id()
        await rm.RegisterJob(
            rm_pb2.RegisterJobRequest(
                job_id=job_id, request_id=new_id(), name="flood", detached=True
            )
        )
        flooder = Flooder(rm, job_id, rude=arguments.rude)
        streams = flooder.neglect(arguments.streams)
        began_s = time.monotonic()
        await flooder.send(arguments.requests, arguments.call_items, arguments.parallel)
        seconds = time.monotonic() - began_s
        for stream in streams:
            stream.cancel()
        await rm.EndJob(rm_pb2.EndJobRequest(job_id=job_id))
    return Flooded(seconds, flooder.accepted, flooder.calls, flooder.told_to_wait, flooder.failed)


def flood_in_process(
    address: str, authority: tuple[bytes, bytes], arguments: argparse.Namespace
) -> Flooded:
    """Runs the flooder. This function is the entry point of the flooder's process."""
    return asyncio.run(_flood(address, authority, arguments))


class Other:
    """The job that requests one slot at a time."""

    def __init__(self, job: LightJob) -> None:
        self._job = job
        self._waits_s: list[float] = []

    async def live(self) -> None:
        """Requests and releases one slot after the other."""
        while True:
            allocation_id = new_id()
            began_s = time.perf_counter()
            await self._job.ask([allocation_id], PROFILE)
            self._waits_s.append(time.perf_counter() - began_s)
            await self._job.give_back([allocation_id])
            await asyncio.sleep(SAMPLE_PAUSE_S)

    def taken(self) -> Waits:
        """Returns the times since the previous call of this function."""
        waits, self._waits_s = sorted(self._waits_s), []
        if len(waits) < 2:
            return Waits(len(waits), *([1000 * max(waits, default=float("inf"))] * 3))
        p99 = statistics.quantiles(waits, n=100, method="inclusive")[98]
        return Waits(len(waits), 1000 * statistics.median(waits), 1000 * p99, 1000 * waits[-1])


class Signs:
    """Sends the heartbeats of the executors."""

    def __init__(self, cluster: LightCluster) -> None:
        self._cluster = cluster
        self.longest_s = 0.0

    async def live(self) -> None:
        """Sends the heartbeats of all executors, evenly over the interval."""
        executors = list(self._cluster.executors.values())
        step_s = REPORT_INTERVAL_S / len(executors)
        await asyncio.gather(*(self._one(each, n * step_s) for n, each in enumerate(executors)))

    async def _one(self, executor: LightExecutor, offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        while True:
            began_s = time.monotonic()
            await self._cluster.heartbeat(executor)
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            await asyncio.sleep(REPORT_INTERVAL_S)


async def measure(name: str, place: Place, arguments: argparse.Namespace) -> Result:
    """Measures one flood."""
    with place.filled(Size()) as (manager, _slots):
        manager.start()
        await manager.ready()
        authority = authority_of(manager.state_dir)
        async with LightCluster(manager.address, authority) as cluster:
            await cluster.register(EXECUTORS)
            other, signs = Other(await cluster.job()), Signs(cluster)
            tasks = [asyncio.create_task(other.live()), asyncio.create_task(signs.live())]
            flood = asyncio.create_task(_watched(manager, other, signs, name, arguments))
            await asyncio.wait([*tasks, flood], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    flood.cancel()
                    task.result()
                task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks)
            return await flood


async def _watched(
    manager: RmProcess, other: Other, signs: Signs, name: str, arguments: argparse.Namespace
) -> Result:
    await asyncio.sleep(QUIET_S)
    authority = authority_of(manager.state_dir)
    before, rss_before, cpu_s = other.taken(), manager.memory_bytes(), manager.cpu_s()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        flooded = await asyncio.get_running_loop().run_in_executor(
            pool,
            flood_in_process,
            manager.address,
            (authority.certificate_pem, authority.private_key_pem),
            arguments,
        )
    during, rss_after = other.taken(), manager.memory_bytes()
    await asyncio.sleep(QUIET_S)
    return Result(
        database=name,
        before=before,
        during=during,
        ending=other.taken(),
        flooded=flooded,
        rss_before_bytes=rss_before,
        rss_after_bytes=rss_after,
        rss_peak_bytes=manager.memory_bytes("VmHWM"),
        rm_cpu_s=manager.cpu_s() - cpu_s,
        executors=EXECUTORS,
        longest_silence_s=signs.longest_s,
    )


def show(result: Result) -> None:
    """Prints the figures as text."""
    flooded = result.flooded
    print(f"{result.database}; {os.cpu_count()} cpus, load {os.getloadavg()[0]:.1f}")
    print(
        f"flood: {flooded.accepted} requests accepted in {flooded.seconds:.1f} s, {flooded.calls}"
        f" calls, {flooded.told_to_wait} told to wait, {flooded.failed} failed"
    )
    for name in ("before", "during", "ending"):
        waits: Waits = getattr(result, name)
        print(
            f"{name:7}: request to grant p50 {waits.p50_ms:.0f} ms, p99 {waits.p99_ms:.0f} ms, at"
            f" most {waits.longest_ms:.0f} ms ({waits.samples} slots)"
        )
    print(
        f"resource manager: {result.rss_before_bytes / MIB:.0f} MiB before,"
        f" {result.rss_after_bytes / MIB:.0f} after, at most {result.rss_peak_bytes / MIB:.0f};"
        f" {result.rm_cpu_s:.1f} s CPU; longest report of an executor"
        f" {result.longest_silence_s:.2f} s"
    )


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--call-items", type=int, default=10_000)
    parser.add_argument("--parallel", type=int, default=100)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--rude", action="store_true")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    server = PostgresqlServer() if arguments.database == "postgresql" else None
    try:
        result = asyncio.run(measure(arguments.database, Place(server), arguments))
    finally:
        if server is not None:
            server.stop()
    if arguments.json:
        print(json.dumps({"python": platform.python_version(), **asdict(result)}))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

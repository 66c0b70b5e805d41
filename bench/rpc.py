"""Measures the cost of a call and of a stream for a blocking server, and for asyncio servers with
and without the guard.

    .venv/bin/python -m bench.rpc [--seconds 5] [--concurrency 32] [--json]

The server runs in a separate process, so the benchmark can measure its CPU time alone. The callers
run in this process. The CPU time per call hardly depends on the load of the machine, but the number
of calls per second does: compare calls per second only within one run. `guarded` is the server that
finegrain uses (TLS, certificates, sizes, statuses). The difference between `guarded` and `asyncio`
is the cost of the guard and of TLS.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio

from finegrain.credentials import Credentials
from finegrain.options import ListenOptions
from finegrain.resources import MIB
from finegrain.rpc.access import RESOURCE_MANAGER_ACCESS
from finegrain.rpc.channels import CHANNEL_OPTIONS, SERVER_OPTIONS, open_channel
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.server import GuardedServer
from finegrain.rpc.trust import Trust
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import resources_pb2, slots_pb2
from finegrain.v1.resource_manager_pb2_grpc import (
    ResourceManagerServiceServicer,
    ResourceManagerServiceStub,
    add_ResourceManagerServiceServicer_to_server,
)
from tests.support.identities import credentials, identity

ANSWER = rm_pb2.ReportSlotsResponse(rm_epoch=3, acknowledged_report_number=7)
KINDS = ("blocking", "asyncio", "asyncio+uvloop", "guarded", "guarded+uvloop")


class BlockingServicer(ResourceManagerServiceServicer):
    """Answers every call at once, with one thread per open stream."""

    def ReportSlots(self, request: Any, context: Any) -> rm_pb2.ReportSlotsResponse:
        return ANSWER

    def WatchJob(self, request: Any, context: Any) -> Any:
        for _ in range(request.from_sequence):
            yield rm_pb2.WatchJobResponse()


class AsyncServicer(ResourceManagerServiceServicer):
    """Answers every call at once, on an event loop."""

    async def ReportSlots(self, request: Any, context: Any) -> rm_pb2.ReportSlotsResponse:
        return ANSWER

    async def WatchJob(self, request: Any, context: Any) -> AsyncIterator[rm_pb2.WatchJobResponse]:
        for _ in range(request.from_sequence):
            yield rm_pb2.WatchJobResponse()


@dataclass(frozen=True)
class Figure:
    """The figures of one kind of server."""

    kind: str
    calls_per_s: float
    server_cpu_us_per_call: float
    server_cpu_us_per_stream_message: float
    p50_ms: float
    p99_ms: float


# The servicers of this module implement only the measured calls, so mypy must ignore the other
# abstract methods.


def serve_blocking(ready: Connection) -> None:
    server = grpc.server(ThreadPoolExecutor(64), options=list(SERVER_OPTIONS))
    add_ResourceManagerServiceServicer_to_server(BlockingServicer(), server)  # type: ignore[abstract]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ready.send(f"127.0.0.1:{port}")
    answer_cpu(ready)
    server.stop(0)


def serve_asyncio(ready: Connection, own: OwnCertificate | None) -> None:
    async def main() -> None:
        if own is not None:
            trust = Trust(own.credentials.who.cluster)
            listen = ListenOptions("127.0.0.1:0")
            mine = GuardedServer(listen, RESOURCE_MANAGER_ACCESS, own, trust)
            mine.add(add_ResourceManagerServiceServicer_to_server, AsyncServicer())  # type: ignore[abstract]
            ready.send(await mine.start())
            await asyncio.to_thread(answer_cpu, ready)
            await mine.stop(0)
        else:
            server = grpc.aio.server(options=list(SERVER_OPTIONS))
            add_ResourceManagerServiceServicer_to_server(AsyncServicer(), server)  # type: ignore[abstract]
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            ready.send(f"127.0.0.1:{port}")
            await asyncio.to_thread(answer_cpu, ready)
            await server.stop(0)

    asyncio.run(main())


def answer_cpu(ready: Connection) -> None:
    """Sends the CPU time of this process for each "cpu" message, until another message arrives."""
    while ready.recv() == "cpu":
        ready.send(time.process_time())


def serve(kind: str, ready: Connection, shown: Credentials) -> None:
    name, _, loop = kind.partition("+")
    if loop == "uvloop":
        import uvloop

        uvloop.install()
    if name == "blocking":
        serve_blocking(ready)
    else:
        serve_asyncio(ready, OwnCertificate(shown) if name == "guarded" else None)


def report() -> rm_pb2.ReportSlotsRequest:
    """Returns a heartbeat with ten slots."""
    slots = [
        slots_pb2.SlotStatus(
            allocation_id=f"01a1f821-98c3-7612-a895-f93bfbfb94{n:02d}",
            generation=1,
            job_id="01a1f821-98c3-7612-a895-f93bfbfb9400",
            profile=resources_pb2.ResourceProfile(cpu_milli=500, task_heap_memory_bytes=64 * MIB),
            state=slots_pb2.SLOT_STATE_ALLOCATED,
        )
        for n in range(10)
    ]
    return rm_pb2.ReportSlotsRequest(
        executor_id="host-a",
        instance_id="instance",
        registration_number=1,
        report=slots_pb2.SlotReport(report_number=9, rm_epoch=1, slots=slots),
    )


def opened(address: str, kind: str, who: str) -> grpc.aio.Channel:
    """Returns a channel of the identity `who` to a server of a kind. Only guarded servers use
    TLS.
    """
    if kind.startswith("guarded"):
        return open_channel(address, OwnCertificate(credentials(who)), identity("rm"))
    return grpc.aio.insecure_channel(address, list(CHANNEL_OPTIONS))


async def load(address: str, kind: str, seconds: float, concurrency: int) -> list[float]:
    """Makes calls one after the other in each of `concurrency` tasks; returns the durations of all
    calls.
    """
    times: list[float] = []
    async with opened(address, kind, "executor/host-a") as channel:
        stub: Any = ResourceManagerServiceStub(channel)
        request = report()
        await stub.ReportSlots(request)
        until = time.perf_counter() + seconds

        async def caller() -> None:
            while (began := time.perf_counter()) < until:
                await stub.ReportSlots(request)
                times.append(time.perf_counter() - began)

        await asyncio.gather(*(caller() for _ in range(concurrency)))
    return times


async def stream(address: str, kind: str, messages: int) -> None:
    async with opened(address, kind, "user/alice") as channel:
        stub: Any = ResourceManagerServiceStub(channel)
        async for _ in stub.WatchJob(rm_pb2.WatchJobRequest(from_sequence=messages)):
            pass


def measure(kind: str, seconds: float, concurrency: int, messages: int = 20_000) -> Figure:
    ours, theirs = multiprocessing.Pipe()
    shown = credentials("rm")
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(kind, theirs, shown))
    process.start()
    address = ours.recv()

    def cpu() -> float:
        ours.send("cpu")
        spent: float = ours.recv()
        return spent

    asyncio.run(load(address, kind, 0.5, concurrency))  # run once to warm up
    before = cpu()
    times = sorted(asyncio.run(load(address, kind, seconds, concurrency)))
    between = cpu()
    asyncio.run(stream(address, kind, messages))
    after = cpu()
    ours.send("end")
    process.join(10)
    if process.is_alive():
        process.kill()
    return Figure(
        kind=kind,
        calls_per_s=round(len(times) / seconds),
        server_cpu_us_per_call=round((between - before) / len(times) * 1e6, 1),
        server_cpu_us_per_stream_message=round((after - between) / messages * 1e6, 1),
        p50_ms=round(times[len(times) // 2] * 1e3, 2),
        p99_ms=round(times[len(times) * 99 // 100] * 1e3, 2),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    show: Callable[[str], None] = (lambda _text: None) if arguments.json else print
    show(
        f"grpcio {grpc.__version__}, Python {platform.python_version()}, {os.cpu_count()} cpus, "
        f"load {os.getloadavg()[0]:.1f}, {arguments.concurrency} calls at a time"
    )
    show(f"{'server':<18}{'calls/s':>9}{'us/call':>9}{'us/msg':>8}{'p50 ms':>8}{'p99 ms':>8}")
    figures = []
    for kind in KINDS:
        figure = measure(kind, arguments.seconds, arguments.concurrency)
        figures.append(figure)
        show(
            f"{kind:<18}{figure.calls_per_s:>9.0f}{figure.server_cpu_us_per_call:>9.1f}"
            f"{figure.server_cpu_us_per_stream_message:>8.1f}{figure.p50_ms:>8.2f}"
            f"{figure.p99_ms:>8.2f}"
        )
    if arguments.json:
        json.dump([asdict(each) for each in figures], sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Measures what open pages cost a resource manager: `python -m bench.web_streams`.

A resource manager runs in another process, with light executors that send reports. Some clients
read the live stream of the page (`/v1/live`), as open pages do. A job requests and releases slots.
The figures are the CPU time of the resource manager, in percent of a core, with and without
streams.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import ssl
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.identities import authority_of, own_of
from bench.light_cluster import LightCluster, LightJob
from bench.rm_process import RmProcess, free_port
from finegrain.ids import new_id
from finegrain.resources import MIB
from finegrain.v1 import resources_pb2
from tests.finegrain_cli.web.conftest import client_context

REPORT_INTERVAL_S = 3.0
SETTLE_S = 5.0
PROFILE = resources_pb2.ResourceProfile(cpu_milli=1000, task_heap_memory_bytes=256 * MIB)


@dataclass
class Reader:
    """Reads one live stream, and counts its messages and bytes."""

    messages: int = 0
    size: int = 0

    async def read(self, port: int, context: ssl.SSLContext) -> None:
        """Reads until the task is cancelled."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, limit=64 * MIB
        )
        writer.write(b"GET /v1/live HTTP/1.1\r\nHost: rm\r\n\r\n")
        async for line in reader:
            self.size += len(line)
            self.messages += line.startswith(b"data: ")


async def measure(hosts: int, streams: int, seconds: float) -> None:
    """Runs the benchmark, and prints its figures."""
    folder = Path(tempfile.mkdtemp(prefix="finegrain-web-"))
    port = free_port()
    web_port = free_port()
    manager = RmProcess(folder / "rm", port, ("--web-listen", f"127.0.0.1:{web_port}"))
    try:
        manager.start()
        await manager.ready()
        authority = authority_of(manager.state_dir)
        shown = own_of(authority, "viewer/bench").credentials
        context = client_context(shown, "viewer/bench")
        async with LightCluster(manager.address, authority) as cluster, AsyncExitStack() as stack:
            await cluster.register(hosts)
            total_s = 2 * (2 * seconds + SETTLE_S) + 60
            beats = asyncio.create_task(cluster.heartbeats(REPORT_INTERVAL_S, total_s))
            stack.callback(beats.cancel)
            job = await cluster.job()
            await asyncio.sleep(SETTLE_S)
            for count in (0, streams):
                readers = [Reader() for _ in range(count)]
                tasks = [asyncio.create_task(each.read(web_port, context)) for each in readers]
                if count:
                    await asyncio.sleep(SETTLE_S)
                quiet = await share_of(manager, seconds)
                churning = asyncio.create_task(churn(job))
                busy = await share_of(manager, seconds)
                churning.cancel()
                print(
                    f"{count} streams: {quiet:.1f} % of a core without changes, {busy:.1f} % with;"
                    f" {sum(each.messages for each in readers)} messages,"
                    f" {sum(each.size for each in readers) / MIB:.1f} MiB,"
                    f" memory {manager.memory_bytes() / MIB:.0f} MiB"
                )
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, churning, return_exceptions=True)
    finally:
        manager.kill()
        shutil.rmtree(folder)


async def share_of(manager: RmProcess, seconds: float) -> float:
    """Returns the CPU time of the resource manager over some seconds, in percent of a core."""
    before = manager.cpu_s()
    await asyncio.sleep(seconds)
    return 100 * (manager.cpu_s() - before) / seconds


async def churn(job: LightJob) -> None:
    """Requests and releases a slot ten times per second."""
    while True:
        await job.live([new_id()], PROFILE)
        await asyncio.sleep(0.1)


def main() -> None:
    """Reads the command line, and runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--streams", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    chosen = parser.parse_args()
    asyncio.run(measure(chosen.hosts, chosen.streams, chosen.seconds))


if __name__ == "__main__":
    main()

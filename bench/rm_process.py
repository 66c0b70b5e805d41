"""Starts, measures and ends a real resource manager in a separate process, for benchmarks."""

from __future__ import annotations

import asyncio
import compileall
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from bench.identities import authority_of, channel_as
from finegrain.ids import new_id
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.resource_manager_pb2_grpc import ResourceManagerServiceStub

START_TIMEOUT_S = 300.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PROJECT = Path(__file__).parent.parent


@cache
def compile_packages() -> None:
    """Compiles the modules of the resource manager, as an installation does.

    Otherwise, with PYTHONDONTWRITEBYTECODE, each start would spend half a second of CPU on it.
    """
    for package in ("finegrain", "finegrain_cli", "resource_manager"):
        compileall.compile_dir(_PROJECT / package, quiet=1)


class RmProcess:
    """Runs `finegrain rm serve` on loopback. The process writes its log to a file in the parent of
    the state directory.
    """

    def __init__(self, state_dir: Path, port: int, options: Sequence[str] = ()) -> None:
        self.state_dir = state_dir
        self.address = f"127.0.0.1:{port}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.started_at_s = 0.0

    def start(self) -> None:
        """Starts the process without waiting."""
        # Create the state directory and the authority now, because clients may open channels before
        # the process has created both.
        self.state_dir.mkdir(mode=0o711, exist_ok=True)
        authority_of(self.state_dir)
        compile_packages()
        command = [sys.executable, "-m", "finegrain_cli", "rm", "serve"]
        command += ["--state-dir", str(self.state_dir), "--listen", self.address]
        command += ["--metrics-listen", "none", "--log-level", "warning", *self._options]
        self.started_at_s = time.monotonic()
        with (self.state_dir.parent / "rm.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        """Returns the process id."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kills the process, as a crash would."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def channel(self, who: str = "user/alice") -> grpc.aio.Channel:
        """Returns a channel of an identity to this resource manager."""
        return channel_as(authority_of(self.state_dir), who, self.address)

    def cpu_s(self) -> float:
        """Returns the CPU time of the process so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def memory_bytes(self, name: str = "VmRSS") -> int:
        """Returns the resident memory of the process: VmRSS (now) or VmHWM (the maximum)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise LookupError(name)

    async def ready(self) -> float:
        """Waits until the process registers a job. Returns the seconds from the start to the
        registration.
        """
        until = time.monotonic() + START_TIMEOUT_S
        request = rm_pb2.RegisterJobRequest(
            job_id=new_id(), request_id=new_id(), name="first", detached=True
        )
        async with self.channel() as channel:
            rm: Any = ResourceManagerServiceStub(channel)
            while True:
                assert self._process is not None
                assert self._process.poll() is None, "the resource manager ended; see rm.log"
                try:
                    await rm.RegisterJob(request, timeout=START_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    if time.monotonic() > until:
                        raise
                    if error.code() is not grpc.StatusCode.UNAVAILABLE:
                        raise
                    await asyncio.sleep(0.02)
                else:
                    return time.monotonic() - self.started_at_s


def free_port() -> int:
    """Returns a loopback port that no process listens on."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""Tests of the daemon as a process: signals, kill -9, configuration errors."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from finegrain.v1 import cluster_pb2
from finegrain.v1.cluster_pb2_grpc import ClusterServiceStub
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import channel_as, own_of

pytestmark = pytest.mark.full

DAEMON = """
import json, sys
from pathlib import Path
from finegrain.options import ListenOptions
from resource_manager.main import run
from resource_manager.options import ResourceManagerOptions

given = json.loads(sys.argv[1])
listen, state_dir = ListenOptions("127.0.0.1:0"), Path(given.pop("state_dir"))
sys.exit(run(ResourceManagerOptions(state_dir, listen=listen, **{"join_listen": "", **given})))
"""


class Daemon:
    """A resource manager in a separate process."""

    def __init__(self, state_dir: Path, **options: Any) -> None:
        self.state_dir = state_dir
        text = json.dumps({"state_dir": str(state_dir), **options})
        self.process = subprocess.Popen(
            [sys.executable, "-c", DAEMON, text], stderr=subprocess.PIPE, text=True
        )

    def ready(self) -> str:
        """Waits until it serves; returns its address."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            try:
                note = json.loads((self.state_dir / "endpoint.json").read_text())
            except FileNotFoundError:
                time.sleep(0.02)
                continue
            if note["pid"] == self.process.pid:
                address: str = note["address"]
                return address
            time.sleep(0.02)
        raise AssertionError("the daemon does not get ready")

    def ended(self) -> tuple[int, str]:
        """Waits for its end; returns the exit code and its output."""
        _, text = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, text


@contextmanager
def daemon(state_dir: Path, **options: Any) -> Iterator[Daemon]:
    started = Daemon(state_dir, **options)
    try:
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


async def epoch_at(address: str, state_dir: Path) -> int:
    async with channel_as(own_of(state_dir, "user/alice"), address) as opened:
        cluster: Any = ClusterServiceStub(opened)
        answer = await cluster.GetCluster(cluster_pb2.GetClusterRequest())
    epoch: int = answer.rm_epoch
    return epoch


async def test_it_ends_in_order_at_sigterm(tmp_path: Path) -> None:
    with daemon(tmp_path) as started:
        assert await epoch_at(await asyncio.to_thread(started.ready), tmp_path) == 1
        os.kill(started.process.pid, signal.SIGTERM)
        code, text = await asyncio.to_thread(started.ended)
    assert code == 0
    assert not (tmp_path / "endpoint.json").exists()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert events == ["serving", "stopping"]


async def test_after_kill_9_the_next_one_leads_with_a_higher_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        with daemon(tmp_path) as started:
            assert await epoch_at(await asyncio.to_thread(started.ready), tmp_path) == epoch
            os.kill(started.process.pid, signal.SIGKILL)
            assert (await asyncio.to_thread(started.ended))[0] == -signal.SIGKILL


@pytest.mark.parametrize(
    ("options", "word"),
    [
        pytest.param({"strategy": "best"}, "pack, spread or balanced", id="an unknown strategy"),
        pytest.param({"lost_timeout_ms": 10}, "lost_timeout_ms", id="a time-out that is too short"),
        pytest.param({"database_url": "mysql://x/y"}, "mysql", id="an unknown database"),
        pytest.param({"join_listen": "nowhere"}, "join_listen", id="no address to join at"),
    ],
)
def test_what_cannot_work_ends_with_one_clear_line(
    tmp_path: Path, options: dict[str, Any], word: str
) -> None:
    with daemon(tmp_path, **options) as started:
        code, text = started.ended()
    assert code == 1
    (line,) = text.splitlines()
    entry = json.loads(line)
    assert entry["event"] == "cannot_serve"
    assert word in entry["error"]

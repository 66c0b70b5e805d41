"""A whole resource manager on a machine whose power is cut, as a separate process.

    python -m tests.power_cuts.manager STATE_DIR ADDRESS SYNCHRONOUS

SYNCHRONOUS is `full`, as in the product, or `normal`: then SQLite does not sync at commits. The
product has no such option. This module changes the code, to show that the checks find the losses.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import finegrain_client as fg
from finegrain.errors import FinegrainError
from finegrain.options import ListenOptions
from resource_manager.main import run
from resource_manager.options import ResourceManagerOptions
from resource_manager.storage import sqlite_file
from tests.support.components import REPOSITORY

Process = subprocess.Popen[bytes]
READY_S = 60.0
FULL, NORMAL = "synchronous = FULL", "synchronous = NORMAL"


def start(state_dir: Path, address: str, log: IO[bytes], *, synchronous: str = "full") -> Process:
    """Starts a resource manager, which is not ready yet."""
    words: Sequence[str] = (str(state_dir), address, synchronous)
    command = [sys.executable, "-m", "tests.power_cuts.manager", *words]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=log)


async def ready(cluster: fg.Cluster, process: Process) -> int | None:
    """Waits until it serves, and returns its epoch; None: it ended."""
    end = time.monotonic() + READY_S
    while process.poll() is None:
        try:
            info = await cluster.info()
        except FinegrainError:
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.02)
        else:
            return info.rm_epoch
    return None


def main() -> int:
    """Serves until the process is killed."""
    state_dir, address, synchronous = sys.argv[1:]
    if synchronous == "normal":
        changed = tuple(NORMAL if each == FULL else each for each in sqlite_file._PROFILE)
        if changed == sqlite_file._PROFILE:
            raise RuntimeError("the profile says nothing of `synchronous` that could be patched")
        sqlite_file._PROFILE = changed  # type: ignore[assignment]
    options = ResourceManagerOptions(
        state_dir=Path(state_dir),
        listen=ListenOptions(address=address),
        report_interval_ms=500,
        lost_timeout_ms=30_000,
    )
    return run(options)


if __name__ == "__main__":
    sys.exit(main())

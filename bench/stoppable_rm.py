"""Runs a real resource manager in a separate process that a benchmark can stop inside a
transaction.

    .venv/bin/python -m bench.stoppable_rm JSON     (what `StoppableManager.start` does)

The process is an ordinary resource manager with `--standby`, with one difference. If the stop file
names a place in a write transaction, the process stops itself (SIGSTOP) when it reaches this place
the next time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.rm_process import free_port
from finegrain.options import ListenOptions

PLACES = ("before the fence", "after the fence", "after the rows")


def serve(given: dict[str, str]) -> int:
    """Runs a resource manager that stops itself at the place that `stop_file` names."""
    from resource_manager.main import run
    from resource_manager.options import ResourceManagerOptions
    from resource_manager.storage import postgresql_store, prepared

    stop_file = Path(given["stop_file"])

    def maybe_stop(place: str) -> None:
        with suppress(FileNotFoundError):
            if stop_file.read_text() == place:
                stop_file.unlink()
                os.kill(os.getpid(), signal.SIGSTOP)

    fence: Any = postgresql_store.PostgresqlStore._fence
    apply: Any = prepared.PreparedChanges.apply

    def stopping_fence(store: Any, connection: Any) -> bool:
        connection.exec_driver_sql("SELECT 1")  # the transaction has begun
        maybe_stop(PLACES[0])
        holds = bool(fence(store, connection))
        maybe_stop(PLACES[1])
        return holds

    def stopping_apply(changes: Any, *args: Any) -> None:
        apply(changes, *args)
        maybe_stop(PLACES[2])

    patched: Any = postgresql_store.PostgresqlStore
    patched._fence = stopping_fence
    patched = prepared.PreparedChanges
    patched.apply = stopping_apply
    folder = Path(given["folder"])
    return run(
        ResourceManagerOptions(
            state_dir=folder / given["name"],
            database_url=given["database"],
            listen=ListenOptions(address=given["address"], metrics_address=""),
            join_listen="",
            standby=True,
            report_interval_ms=500,
            lost_timeout_ms=10_000,
        )
    )


@dataclass
class StoppableManager:
    """Starts and ends the process. The folder contains the log and the state directory of the
    process.
    """

    name: str
    folder: Path
    database: str
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    process: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        """Returns the state directory."""
        return self.folder / self.name

    @property
    def stop_file(self) -> Path:
        """Returns the file that names the place where the process must stop."""
        return self.folder / f"{self.name}.stop"

    @property
    def pid(self) -> int:
        """Returns the id of the current process."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Starts the process without waiting."""
        given = {
            "name": self.name,
            "folder": str(self.folder),
            "database": self.database,
            "address": self.address,
            "stop_file": str(self.stop_file),
        }
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.stoppable_rm", json.dumps(given)],
                stdout=log,
                stderr=log,
            )

    def is_stopped(self) -> bool:
        """Returns True if the process is stopped."""
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def said(self, event: str) -> int:
        """Returns how often the log has this event."""
        try:
            return (self.folder / f"{self.name}.log").read_text().count(f'"{event}"')
        except FileNotFoundError:
            return 0

    def end(self) -> None:
        """Kills the process, as a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


if __name__ == "__main__":
    sys.exit(serve(json.loads(sys.argv[1])))

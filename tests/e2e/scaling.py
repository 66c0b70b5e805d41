"""Runs `finegrain up --scale`, and finds its executors, including executors that it has left
behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.e2e.driving import Cli, processes_that_name
from tests.support.control_groups import groups_called
from tests.support.patience import PATIENCE_S


@dataclass
class ScaledUp:
    """A running `finegrain up --scale`, and its output when it was ready."""

    cli: Cli
    process: subprocess.Popen[bytes]
    told: dict[str, Any]

    @property
    def shape(self) -> str:
        """The names of its executors begin with this text."""
        return str(self.told["scale"]["shape"])

    @property
    def state_dir(self) -> Path:
        return Path(self.told["state_dir"])

    @property
    def manager_pid(self) -> int:
        note = json.loads((Path(self.told["rm_state_dir"]) / "endpoint.json").read_text())
        return int(note["pid"])

    @property
    def sweeper_pid(self) -> int:
        return next(
            int(entry.name)
            for entry in Path("/proc").glob("[0-9]*")
            if _parent(entry) == self.process.pid
            and b"finegrain_cli.local.sweeper" in _words(entry)
        )

    @property
    def provided(self) -> list[dict[str, Any]]:
        """Requested executors, as the resource manager reports them."""
        found: list[dict[str, Any]] = self.cli.json("providers")["executors"]
        return found

    @property
    def directories(self) -> list[str]:
        """Executors that still have files on disk."""
        return sorted(each.name for each in self.state_dir.glob("provided/executors/[!.]*"))

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Sends a signal; returns the exit code and the output."""
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=2 * PATIENCE_S)
        return self.process.returncode, said.decode()

    def left(self) -> list[str]:
        """Processes and control groups of its executors."""
        words = [f"{pid} {words}" for pid, words in processes_that_name(self.state_dir)]
        return words + groups(self.shape)


@contextmanager
def scaled_up(home: Path, executors_max: int, *flags: str) -> Iterator[ScaledUp]:
    """Starts it, and waits until it is ready."""
    cli = Cli(
        home, extra={"TMPDIR": str(home)}
    )  # this also removes files of a process that was killed
    process = cli.start("up", "--scale", str(executors_max), "-o", "json", *flags)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()
        told = json.loads(line)
        yield ScaledUp(
            replace(cli, manager=told["address"], credentials_file=Path(told["credentials_file"])),
            process,
            told,
        )
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        process.communicate(timeout=2 * PATIENCE_S)


def groups(shape: str) -> list[str]:
    """Control groups of all executors of a shape."""
    return [str(each) for each in groups_called(f"finegrain/{shape}-*")]


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _words(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""


def kill(*pids: int) -> None:
    """Kills all at the same time, as in a crash of the host."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

"""Processes of a cluster that are started, stopped and killed, with their command lines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from task_executor.service.checkpoint import read_document
from tests.support import patience
from tests.support.components import REPOSITORY
from tests.support.membership import give_authority, give_membership
from tests.support.patience import PATIENCE_S

eventually = patience.eventually

T = TypeVar("T")
REPORT_INTERVAL = "500ms"
LOST_TIMEOUT_S = 8.0
CPU_MILLI, MEMORY_MIB = 1000, 512


@dataclass(frozen=True)
class Place:
    """Where a process runs: its address, and the command prefix that puts it there."""

    host: str = "127.0.0.1"
    inside: Sequence[str] = ()


@dataclass
class Daemon:
    """One process of the cluster, of any kind."""

    name: str
    argv: Sequence[str]
    folder: Path
    place: Place = Place()
    process: subprocess.Popen[bytes] | None = None
    stopped: bool = False
    starts: int = 0
    log_offset: int = 0  # where the log of the present process begins

    @property
    def log_file(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"

    @property
    def state_dir(self) -> Path:
        return self.folder / self.name

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self.starts += 1
        with self.log_file.open("ab") as log:
            self.log_offset = log.tell()
            self.process = subprocess.Popen(
                [*self.place.inside, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=environment(self.folder),
            )

    def note(self) -> Mapping[str, Any] | None:
        """Returns the present process's endpoint file, or None if it does not serve yet."""
        if not self.runs:
            raise RuntimeError(f"{self.name} has ended: {self.last_words()}")
        try:
            note = json.loads((self.state_dir / "endpoint.json").read_text())
        except (OSError, ValueError):
            return None
        return note if note["pid"] == self.pid else None

    def await_serving(self) -> None:
        eventually(self.note, f"{self.name} serves")

    def said(self) -> list[str]:
        """Returns what the present process has logged."""
        with self.log_file.open("rb") as log:
            log.seek(self.log_offset)
            return log.read().decode(errors="replace").splitlines()

    def last_words(self) -> str:
        return self.log_file.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """Kills the process, like a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.stopped = False

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Stops the process as planned; returns its exit code."""
        assert self.process is not None
        if self.runs:
            self.process.terminate()
        return self.process.wait(patience_s)

    def suspend(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        if self.stopped and self.runs:
            os.kill(self.pid, signal.SIGCONT)
        self.stopped = False


class Executor(Daemon):
    """A task executor: a front with its helper."""

    def helper_pid(self) -> int:
        """Returns the pid of the process that manages its cgroups; 0: there is none."""
        lock = str(self.state_dir / "helper" / "helper.lock")
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if any(str(fd.readlink()) == lock for fd in (entry / "fd").iterdir()):
                    return int(entry.name)
            except OSError:
                continue
        return 0

    def has_registered(self) -> bool:
        """Returns whether a resource manager has registered the present front."""
        return any('"event": "registered"' in line for line in self.said())

    def kill_helper(self) -> None:
        if pid := self.helper_pid():
            os.kill(pid, signal.SIGKILL)

    def supervisor_pids(self) -> list[int]:
        """Returns the processes that watch tasks and were started by the present helper."""
        helper = self.helper_pid()
        return [pid for pid in children_of(helper) if _is_fork_of(pid, helper)]

    def saved_slots(self) -> dict[str, str]:
        """Returns the slot table on disk: "allocation.generation" to state."""
        state = read_document(self.state_dir / "state.json") or {}
        found = {}
        for each in state.get("slots", ()):
            spec = each["spec"]
            found[f"{spec['allocation_id']}.{spec['generation']}"] = str(each["state"])
        return found


def children_of(pid: int) -> list[int]:
    """Returns the children of a process; none if it has ended."""
    try:
        return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
    except OSError:
        return []


def _is_fork_of(pid: int, helper: int) -> bool:
    """Returns whether a child of the helper runs its code: tasks run other programs."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes()
            == Path(f"/proc/{helper}/cmdline").read_bytes()
        )
    except OSError:
        return False


@dataclass
class Addresses:
    """The addresses of the cluster, which are fixed. So a restarted process has its previous
    address.
    """

    managers: list[str] = field(default_factory=list)

    @property
    def joined(self) -> str:
        return ",".join(self.managers)


def environment(folder: Path) -> dict[str, str]:
    """Returns an environment in which no process finds another cluster of this machine."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FINEGRAIN_", "XDG_"))
    }
    kept |= {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "NO_COLOR": "1"}
    kept["FINEGRAIN_RUN_DIR"] = str(folder / "run")
    kept["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'client'}"
    return kept


FINEGRAIN = (sys.executable, "-m", "finegrain_cli")
QUIET = ("--metrics-listen", "none", "--log-format", "json")


def manager(
    name: str, folder: Path, place: Place, address: str, *, database: str, standby: bool
) -> Daemon:
    """Returns a resource manager, not started yet."""
    give_authority(folder / name)
    times = ("--report-interval", REPORT_INTERVAL, "--lost-timeout", f"{LOST_TIMEOUT_S:g}s")
    store = ("--database", database) if database else ()
    argv = (*FINEGRAIN, "rm", "serve", "--state-dir", str(folder / name), "--listen", address)
    more = ("--standby",) if standby else ()
    return Daemon(name, (*argv, *QUIET, *times, *store, *more), folder, place)


def executor(name: str, folder: Path, place: Place, address: str, managers: str) -> Executor:
    """Returns a task executor with a small share, not started yet."""
    argv = (*FINEGRAIN, "executor", "serve", "--state-dir", str(folder / name))
    where = ("--executor-id", name, "--run-dir", str(folder / "run"), "--listen", address)
    share = ("--cpu", str(CPU_MILLI / 1000), "--memory", f"{MEMORY_MIB}MiB")
    give_membership(folder / name, name)
    tasks = ("--task-user", "self", "--task-kill-grace", "1s", "--stop-tasks-on-exit")
    root = ("--allow-root-tasks",) if os.geteuid() == 0 else ()
    return Executor(
        name, (*argv, *where, *share, "--manager", managers, *tasks, *root, *QUIET), folder, place
    )

"""Runs the command line and daemons as real processes, as people do, and checks what they leave
behind.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import finegrain_client as fg
from finegrain_cli.local.cluster import ExecutorShare, LocalCluster
from finegrain_cli.local.task_user import choose_task_user
from tests.support import patience
from tests.support.components import REPOSITORY
from tests.support.control_groups import groups_called
from tests.support.identities import credentials_file
from tests.support.membership import give_authority, give_membership, log_in
from tests.support.patience import PATIENCE_S

eventually = patience.eventually

T = TypeVar("T")
FINEGRAIN = (sys.executable, "-m", "finegrain_cli")


UNIQUE = re.compile(r"-[0-9a-f]{8}$")


def unique(name: str) -> str:
    """Returns a name that no other executor on this host has, because the kernel's groups have the
    names of executors.
    """
    return f"{name}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of a command."""

    code: int
    stdout: bytes
    stderr: str

    @property
    def text(self) -> str:
        return self.stdout.decode()


@dataclass(frozen=True)
class Cli:
    """`finegrain` in a separate environment, so that it finds no other cluster of this host."""

    home: Path
    manager: str = ""
    credentials_file: Path | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    popen: Mapping[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    module: str = "finegrain_cli"

    def environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FINEGRAIN_", "XDG_"))
        }
        kept |= {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home), "NO_COLOR": "1"}
        # Without this, root finds the clusters of all tests that run at the same time.
        kept["FINEGRAIN_RUN_DIR"] = str(self.home / "run")
        # Test this checkout, whether it is installed or not.
        kept["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'client'}"
        if self.manager:
            kept["FINEGRAIN_MANAGER"] = self.manager
        if self.credentials_file:
            kept["FINEGRAIN_CREDENTIALS"] = str(self.credentials_file)
        return kept | dict(self.extra)

    def start(self, *args: str, **popen: Any) -> subprocess.Popen[bytes]:
        """Starts the command; by default with pipes for its output, and without input."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        options = {"cwd": self.home, "env": self.environment(), **pipes, **self.popen, **popen}
        return subprocess.Popen([self.python, "-m", self.module, *args], **options)

    def __call__(
        self, *args: str, stdin: bytes = b"", patience_s: float = PATIENCE_S, **popen: Any
    ) -> Outcome:
        """The command, to its end."""
        process = self.start(*args, **({"stdin": subprocess.PIPE} | popen))
        try:
            out, err = process.communicate(stdin, patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"{args} did not end: {out!r} {err!r}") from None
        return Outcome(process.returncode, out or b"", (err or b"").decode())

    def run(self, *args: str, **options: Any) -> Outcome:
        """`finegrain run` in a small slot."""
        small = ("--cpu", "0.1", "--memory", "32M")
        return self("run", *small, *args, **options)

    def json(self, *args: str) -> Any:
        """Returns the JSON that a command prints with `-o json`. The command must succeed."""
        outcome = self(*args, "-o", "json")
        assert outcome.code == 0, outcome.stderr
        return json.loads(outcome.stdout)

    def items(self, *args: str) -> list[dict[str, Any]]:
        """The rows of a list."""
        found: list[dict[str, Any]] = self.json(*args)["items"]
        return found

    def error(self, outcome: Outcome) -> str:
        """Returns the one line of an error, without its hint."""
        lines = [line for line in outcome.stderr.splitlines() if line.startswith("finegrain: ")]
        assert len(lines) == 1, outcome.stderr
        assert "Traceback" not in outcome.stderr
        return lines[0].removeprefix("finegrain: ")

    def client(self) -> fg.blocking.Cluster:
        """A blocking client of the same cluster."""
        return fg.blocking.connect(self.manager, credentials=self.credentials_file)

    def settle(self) -> None:
        """Waits until nothing is booked, no request waits, and all capacity is available."""
        with self.client() as cluster:

            def at_zero() -> bool:
                info = cluster.info()
                busy = any(each.available != each.total for each in cluster.executors())
                waiting = any(info.pending_requests.values())
                return not (any(info.allocated.values()) or info.slots or busy or waiting)

            eventually(at_zero, "the books come to zero")


@dataclass
class Small:
    """A cluster of one test module: its processes, its command line, its client."""

    cluster: LocalCluster
    cli: Cli

    @property
    def names(self) -> list[str]:
        return [note.executor_id for note in self.cluster.notes]

    def connect(self) -> fg.Cluster:
        """An asyncio client of the administrator."""
        return fg.connect(self.cluster.address, credentials=self.cluster.credentials_file)

    def log_in(self, who: str) -> Path:
        """A credentials file of a member who has joined with a token."""
        return log_in(self.cluster.address, self.cluster.credentials_file, self.cli.home, who)

    def slot_groups(self) -> list[Path]:
        """Control groups of slots that exist now."""
        return [group for name in self.names for group in slot_groups(name)]


@contextmanager
def small_cluster(
    home: Path,
    *,
    executors: int = 2,
    cpu_milli: int = 1000,
    memory_bytes: int = 512 * fg.MIB,
    **options: Any,
) -> Iterator[Small]:
    """Runs a resource manager, and executors with shares so small that every host has them. Checks
    that nothing is left at the end.
    """
    shares = [
        ExecutorShare(
            unique(f"e2e-{letter}"),
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            labels=(("zone", letter),),
        )
        for letter in "abcdefgh"[:executors]
    ]
    # Tests give tasks files that only this user can read.
    own = choose_task_user("self")
    with LocalCluster(shares=shares, task_user=own, **options) as cluster:
        yield Small(cluster, Cli(home, cluster.address, cluster.credentials_file))


def slot_groups(executor_id: str) -> list[Path]:
    """Control groups of an executor's slots, in all hierarchies."""
    return groups_called(f"finegrain/{executor_id}/slots/*")


def free_address() -> str:
    """Returns an address that a daemon can use again after it was killed: its port is below the
    ports that the kernel chooses by itself.
    """
    while True:
        port = 10_000 + uuid.uuid4().int % 20_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return f"127.0.0.1:{port}"


class Daemon:
    """`finegrain rm serve` or `finegrain executor serve`: started, killed, started again."""

    def __init__(self, cli: Cli, state_dir: Path, *command: str) -> None:
        self.cli, self.state_dir = cli, state_dir
        self.command = (*command, "--state-dir", str(state_dir), "--log-format", "json")
        self.log_file = state_dir.with_name(f"{state_dir.name}.log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self.log_file.read_text() if self.log_file.exists() else ""

    def start(self, *more: str) -> None:
        with self.log_file.open("ab") as log:
            self.process = self.cli.start(*self.command, *more, stdout=log, stderr=log)

    def endpoint(self) -> dict[str, Any]:
        """Waits until the daemon serves, and returns its address."""

        def look() -> dict[str, Any] | None:
            assert self.process is not None
            assert self.process.poll() is None, self.log[-3000:]
            try:
                note = json.loads((self.state_dir / "endpoint.json").read_text())
            except (OSError, ValueError):
                return None
            return note if note["pid"] == self.process.pid else None

        return eventually(look, f"{self.command[0]} serves")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """Kills the daemon, as a crash does."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self, patience_s: float = PATIENCE_S) -> int:
        """Waits for the end of the daemon; returns its exit code."""
        assert self.process is not None
        return self.process.wait(patience_s)

    def stop(self) -> int:
        """Stops the daemon as planned; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.end()

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None


SOON_LOST = ("--lost-timeout", "5s")
"""Options for a resource manager, if the test kills an executor and waits for its loss."""


class Daemons:
    """A resource manager and executors as an administrator runs them, at fixed addresses.

    An executor may be silent for longer than a busy machine starves it, unless a test starts the
    resource manager with `SOON_LOST`.
    """

    def __init__(self, home: Path, database: str = "") -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fg-e2e-"))  # short: sockets lie in it
        self.address = free_address()
        self._bare = Cli(home)
        where = ("--listen", self.address, "--metrics-listen", "none", "--web-listen", "none")
        quick = ("--report-interval", "500ms", "--lost-timeout", "60s")
        store = ("--database", database) if database else ()
        self.manager = Daemon(self._bare, self.folder / "rm", "rm", "serve", *where, *quick, *store)
        # All tests use the same authority. So a client can have credentials before a daemon runs.
        give_authority(self.folder / "rm")
        self.credentials_file = credentials_file(self.folder, "operator/root", self.address)
        self.cli = replace(self._bare, manager=self.address, credentials_file=self.credentials_file)
        self.patient_cli = replace(self.cli, module="tests.support.patient_cli")
        """Options for commands that continue while the resource manager is restarted."""
        self.executors: list[Daemon] = []

    def executor(self, name: str, *more: str) -> Daemon:
        """An executor with a small share, not started yet. Other tests run at the same time on this
        host, so the name must come from `unique`.
        """
        assert UNIQUE.search(name), f"{name} is not unique on this host; use unique()"
        as_root = ("--allow-root-tasks", "--task-user", "self") if os.geteuid() == 0 else ()
        here = ("--executor-id", name, "--run-dir", str(self.folder / "run"))
        addresses = ("--manager", self.address, "--listen", "127.0.0.1:0")
        share = ("--cpu", "1", "--memory", "512MiB", "--task-kill-grace", "2s")
        no_metrics = ("--metrics-listen", "none")
        give_membership(self.folder / name, name)
        daemon = Daemon(
            self._bare,
            self.folder / name,
            *(
                "executor",
                "serve",
                *here,
                *addresses,
                *share,
                *no_metrics,
                *as_root,
                "--stop-tasks-on-exit",
                *more,
            ),
        )
        self.executors.append(daemon)
        return daemon

    def await_executors(self, *names: str) -> None:
        """Waits until the resource manager reports all of these executors as active."""

        def all_active() -> bool:
            rows = self.cli.items("executors")
            active = {each["executor_id"] for each in rows if each["state"] == "ACTIVE"}
            return active.issuperset(names)

        eventually(all_active, f"{names} are active")

    def connect(self) -> fg.Cluster:
        return fg.connect(self.address, credentials=self.credentials_file)

    def _left(self) -> list[str]:
        """Processes and groups of this test."""
        left = [str(each) for each in processes_that_name(self.folder)]
        return left + [str(each) for one in self.executors for each in slot_groups(name_of(one))]

    def clean_up(self) -> None:
        """Stops everything in order, and checks that nothing is left."""
        for daemon in self.executors:
            if daemon.process is None:
                continue
            if not daemon.runs():
                daemon.start()  # takes over the slots that exist, to free them
            daemon.endpoint()
            daemon.process.terminate()
        for daemon in self.executors:
            if daemon.process is not None:
                daemon.end()
        if self.manager.runs():
            self.manager.stop()
        # A helper that stops removes its groups after its front has ended.
        end = time.monotonic() + PATIENCE_S
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, left


def name_of(executor: Daemon) -> str:
    return executor.state_dir.name


def helper_pid(executor: Daemon) -> int:
    """The process that holds this executor's cgroups and tasks."""
    lock = str(executor.state_dir / "helper" / "helper.lock")
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) == lock for fd in (entry / "fd").iterdir()):
                return int(entry.name)
        except OSError:
            continue
    raise LookupError("no helper")


def processes_that_name(*marks: str | Path) -> list[tuple[int, str]]:
    """Returns the running processes whose command line contains one of these texts: pid and
    words.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(entry.name) != os.getpid() and any(str(mark) in words for mark in marks):
            found.append((int(entry.name), words))
    return found


def gone(*marks: str) -> Callable[[], bool]:
    """Returns True if no command line contains any of the marks any more."""
    return lambda: not processes_that_name(*marks)


def finish(process: subprocess.Popen[bytes], patience_s: float = PATIENCE_S) -> Outcome:
    """The end of a command that was started."""
    out, err = process.communicate(timeout=patience_s)
    return Outcome(process.returncode, out or b"", (err or b"").decode())


def read_until(process: subprocess.Popen[bytes], words: bytes) -> bytes:
    """Reads the output until it contains the words; returns the output."""
    assert process.stdout is not None
    said = b""
    while words not in said:
        data = os.read(process.stdout.fileno(), 65536)
        assert data, f"it ended without {words!r}: {said!r}"
        said += data
    return said


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """The objects of complete lines."""
    return [json.loads(line) for line in data.decode().splitlines(keepends=True) if "\n" in line]


def interrupt(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> None:
    """Sends a signal to a running command."""
    assert process.poll() is None
    process.send_signal(number)


def python(code: str, *args: str) -> Sequence[str]:
    """A command that runs a program text."""
    return (sys.executable, "-c", code, *args)

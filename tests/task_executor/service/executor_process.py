"""A task executor in a separate process, with the real helper and the real kernel."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finegrain.credentials import write_credentials
from task_executor.membership import CREDENTIALS_FILE
from tests.support import identities
from tests.support.components import REPOSITORY
from tests.support.control_groups import groups_called
from tests.support.patience import PATIENCE_S

GIB = 1 << 30
_PROGRAM = """
import json, sys
from importlib import import_module
from pathlib import Path
from finegrain.options import ListenOptions, LogOptions
from task_executor import main
from task_executor.options import TaskExecutorOptions
told = json.loads(sys.argv[1])
intervals = told.pop("intervals")
serve = main._serve_until_signal
async def serve_with_intervals(prepared):
    for name, seconds in intervals.items():
        module, _, constant = name.rpartition(".")
        assert hasattr(import_module(module), constant), name
        setattr(import_module(module), constant, seconds)
    await serve(prepared)
if intervals:
    main._serve_until_signal = serve_with_intervals
for name in told:
    if name.endswith(("_dir", "_file", "_socket")):
        told[name] = Path(told[name])
listen = ListenOptions(address=told.pop("address"), metrics_address="127.0.0.1:0")
log = LogOptions(level="debug", format="json")
assert "grpc" not in sys.modules, "grpc before the helper"
sys.exit(main.run(TaskExecutorOptions(listen=listen, log=log, **told)))
"""

_SERVICE = "task_executor.service"
QUICK_DEVICES = {
    f"{_SERVICE}.device_watch.READ_EVERY_S": 0.1,
    f"{_SERVICE}.device_watch.CONFIRM_S": 0.05,
    f"{_SERVICE}.host_sync.SWEEP_S": 0.2,
    f"{_SERVICE}.mps.CHECK_EVERY_S": 0.1,
    f"{_SERVICE}.mps.RETRY_S": (0.2, 0.5),
    f"{_SERVICE}.parking._LOOK_EVERY_S": 0.05,
    f"{_SERVICE}.usage.MEASURE_S_MIN": 0.1,
    f"{_SERVICE}.usage.SEND_S_MIN": 0.1,
}
"""Intervals with which devices are read and reported, so that tests of devices wait little."""


@dataclass
class ExecutorProcess:
    """`start` starts the executor, `kill` kills it, and `clean_up` removes everything of it."""

    folder: Path
    manager: str
    options: dict[str, Any] = field(default_factory=dict)  # None: not given
    environment: dict[str, str] = field(default_factory=dict)
    begins: tuple[str, ...] = ()  # a command that executes the rest of the line
    intervals: dict[str, Any] = field(default_factory=dict)  # constants of the front, by name
    joined: bool = True  # False: it has no certificate at its first start
    cwd: Path = REPOSITORY  # its code runs, unless the environment names another
    process: subprocess.Popen[bytes] | None = None

    @property
    def state_dir(self) -> Path:
        return self.folder / "state"

    @property
    def executor_id(self) -> str:
        return f"test-{self.folder.name}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def start(self, **changes: Any) -> None:
        self.folder.chmod(0o711)  # tasks of other users have scratch in it
        self.give_credentials()
        told = {
            "state_dir": str(self.state_dir),
            "run_dir": str(self.folder / "run"),
            "managers": [self.manager],
            "executor_id": self.executor_id,
            "address": "127.0.0.1:0",
            "memory_bytes": GIB,
            "task_user": "self",
            "allow_root_tasks": True,
            "task_kill_grace_ms": 2_000,
            "intervals": self.intervals,
        } | self.options
        told = {name: value for name, value in (told | changes).items() if value is not None}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.begins, sys.executable, "-c", _PROGRAM, json.dumps(told)],
                cwd=self.cwd,
                env=os.environ | {"TMPDIR": str(self.folder)} | self.environment,  # scratch: ours
                stdout=log,
                stderr=log,
            )

    def give_credentials(self, executor_id: str = "") -> None:
        """Writes the certificate with which the executor starts without a token."""
        path = self.state_dir / CREDENTIALS_FILE
        if not path.exists() and self.joined:
            self.state_dir.mkdir(exist_ok=True)
            who = f"executor/{executor_id or self.executor_id}"
            write_credentials(path, identities.credentials(who))

    def endpoint(self) -> dict[str, Any]:
        """Returns the content of `endpoint.json` of the running front."""
        path, end = self.state_dir / "endpoint.json", time.monotonic() + PATIENCE_S
        while True:
            with suppress(OSError, ValueError):
                content: dict[str, Any] = json.loads(path.read_text())
                if self.process is None or content["pid"] == self.process.pid:
                    return content
            assert time.monotonic() < end, self.log[-3000:]
            assert self.exit_code is None, self.log[-3000:]
            time.sleep(0.02)

    @property
    def exit_code(self) -> int | None:
        return self.process.poll() if self.process else None

    def kill(self) -> None:
        """Kills the front, as in a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    async def stop(self) -> int:
        """Stops the front as planned; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    def output(self, task_id: str) -> bytes:
        """Returns what a task has written so far, without asking the executor."""
        path = self.state_dir / "helper" / "tasks" / task_id / "stdout.log"
        return path.read_bytes() if path.exists() else b""

    def helper_pid(self) -> int:
        """Returns the pid of the helper that holds this executor's lock."""
        lock = str(self.state_dir / "helper" / "helper.lock")
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if lock in (_target(fd) for fd in (entry / "fd").iterdir()):
                    return int(entry.name)
        raise LookupError("no helper")

    def has_helper(self) -> bool:
        """Returns whether a helper runs."""
        with suppress(LookupError):
            return self.helper_pid() > 0
        return False

    def clean_up(self) -> None:
        """Ends front, helper and tasks, and removes the groups, in whatever state they are."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        while self.has_helper():
            with suppress(LookupError, ProcessLookupError):
                os.kill(self.helper_pid(), signal.SIGKILL)
            time.sleep(0.01)
        for group in self.groups():
            for state in group.rglob(
                "freezer.state"
            ):  # a supervisor may die in the middle of a kill
                with suppress(OSError):
                    state.write_text("THAWED")
            for procs in sorted(group.rglob("cgroup.procs"), reverse=True):
                for pid in procs.read_text().split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
        end = time.monotonic() + PATIENCE_S
        while self.groups() and time.monotonic() < end:
            for group in self.groups():
                for directory in sorted([*group.rglob("*/"), group], reverse=True):
                    with suppress(OSError):
                        directory.rmdir()
            time.sleep(0.02)
        assert not self.groups(), self.groups()

    def groups(self) -> list[Path]:
        """Returns the control groups of this executor in all hierarchies."""
        return groups_called(f"finegrain/test-{self.folder.name}")


def _target(link: Path) -> str:
    """Returns the path to which a descriptor points; empty if it was closed meanwhile."""
    try:
        return str(link.readlink())
    except OSError:
        return ""

"""One daemon as a child process: started with ready-made options, told to stop, listened to.

Parent and child are both in here. The child gets its options over its standard input, which stays
open: when the parent is gone, however it went, the child reads the end of it and stops in order.
Decides nothing about what the daemons are told.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from resource_manager.options import ResourceManagerOptions
from task_executor.options import TaskExecutorOptions

Options = ResourceManagerOptions | TaskExecutorOptions

ENDPOINT_FILE = "endpoint.json"
NOT_FOR_CHILDREN = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class DaemonProcess:
    """A daemon in a process and session of its own, so that Ctrl-C reaches the parent alone."""

    def __init__(
        self, name: str, options: Options, log_file: Path, *, temporary_dir: Path, show_log: bool
    ) -> None:
        self.name = name
        self.options = options
        self._temporary_dir = temporary_dir
        self._log_file = log_file
        self._show_log = show_log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, again if it has ended."""
        environment = {k: v for k, v in os.environ.items() if k not in NOT_FOR_CHILDREN}
        environment["TMPDIR"] = str(self._temporary_dir)  # tasks' scratch directories lie in it
        with self._log_file.open("ab") as log:
            # A session that the child leads: the terminal's signals go to the parent alone.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=None if self._show_log else log,
                env=environment,
                start_new_session=True,
            )
        pipe = self._process.stdin
        assert pipe is not None  # noqa: S101 - it was asked for above
        try:
            pickle.dump(self.options, pipe)
            pipe.flush()
        except BrokenPipeError:
            pass  # it died at once; who asks for its state learns so

    @property
    def pid(self) -> int:
        """Its process id; 0 before the start."""
        return self._process.pid if self._process else 0

    def exit_code(self) -> int | None:
        """None while it runs, or before it was started."""
        return self._process.poll() if self._process else None

    def runs(self) -> bool:
        """Whether it lives."""
        return self._process is not None and self._process.poll() is None

    def endpoint(self) -> dict[str, Any] | None:
        """Where it listens, once it does."""
        try:
            note = json.loads((self.options.state_dir / ENDPOINT_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) and note.get("pid") == self.pid else None

    def terminate(self) -> None:
        """Asks it to stop in order."""
        if self.runs() and self._process:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Waits for its end; whether it came."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        if self._process.stdin:
            self._process.stdin.close()
        return True

    def kill(self) -> None:
        """Ends it without order."""
        if self.runs() and self._process:
            self._process.kill()

    def last_words(self) -> str:
        """The last thing that it logged, as text; empty if nothing is to be read."""
        try:
            lines = self._log_file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        line = next((line for line in reversed(lines) if line.strip()), "")
        try:
            logged = json.loads(line)
            return str(logged.get("error") or logged.get("event") or line)
        except (ValueError, AttributeError):
            return line.removeprefix("finegrain: ")


def main() -> int:
    """The child: takes its options, serves until it is told to stop or the parent is gone."""
    options = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent, over its own pipe
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if isinstance(options, ResourceManagerOptions):
        from resource_manager.main import run as run_resource_manager

        return run_resource_manager(options)
    from task_executor.main import run as run_task_executor

    return run_task_executor(options)


def _stop_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())

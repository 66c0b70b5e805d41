"""Runs one daemon as a child process: starts it, stops it, and reads its last log line.

This module contains the code of the parent and of the child. The child receives its options over
standard input, which stays open. When the parent ends, even by SIGKILL, the child reads the end of
the input and stops in an orderly way.
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
    """A daemon in a separate process and a separate session. So Ctrl-C reaches only the parent
    process.
    """

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
        """Starts the daemon. Another call is allowed after the daemon has ended."""
        environment = {k: v for k, v in os.environ.items() if k not in NOT_FOR_CHILDREN}
        environment["TMPDIR"] = str(self._temporary_dir)  # for the tasks' scratch directories
        with self._log_file.open("ab") as log:
            # Start the child in a new session, so that the child gets no signals from the terminal.
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
            pass  # the daemon has already ended, as `runs` and `exit_code` show

    @property
    def pid(self) -> int:
        """The process id, or 0 before the start."""
        return self._process.pid if self._process else 0

    def exit_code(self) -> int | None:
        """Returns the exit code, or None if the daemon runs or was never started."""
        return self._process.poll() if self._process else None

    def runs(self) -> bool:
        """Returns True if the process runs."""
        return self._process is not None and self._process.poll() is None

    def endpoint(self) -> dict[str, Any] | None:
        """Returns the content of the daemon's endpoint file: the daemon's addresses and its pid.
        Returns None until the daemon serves.

        The method ignores a file with another pid, because an earlier process has written it.
        """
        try:
            note = json.loads((self.options.state_dir / ENDPOINT_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) and note.get("pid") == self.pid else None

    def terminate(self) -> None:
        """Orders the daemon to stop in an orderly way (SIGTERM)."""
        if self.runs() and self._process:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Waits until the process has ended. Returns False if the process still runs after the
        timeout.
        """
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
        """Kills the process (SIGKILL)."""
        if self.runs() and self._process:
            self._process.kill()

    def last_words(self) -> str:
        """Returns the last line of the log. If the line is JSON, returns only its message. If the
        log has no line, returns an empty text.
        """
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
    """Runs the child: reads its options, and serves until SIGTERM or the parent's end."""
    options = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our parent, over its own pipe
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    if isinstance(options, ResourceManagerOptions):
        from finegrain_cli.web.serving import serve_web
        from resource_manager.main import run as run_resource_manager

        return run_resource_manager(options, serve_web)
    from task_executor.main import run as run_task_executor

    return run_task_executor(options)


def _stop_with_parent() -> None:
    # The end of the input means that the parent has ended, even if it was killed.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())

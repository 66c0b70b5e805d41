"""Starts a runner in the background, in a separate session. The log of the runner is beside the
state file.

A batch has started when its runner has a job and has reported progress.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError, Reason
from finegrain_cli.connection import resolve_target
from finegrain_cli.context import current
from finegrain_cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from finegrain_client.batch.status import BatchStatus

START_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.05
TAIL_BYTES = 2_000
LOG = ".log"
PREFIX = "finegrain: "
ERROR_LINE = re.compile(r"finegrain: (.*) \[([A-Z0-9_]+)\]")


class NotStartedError(FinegrainError):
    """The runner in the background ended before the batch started.

    The exception has the error message and the error code that the runner printed, and the runner's
    exit code.
    """

    def __init__(self, exit_code: int, log: Path, output: str) -> None:
        line = next((each for each in output.splitlines() if each.startswith(PREFIX)), output)
        found = ERROR_LINE.fullmatch(line)
        message, code = found.groups() if found else (line, Reason.INTERNAL)
        reason = Reason(code) if code in list(Reason) else Reason.INTERNAL
        super().__init__(
            message or f"the runner ended with exit code {exit_code} before the work had started",
            reason=reason,
            details={"log_file": log, "exit_code": exit_code},
        )
        self.exit_code = exit_code


def log_file_of(state_file: Path) -> Path:
    """Returns the log file of a batch's runner."""
    return state_file.with_name(state_file.name + LOG)


def start_detached(state_file: Path) -> BatchStatus:
    """Starts a runner that continues after the end of this process and its terminal. Waits for the
    runner's first progress.

    After `START_TIMEOUT_S` the function returns even if the runner has not reported progress yet.

    Raises:
        NotStartedError: the runner ended with an error.
    """
    from finegrain_client.batch.status import read_status

    start_time = datetime.now(UTC)

    def has_started(pid: int) -> bool:
        batch = read_status(state_file)
        update_time = batch.progress.update_time
        # Ignore the progress of an earlier runner, because this progress does not show that the new
        # runner has started.
        is_working = batch.runner_pid == pid and bool(batch.job_id)
        return is_working and update_time is not None and update_time > start_time

    start_runner(["batch", "--runner", str(state_file)], state_file, has_started)
    return read_status(state_file)


def start_runner(
    arguments: Sequence[str], state_file: Path, has_started: Callable[[int], bool]
) -> None:
    """Starts a command that continues after the end of this process and its terminal. Waits until
    the command has started.

    After `START_TIMEOUT_S` the function returns even if the command has not started yet.

    Args:
        arguments: arguments of `finegrain`.
        state_file: the state file. The log is written to the same directory.
        has_started: a function that returns True if the process with this pid works on the state
            file.

    Raises:
        NotStartedError: the command ended with an error.
    """
    log = log_file_of(state_file)
    # The log possibly contains an error of an earlier runner, which must not be reported again.
    log_offset = log.stat().st_size if log.exists() else 0
    deadline = time.monotonic() + START_TIMEOUT_S
    process = _start(arguments, log)
    while True:
        # Call `poll` before `has_started`. After `poll` has reported the end of the runner, the
        # runner writes nothing more. So `has_started` then reads the runner's last progress.
        exit_code = process.poll()
        started = has_started(process.pid)
        # THREADS_FAILED does not mean that the start has failed: the runner has started, and its
        # short work has already ended.
        if exit_code not in (None, ExitCode.OK, ExitCode.THREADS_FAILED):
            raise NotStartedError(exit_code or 0, log, _last_output(log, log_offset))
        if started or exit_code is not None or time.monotonic() > deadline:
            return
        time.sleep(POLL_INTERVAL_S)


def _start(arguments: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # The runner does not get the flags of this command. So pass the values of the flags as
    # environment variables.
    target = resolve_target()
    environment = dict(os.environ) | {"FINEGRAIN_MANAGER": ",".join(target.addresses)}
    if target.file is not None:
        environment["FINEGRAIN_CREDENTIALS"] = str(target.file.absolute())
    if config_file := current().config_file:
        environment["FINEGRAIN_CONFIG"] = str(Path(config_file).absolute())
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            # With -P, modules in the current directory cannot replace modules of Python.
            [sys.executable, "-P", "-m", "finegrain_cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=environment,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)


def _last_output(log: Path, log_offset: int) -> str:
    with log.open("rb") as file:
        file.seek(max(log_offset, log.stat().st_size - TAIL_BYTES))
        return file.read().decode("utf-8", errors="replace").strip()

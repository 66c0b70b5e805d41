"""Starts a batch in the background: a runner in its own session, with a log beside the state file.

The start is complete when the runner has a job and has reported progress.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
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

    It has the error that the runner printed, with its code, and the runner's exit code.
    """

    def __init__(self, exit_code: int, log: Path, output: str) -> None:
        line = next((each for each in output.splitlines() if each.startswith(PREFIX)), output)
        found = ERROR_LINE.fullmatch(line)
        message, code = found.groups() if found else (line, Reason.INTERNAL)
        reason = Reason(code) if code in list(Reason) else Reason.INTERNAL
        super().__init__(
            message or f"the runner ended with exit code {exit_code} before the batch had started",
            reason=reason,
            details={"log_file": log, "exit_code": exit_code},
        )
        self.exit_code = exit_code


def log_file_of(state_file: Path) -> Path:
    """Returns the log file of a batch's runner."""
    return state_file.with_name(state_file.name + LOG)


def start_detached(state_file: Path) -> BatchStatus:
    """Starts a runner that outlives this process and its terminal; waits for its first progress.

    After `START_TIMEOUT_S` the function returns even if the runner has reported nothing yet.

    Raises:
        NotStartedError: the runner ended with an error.
    """
    from finegrain_client.batch.status import read_status

    log = log_file_of(state_file)
    # The log is appended to, and an error of an earlier runner must not be reported again.
    log_offset = log.stat().st_size if log.exists() else 0
    start_time, deadline = datetime.now(UTC), time.monotonic() + START_TIMEOUT_S
    process = _start(state_file, log)
    while True:
        exit_code = process.poll()  # polled before the read: a runner that has ended writes no more
        batch = read_status(state_file)
        # THREADS_FAILED is an outcome of a short batch, not a failure to start.
        if exit_code not in (None, ExitCode.OK, ExitCode.THREADS_FAILED):
            raise NotStartedError(exit_code or 0, log, _last_output(log, log_offset))
        update_time = batch.progress.update_time
        # Progress of an earlier runner does not count as a start of this one.
        is_working = batch.runner_pid == process.pid and bool(batch.job_id)
        has_started = is_working and update_time is not None and update_time > start_time
        if has_started or exit_code is not None or time.monotonic() > deadline:
            return batch
        time.sleep(POLL_INTERVAL_S)


def _start(state_file: Path, log: Path) -> subprocess.Popen[bytes]:
    # The runner gets none of this command's flags, so they become environment variables.
    target = resolve_target()
    environment = dict(os.environ) | {"FINEGRAIN_MANAGER": ",".join(target.addresses)}
    if target.token_file is not None:
        environment["FINEGRAIN_TOKEN_FILE"] = str(target.token_file.absolute())
    if config_file := current().config_file:
        environment["FINEGRAIN_CONFIG"] = str(Path(config_file).absolute())
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            # -P: modules in the current directory must not replace Python's.
            [sys.executable, "-P", "-m", "finegrain_cli", "batch", "--runner", str(state_file)],
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

"""Follows or stops a batch that another process works on.

Ctrl-C ends only the display; the batch continues.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import ConfigurationError, FailedPrecondition
from finegrain_cli.batch.naming import command_for
from finegrain_cli.batch.progress import display
from finegrain_cli.text.output import say

if TYPE_CHECKING:
    from finegrain_client.batch.status import BatchStatus

POLL_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 60.0


def follow(path: Path, *, quiet: bool) -> BatchStatus:
    """Shows the progress of a batch until no process works on it.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the batch continues.
    """
    from finegrain_client.batch.status import read_status

    spec = read_status(path).spec
    try:
        with display(spec.name, spec.threads, quiet=quiet) as shown:
            while (batch := read_status(path)).is_worked_on:
                shown.show(batch.progress)
                time.sleep(POLL_INTERVAL_S)
            shown.show(batch.progress)
    except KeyboardInterrupt:
        say(
            f"finegrain: the batch continues in the background; {command_for(path)} shows it "
            f"again, {command_for(path, '--stop')} stops it"
        )
        raise
    return batch


def stop(path: Path) -> BatchStatus:
    """Asks the runner of a batch to stop, and waits until no process works on it.

    Raises:
        FailedPrecondition: the runner is on another host.
        ConfigurationError: the runner does not end, or belongs to another user.
    """
    from finegrain_client.batch.status import read_status

    signalled_pid = 0
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (batch := read_status(path)).is_worked_on:
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"pid {batch.runner_pid} still runs the batch after {STOP_TIMEOUT_S:.0f} s; kill "
                "that process, finished work is not lost",
                details={"pid": batch.runner_pid},
            )
        if batch.runner_host not in ("?", socket.gethostname()):
            raise FailedPrecondition(
                f"pid {batch.runner_pid} on {batch.runner_host} runs the batch; stop it there",
                details={"pid": batch.runner_pid, "host": batch.runner_host},
            )
        if batch.runner_pid > 0 and signalled_pid != batch.runner_pid:  # a second SIGINT ends it
            signalled_pid = batch.runner_pid
            _interrupt(signalled_pid)
        time.sleep(POLL_INTERVAL_S / 5)
    return batch


def _interrupt(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        pass  # it ended in the meantime
    except PermissionError:
        raise ConfigurationError(
            f"pid {pid}, which runs the batch, belongs to another user", details={"pid": pid}
        ) from None

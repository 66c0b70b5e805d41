"""A batch that somebody else works on: shown while it gets on, or told to stop.

Decides what Ctrl-C means for whoever only looks: the batch goes on without them.
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
    """Shows how a batch gets on until nobody works on it any more.

    Raises:
        KeyboardInterrupt: Ctrl-C; nothing but this looking ends.
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
            f"finegrain: the batch goes on without you; {command_for(path)} shows it again,"
            f" {command_for(path, '--stop')} stops it"
        )
        raise
    return batch


def stop(path: Path) -> BatchStatus:
    """Tells whoever works on a batch to stop, and waits until nobody does.

    Raises:
        FailedPrecondition: somebody works on it on another host.
        ConfigurationError: its runner does not end, or is not ours.
    """
    from finegrain_client.batch.status import read_status

    signalled_pid = 0
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (batch := read_status(path)).is_worked_on:
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"pid {batch.runner_pid} still works on it after {STOP_TIMEOUT_S:.0f} s; kill it,"
                " nothing of what is done is lost",
                details={"pid": batch.runner_pid},
            )
        if batch.runner_host not in ("?", socket.gethostname()):
            raise FailedPrecondition(
                f"pid {batch.runner_pid} on {batch.runner_host} works on it; stop it there",
                details={"pid": batch.runner_pid, "host": batch.runner_host},
            )
        if batch.runner_pid > 0 and signalled_pid != batch.runner_pid:  # once: twice means at once
            signalled_pid = batch.runner_pid
            _interrupt(signalled_pid)
        time.sleep(POLL_INTERVAL_S / 5)
    return batch


def _interrupt(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        pass  # it has just ended
    except PermissionError:
        raise ConfigurationError(
            f"pid {pid}, which works on it, belongs to somebody else", details={"pid": pid}
        ) from None

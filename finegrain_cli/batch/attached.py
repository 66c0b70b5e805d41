"""Follows or stops a batch on which another process works.

Ctrl-C ends only the display, and the batch continues.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from finegrain.errors import ConfigurationError, FailedPrecondition
from finegrain_cli.batch.naming import command_for
from finegrain_cli.batch.progress import display
from finegrain_cli.text.output import say

if TYPE_CHECKING:
    from finegrain_client.batch.status import BatchStatus

S = TypeVar("S", bound="WorkedOn")

POLL_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 60.0


def follow(path: Path, *, quiet: bool) -> BatchStatus:
    """Shows the progress of a batch until no process works on it.

    Raises:
        KeyboardInterrupt: the user pressed Ctrl-C. The batch continues.
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
    """Interrupts the runner of a batch, and waits until no process works on the batch.

    Raises:
        FailedPrecondition: the runner is on another host.
        ConfigurationError: the runner does not end, or belongs to another user.
    """
    from finegrain_client.batch.status import read_status

    return stop_runner(lambda: read_status(path), "batch")


class WorkedOn(Protocol):
    """The status of a batch or job. A runner possibly works on the batch or job."""

    @property
    def is_worked_on(self) -> bool:
        """True if a runner works on the batch or job."""

    @property
    def runner_pid(self) -> int:
        """Process id of the runner, or 0 if the process id is not known."""

    @property
    def runner_host(self) -> str:
        """Host of the runner, or "?" if the host is not known."""


def stop_runner(status: Callable[[], S], what: str) -> S:
    """Interrupts the runner of a batch or job, and waits until no runner works on the batch or job.
    Returns the last status.

    Args:
        status: a function that reads the current status.
        what: "batch" or "job".

    Raises:
        FailedPrecondition: the runner is on another host.
        ConfigurationError: the runner does not end, or belongs to another user.
    """
    signalled_pid = 0
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while (found := status()).is_worked_on:
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"pid {found.runner_pid} still runs the {what} after {STOP_TIMEOUT_S:.0f} s; kill "
                "that process, finished work is not lost",
                details={"pid": found.runner_pid},
            )
        if found.runner_host not in ("?", socket.gethostname()):
            raise FailedPrecondition(
                f"pid {found.runner_pid} on {found.runner_host} runs the {what}; stop it there",
                details={"pid": found.runner_pid, "host": found.runner_host},
            )
        # Send only one SIGINT to each runner, because a second SIGINT would end the runner before
        # it has cleaned up.
        if found.runner_pid > 0 and signalled_pid != found.runner_pid:
            signalled_pid = found.runner_pid
            _interrupt(signalled_pid, what)
        time.sleep(POLL_INTERVAL_S / 5)
    return found


def _interrupt(pid: int, what: str) -> None:
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        pass  # the runner ended in the meantime
    except PermissionError:
        raise ConfigurationError(
            f"pid {pid}, which runs the {what}, belongs to another user", details={"pid": pid}
        ) from None

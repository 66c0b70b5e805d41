"""Where the resource manager of `finegrain up` listens when its state directory is used again.

Decides that it is where it was, if it can be: batches, jobs and executors that outlived it look for
it there.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from finegrain.options import ListenOptions

ADDRESS_FILE = "up.address"
"""In the state directory; unlike the manager's own note it stays when `finegrain up` ends."""


def write_address(state_dir: Path, address: str) -> None:
    """For the next one that uses the directory."""
    with suppress(OSError):  # it is found where it is all the same
        (state_dir / ADDRESS_FILE).write_text(f"{address}\n", encoding="utf-8")


def previous_address(state_dir: Path, wanted: ListenOptions) -> ListenOptions:
    """What is wanted, with the former port in place of any port if nobody else has it now."""
    host, _, port = wanted.address.rpartition(":")
    if port != "0":
        return wanted
    try:
        former = (state_dir / ADDRESS_FILE).read_text(encoding="utf-8").strip()
        former_host, _, former_port = former.rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(former_port)))
    except (OSError, ValueError, OverflowError):
        return wanted
    return replace(wanted, address=f"{host}:{former_port}") if former_host == host else wanted

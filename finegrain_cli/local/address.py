"""Finds the address of an earlier resource manager when `finegrain up` uses a state directory
again.

Batches, jobs and executors can continue after the end of a resource manager, and then call its
address again. So the next resource manager listens at the same port if the port is free.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from finegrain.options import ListenOptions

ADDRESS_FILE = "up.address"
"""The name of a file in the state directory. The file stays after `finegrain up` has ended."""


def write_address(state_dir: Path, address: str) -> None:
    """Saves the address for the next cluster that uses this directory."""
    with suppress(OSError):  # ignore errors, because the cluster works without the file
        (state_dir / ADDRESS_FILE).write_text(f"{address}\n", encoding="utf-8")


def previous_address(state_dir: Path, wanted: ListenOptions) -> ListenOptions:
    """Returns `wanted`. If `wanted` has port 0 and the former port is free, the result has the
    former port instead of port 0.
    """
    host, _, port = wanted.address.rpartition(":")
    if port != "0":
        return wanted
    try:
        former = (state_dir / ADDRESS_FILE).read_text(encoding="utf-8").strip()
        former_host, _, former_port = former.rpartition(":")
        with socket.socket() as probe:
            # Without this option, connections of the former process in TIME_WAIT would make the
            # port look busy.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(former_port)))
    except (OSError, ValueError, OverflowError):
        return wanted
    return replace(wanted, address=f"{host}:{former_port}") if former_host == host else wanted

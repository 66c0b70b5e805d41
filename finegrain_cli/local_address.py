"""Where the resource manager of `finegrain up` listens when its state directory is used again.

Decides that it is where it was, if it can be: batches, jobs and executors that outlived it look for
it there.
"""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

from finegrain.options import ListenOptions


def where_it_was(rm_state_dir: Path, wanted: ListenOptions) -> ListenOptions:
    """What is wanted, with the former port in place of any port if nobody else has it now."""
    host, _, port = wanted.address.rpartition(":")
    if port != "0":
        return wanted
    try:
        note = json.loads((rm_state_dir / "endpoint.json").read_text(encoding="utf-8"))
        former_host, _, former_port = str(note["address"]).rpartition(":")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, int(former_port)))
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return wanted
    return replace(wanted, address=f"{host}:{former_port}") if former_host == host else wanted

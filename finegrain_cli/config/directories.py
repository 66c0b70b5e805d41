"""Where state and sockets lie when nobody says: system directories for root, else XDG ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def state_directory(part: str) -> Path:
    """Default state directory of "rm", "executor" or "up"."""
    if os.geteuid() == 0:
        return Path("/var/lib/finegrain") / part
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(base) / "finegrain" / part


def run_directory(part: str) -> Path:
    """Default directory of sockets; short, since socket paths are limited to 107 bytes."""
    if os.geteuid() == 0:
        return Path("/run/finegrain") / part
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return Path(runtime) / "finegrain" / part
    return Path(tempfile.gettempdir()) / f"finegrain-{os.geteuid()}" / part

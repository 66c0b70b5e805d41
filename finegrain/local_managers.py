"""Finds the resource managers that the user of this process runs on this host.

`finegrain up` writes a note (a small file with the address of its resource manager) into the user's
run directory. As long as the command runs, it keeps a lock on the note. A note without a lock
belongs to a process that has ended, so this module removes the note. `targets.py` chooses one of
several managers.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrain.directories import SYSTEM_STATE, is_private, run_directory, state_directory

ENDPOINT_FILE = "endpoint.json"
OPERATOR_FILE = "operator.credentials"
PART = "up"


@dataclass(frozen=True, slots=True)
class LocalManager:
    """A resource manager that runs on this host."""

    address: str
    state_dir: Path

    @property
    def credentials_file(self) -> Path | None:
        """The credentials file of the role `operator` in the manager's state directory, if this
        user may read it.
        """
        path = self.state_dir / OPERATOR_FILE
        return path if os.access(path, os.R_OK) else None


def find_local_managers() -> list[LocalManager]:
    """Returns the managers of `finegrain up`, followed by the managers of `finegrain rm serve` in
    default directories.
    """
    found = [*_of_up(), *_of_daemons((state_directory("rm"), SYSTEM_STATE / "rm"))]
    return list(dict.fromkeys(found))


def _of_up() -> Iterator[LocalManager]:
    directory = run_directory(PART)
    if not (is_private(directory) and is_private(directory.parent)):
        return
    for path in sorted(directory.glob("*.json")):
        note = _locked_note(path)
        if note is not None:
            with suppress(KeyError):
                yield LocalManager(str(note["address"]), Path(note["rm_state_dir"]))


def _locked_note(path: Path) -> dict[str, Any] | None:
    """Returns the note if the process that wrote it still runs. Otherwise removes the note."""
    if not is_private(path):
        return None
    try:
        with path.open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                note = json.load(file)
                return note if isinstance(note, dict) else None
            path.unlink(missing_ok=True)
    except (OSError, ValueError):
        pass
    return None


def _of_daemons(state_dirs: tuple[Path, ...]) -> Iterator[LocalManager]:
    for state_dir in state_dirs:
        manager = endpoint_in(state_dir)
        if manager is not None:
            yield manager


def endpoint_in(state_dir: Path) -> LocalManager | None:
    """Returns the resource manager that uses a state directory; None: there is no such manager."""
    path = state_dir / ENDPOINT_FILE
    try:
        if not is_private(path):
            return None
        note = json.loads(path.read_text(encoding="utf-8"))
        is_running = Path(f"/proc/{int(note['pid'])}").exists()
        return LocalManager(str(note["address"]), state_dir) if is_running else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""Lets commands in other terminals find the resource managers that this user runs on this host.

`finegrain up` writes a note into the user's run directory and keeps the note locked while it runs.
A reader removes a note without a lock, because the process that wrote it has ended. If several
managers run, `connection.py` decides which one a command uses.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finegrain_cli.config.directories import (
    SYSTEM_STATE,
    is_private,
    make_private,
    run_directory,
    state_directory,
)

ENDPOINT_FILE = "endpoint.json"
PART = "up"


@dataclass(frozen=True, slots=True)
class LocalManager:
    """A resource manager that runs on this host; its state directory contains the tokens."""

    address: str
    state_dir: Path


@contextmanager
def published(note: Mapping[str, Any]) -> Iterator[None]:
    """Publishes `note` (`address`, `rm_state_dir`) to other commands of this user.

    The note is removed at the end of the context.

    Raises:
        ConfigurationError: the user's run directory is not safe to use.
    """
    directory = run_directory(PART)
    make_private(directory)
    path = directory / f"{os.getpid()}.json"
    fresh = directory / f".{os.getpid()}.new"
    with fresh.open("w", encoding="utf-8") as file:
        # Locked before the rename, because readers remove a note without a lock.
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(note, file)
        file.flush()
        fresh.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the directory has other notes if other clusters run
                directory.rmdir()
                directory.parent.rmdir()


def find_local_managers() -> list[LocalManager]:
    """Returns managers of `finegrain up`, then of `finegrain rm serve` in default directories."""
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
    """Returns the note if the process that wrote it still runs; otherwise removes the note."""
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
    """Returns the resource manager that serves from a state directory; None if none does."""
    path = state_dir / ENDPOINT_FILE
    try:
        if not is_private(path):
            return None
        note = json.loads(path.read_text(encoding="utf-8"))
        is_running = Path(f"/proc/{int(note['pid'])}").exists()
        return LocalManager(str(note["address"]), state_dir) if is_running else None
    except (OSError, ValueError, KeyError, TypeError):
        return None

"""Lets commands in other terminals find the cluster of `finegrain up`.

A note is a file with the cluster's address. `finegrain/local_managers.py` reads the notes.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from finegrain.directories import make_private, run_directory
from finegrain.local_managers import PART


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
        # Lock the note before the rename, because readers remove a note without a lock.
        fcntl.flock(file, fcntl.LOCK_EX)
        json.dump(note, file)
        file.flush()
        fresh.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # the directory can have other clusters' notes
                directory.rmdir()
                directory.parent.rmdir()

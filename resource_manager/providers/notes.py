"""Writes and reads small files of providers. Some of these files are notes: records that must
survive a crash. The other files contain output that only people read.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_durably(path: Path, text: str) -> None:
    """Replaces a file atomically. When the function returns, the new content is on disk.

    Raises:
        OSError: the file cannot be written.
    """
    # Write the new file in the same directory, because a rename is atomic only within a file
    # system.
    fresh = path.with_name(f".{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        # Set the mode before the content is written. Otherwise another user could read the content.
        os.fchmod(file.fileno(), 0o600)
        file.write(text + "\n")
        file.flush()
        # Sync the content before the rename. Otherwise the file could be empty after a power loss.
        os.fsync(file.fileno())
    fresh.rename(path)
    sync_directory(path.parent)  # otherwise a power loss could undo the rename


def sync_directory(directory: Path) -> None:
    """Writes the entries of a directory to disk (fsync).

    Raises:
        OSError: the directory cannot be opened or written.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file, or an empty dict if the file is missing or invalid."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def keep_newest(folder: Path, count: int) -> None:
    """Removes all files of a folder except the newest `count`."""
    with suppress(OSError):
        files = sorted(folder.iterdir(), key=lambda each: each.stat().st_mtime_ns)
        for old in files[:-count]:
            old.unlink(missing_ok=True)


def tail(path: Path, length: int = 8192) -> str:
    """Returns the last `length` bytes of a file as text. The text is empty if the file cannot be
    read.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - length))
            return file.read(length).decode(errors="replace")
    except OSError:
        return ""

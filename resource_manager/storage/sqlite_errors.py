"""Translates SQLite's errors to error classes and reasons, with advice for administrators."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from finegrain.errors import FinegrainError, InvariantBroken, Reason, StoreError
from resource_manager.storage.store import StoreAway, StoreBroken

_PRIMARY = 0xFF
"""Mask: an extended result code carries the primary code in its low byte."""

_KINDS: dict[int | None, type[StoreError]] = {
    sqlite3.SQLITE_BUSY: StoreAway,
    sqlite3.SQLITE_LOCKED: StoreAway,
    sqlite3.SQLITE_FULL: StoreAway,
    # After a failed write or sync, the kernel can mark the pages clean: a retry could then succeed
    # although the data is not on the disk.
    sqlite3.SQLITE_IOERR: StoreBroken,
}


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Converts SQLite's errors about the database at `path` to `FinegrainError`s.

    Raises:
        InvariantBroken: the rows contradict each other.
        StoreError: any other error; its class is `StoreAway` or `StoreBroken` for the codes in
            `_KINDS`.
    """
    try:
        yield
    except DBAPIError as error:
        raise translated(error.orig or error, path) from error
    except (sqlite3.Error, OverflowError, UnicodeError) as error:
        raise translated(error, path) from error


def translated(error: BaseException, path: Path) -> FinegrainError:
    """Returns the error to raise instead of the error of the SQLite driver."""
    code = getattr(error, "sqlite_errorcode", None)
    name = str(getattr(error, "sqlite_errorname", type(error).__name__))
    details = {"path": path, "sqlite_error": name}
    if isinstance(error, sqlite3.IntegrityError):
        return InvariantBroken(
            f"rows for {path} contradict each other ({error}); nothing was written", details=details
        )
    primary = None if code is None else code & _PRIMARY
    reason, message = _meaning(primary, path)
    kind = _KINDS.get(primary, StoreError)
    return kind(f"{message} ({name}: {error})", reason=reason, details=details)


def _meaning(primary: int | None, path: Path) -> tuple[Reason, str]:
    match primary:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Reason.STORE_IN_USE, (
                f"the database {path} is locked by another program; find it with "
                f"`fuser {path}`, end it, try again"
            )
        case sqlite3.SQLITE_FULL:
            return Reason.DISK_FULL, _disk_full(path)
        # Some file systems report a full disk as an input/output error.
        case sqlite3.SQLITE_IOERR if _no_space(path):
            return Reason.DISK_FULL, _disk_full(path)
        case sqlite3.SQLITE_IOERR:
            return Reason.STORE_UNAVAILABLE, (
                f"the disk below {path} failed; check the kernel log (`dmesg`), move the database "
                "to a sound disk or `finegrain db restore` a backup"
            )
        case sqlite3.SQLITE_CORRUPT:
            return Reason.STORE_CORRUPT, (
                f"the database {path} is damaged; `finegrain db restore` a backup"
            )
        case sqlite3.SQLITE_NOTADB:
            return Reason.STORE_CORRUPT, not_a_database(path)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return Reason.STORE_UNAVAILABLE, (
                f"the database {path} cannot be opened or written by uid {os.geteuid()}; the file "
                f"and its folder must be readable and writable for the resource manager's user"
            )
    return Reason.STORE_UNAVAILABLE, f"the database {path} cannot be used"


def not_a_database(path: Path) -> str:
    """Returns the message about a file that SQLite does not recognize."""
    return (
        f"{path} is not an SQLite database, or its beginning is damaged; name another file, or "
        f"`finegrain db restore` a backup"
    )


def _disk_full(path: Path) -> str:
    return (
        f"no space left for the database {path}; nothing of this transaction was stored; free "
        f"space on the disk that holds {path.parent}"
    )


def _no_space(path: Path) -> bool:
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False

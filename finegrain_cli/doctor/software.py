"""Checks the software of this host: Python, SQLite, the clock."""

from __future__ import annotations

import ctypes
import os
import platform
import sqlite3
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from finegrain_cli.doctor.findings import Finding, ok, warn

PARTS = {
    "resource manager": ("resource-manager", ("grpc", "sqlalchemy", "alembic", "structlog")),
    "task executor": ("task-executor", ("grpc", "structlog", "prometheus_client")),
}
CLOCK_UNSYNCHRONIZED = 0x0040  # the value STA_UNSYNC of adjtimex(2)
SIZE_OF_TIMEX = 208  # size of struct timex on 64-bit Linux, in bytes
OFFSET_OF_STATUS = 40


def examine_software() -> Iterator[Finding]:
    """Reports versions and the installed parts of finegrain."""
    yield ok("python", f"{platform.python_version()} ({sys.executable})")
    for part, (extra, modules) in PARTS.items():
        missing = [module for module in modules if find_spec(module) is None]
        if missing:
            message = f"cannot run here: {', '.join(missing)} missing"
            yield warn(part, message, f"pip install 'finegrain[{extra}]'")
        else:
            yield ok(part, "installed")
    yield from _sqlite()


def _sqlite() -> Iterator[Finding]:
    """Reports the version of SQLite. Warns about the same versions as `finegrain db check`."""
    found = []
    if find_spec("sqlalchemy") is not None:
        from resource_manager.storage.sqlite_store import version_findings

        found = version_findings()
    for each in found:
        message, _, fix = each.partition("; ")
        yield warn("sqlite", message, fix)
    if not found:
        yield ok("sqlite", sqlite3.sqlite_version)


def examine_clock() -> Iterator[Finding]:
    """Checks whether the kernel regards the clock as synchronized."""
    libc = ctypes.CDLL(None, use_errno=True)
    # Allocate twice the size, because the struct is possibly larger on this host. The buffer is
    # filled with zeros, so the field `modes` is 0. With `modes` 0, the call only reads the clock.
    buffer = ctypes.create_string_buffer(SIZE_OF_TIMEX * 2)
    if libc.adjtimex(buffer) < 0:
        yield warn("clock", f"cannot be read: {os.strerror(ctypes.get_errno())}", "none needed")
        return
    status = int.from_bytes(buffer.raw[OFFSET_OF_STATUS : OFFSET_OF_STATUS + 4], sys.byteorder)
    if status & CLOCK_UNSYNCHRONIZED:
        yield warn(
            "clock",
            "not synchronized: timestamps of hosts may differ (nothing else depends on the clock)",
            "run chrony or systemd-timesyncd: timedatectl set-ntp true",
        )
    else:
        yield ok("clock", "synchronized")

"""Checks the files that the daemons need on disk: state directories, certificates, the database."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError
from finegrain_cli.doctor.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from finegrain_cli.config.model import Settings


def examine_directories(settings: Settings) -> Iterator[Finding]:
    """Checks whether state directories exist, or can be created."""
    from finegrain_cli.config.daemon_options import task_executor_options

    executor = task_executor_options(settings)
    for name, path in (
        ("rm.state_dir", _rm_dir(settings)),
        ("executor.state_dir", executor.state_dir),
        ("executor.run_dir", executor.run_dir),
    ):
        nearest = next(each for each in (path, *path.parents) if each.exists())
        if not nearest.is_dir():
            yield fail(name, f"{nearest} is no directory", f"remove it, or set {name}")
        elif not os.access(nearest, os.W_OK | os.X_OK):
            fix = f"install -d -m 0700 -o {os.geteuid()} {path}, or set {name} to another directory"
            yield fail(name, f"{nearest} is not writable for uid {os.geteuid()}", fix)
        elif path.exists():
            yield ok(name, str(path))
        else:
            yield ok(name, f"{path}; will be created")


def examine_credentials(settings: Settings) -> Iterator[Finding]:
    """Checks who can read the files with private keys, and whether the certificates are valid."""
    from finegrain.credentials import read_credentials
    from finegrain.directories import default_credentials_file

    authority = _rm_dir(settings) / "certificates" / "ca.key"
    if not authority.exists():
        yield ok("authority", f"{authority}: created at the first start of the resource manager")
    elif authority.stat().st_mode & 0o077:
        fix = f"chmod 0600 {authority}"
        yield fail("authority", f"{authority}: other users can read the cluster's key", fix)
    else:
        yield ok("authority", str(authority))
    named = settings.client.credentials
    for name, path in (
        ("operator", _rm_dir(settings) / "operator.credentials"),
        ("credentials", Path(named).expanduser() if named else default_credentials_file()),
    ):
        if not (path.exists() or (named and name == "credentials")):
            continue
        try:
            found = read_credentials(path)
        except FinegrainError as error:
            yield fail(name, error.message, "see the message")
            continue
        if problem := found.problem_at(time.time()):
            yield fail(name, f"{path}: {problem}", "finegrain login")
        else:
            yield ok(name, f"{path}: {found.who} of cluster {found.who.cluster}")


def examine_database(settings: Settings) -> Iterator[Finding]:
    """Checks the connection, the schema and the content of the database. Reports which process has
    the lock of the database.
    """
    from finegrain_cli.config.daemon_options import database_url
    from resource_manager.storage import schema
    from resource_manager.storage.location import DatabaseUrl

    location = DatabaseUrl.parse(database_url(settings))
    try:
        version = schema.current_version(database_url(settings))
    except FinegrainError as error:
        fix = "restore a backup: finegrain db restore" if location.is_sqlite else "see the message"
        yield fail("database", error.message, fix)
        return
    # For an empty or missing database, the version is 0.
    if version == 0:
        yield ok("database", f"{location}: created at the first start of the resource manager")
        return
    if version != schema.head_version():
        behind = version < schema.head_version()
        fix = "finegrain db upgrade" if behind else "install the finegrain that wrote it"
        message = f"{location} has schema {version}, this software needs {schema.head_version()}"
        yield fail("database", message, fix)
        return
    findings = schema.check(database_url(settings))
    for finding in findings:
        grade = fail if finding.severity is schema.Severity.ERROR else warn
        yield grade("database", finding.message, "finegrain db check shows all damage")
    if not findings:
        yield ok("database", f"{location}: schema {version}, sound")
    if location.is_sqlite:
        yield ok("database lock", _lock_owner(location.path))


def _lock_owner(database: Path) -> str:
    path = database.with_name(database.name + ".lock")
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return f"held by {' pid '.join(file.read().split(chr(10))[:2])}"
    except FileNotFoundError:
        pass
    except OSError as error:
        return f"cannot be checked: {error.strerror}"
    return "free"


def _rm_dir(settings: Settings) -> Path:
    from finegrain_cli.config.daemon_options import rm_state_dir

    return rm_state_dir(settings.rm)

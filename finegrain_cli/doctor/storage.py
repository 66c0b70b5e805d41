"""Checks what the daemons need on disk: state directories, tokens, the database."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import FinegrainError
from finegrain_cli.doctor.findings import Finding, fail, ok, warn

if TYPE_CHECKING:
    from finegrain_cli.config.model import Settings

TOKEN_MODES = {"cluster.token": 0o600, "user.token": 0o640}


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


def examine_tokens(settings: Settings) -> Iterator[Finding]:
    """Checks whether the tokens exist, and whether more users than necessary can read them."""
    from finegrain.rpc.tokens import read_token

    named = {
        "cluster.token": settings.rm.cluster_token_file,
        "user.token": settings.rm.user_token_file,
    }
    for name, text in named.items():
        path = Path(text) if text else _rm_dir(settings) / name
        if not path.exists():
            if text:
                fix = (
                    "correct the path in the configuration, or remove it, so that the file is "
                    "created in the state directory"
                )
                yield fail(name, f"{path}: there is no such file", fix)
            else:
                yield ok(name, f"{path}: created at the first start of the resource manager")
            continue
        # Permission bits beyond those that this token file needs.
        excess = path.stat().st_mode & 0o777 & ~TOKEN_MODES[name]
        try:
            read_token(path)
        except FinegrainError as error:
            mode = f"{TOKEN_MODES[name]:04o}"
            fix = f"chmod {mode} {path}" if excess else "see the message"
            yield fail(name, error.message, fix)
        else:
            if excess:
                fix = f"chmod {TOKEN_MODES[name]:04o} {path}"
                yield warn(name, f"{path}: more users can read it than necessary", fix)
            else:
                yield ok(name, str(path))


def examine_database(settings: Settings) -> Iterator[Finding]:
    """Checks the connection, the schema and the content of the database; reports its lock owner."""
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
    # An empty or missing database has version 0.
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

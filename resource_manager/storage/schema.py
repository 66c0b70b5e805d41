"""The schema for operators: `finegrain db upgrade | check | backup | restore` call this.

Decides what is worth telling about a database. Refuses to print.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from finegrain.errors import FinegrainError
from resource_manager.storage import migrate
from resource_manager.storage.backup import Restored, backup, check_restorable, restore
from resource_manager.storage.creation import create_sqlite, upgrade_sqlite
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.opening import open_store
from resource_manager.storage.sqlite_file import check_is_ours, os_errors, sqlite_engine
from resource_manager.storage.tables import SCHEMA_VERSION, metadata
from resource_manager.storage.versions import check_not_ahead

__all__ = [
    "Finding",
    "Restored",
    "Severity",
    "Upgrade",
    "backup",
    "check",
    "check_restorable",
    "current_version",
    "differences",
    "head_version",
    "metadata",
    "raise_epoch",
    "restore",
    "upgrade",
]


class Severity(StrEnum):
    """How much a finding matters."""

    ERROR = "error"  # the database cannot be used as it is
    WARNING = "warning"  # it works, and puts something at risk


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing an operator should know; the message names the way out."""

    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """What an upgrade did, or would do. `from_version` 0: the database is or was empty or
    absent."""

    from_version: int
    to_version: int
    steps: list[str]


def head_version() -> int:
    """The version that this software knows."""
    return SCHEMA_VERSION


def current_version(url: str) -> int:
    """The version that the database at `url` has; 0: absent or empty.

    Raises:
        StoreError: unreachable, damaged, or another program's.
    """
    location = DatabaseUrl.parse(url)
    if location.is_sqlite:
        with os_errors(location.path):
            exists = location.path.exists()
        return check_is_ours(location.path).schema_version if exists else 0
    from resource_manager.storage import postgresql_server as server
    from resource_manager.storage.postgresql_errors import postgresql_errors

    engine = server.postgresql_engine(location)
    try:
        with postgresql_errors(location), engine.begin() as connection:
            return server.version_of(connection, location)
    finally:
        engine.dispose()


def upgrade(url: str, *, dry_run: bool = False) -> Upgrade:
    """Make the database at `url`, or bring it up to date.

    Args:
        url: where.
        dry_run: only say what would be done.

    Raises:
        StoreError: somebody leads (STORE_IN_USE), newer software has been here (STORE_SCHEMA), or
            see `open_store`.
    """
    location = DatabaseUrl.parse(url)
    version = current_version(url)
    check_not_ahead(version, str(location))
    plan = Upgrade(version, SCHEMA_VERSION, migrate.steps(version))
    if dry_run or not plan.steps:
        return plan
    if not location.is_sqlite:
        from resource_manager.storage import postgresql_server as server

        engine = server.postgresql_engine(location)
        try:
            server.prepare(engine, location, create=True, upgrade=True)
        finally:
            engine.dispose()
    elif version:
        upgrade_sqlite(location.path)
    else:
        create_sqlite(location.path)
    return plan


def check(url: str) -> list[Finding]:
    """Everything that is wrong or risky about the database at `url`. Reads all of it; changes
    nothing."""
    location = DatabaseUrl.parse(url)
    try:
        with open_store(url, create=False, upgrade=False, read_only=True) as store:
            findings = [Finding(Severity.WARNING, each) for each in store.check()]
        changed = differences(location)
    except FinegrainError as error:
        return [Finding(Severity.ERROR, error.message)]
    if location.is_sqlite:
        findings = [_graded(each) for each in findings]
    return findings + [
        Finding(Severity.WARNING, f"the schema of {location} was changed by hand: {each}")
        for each in changed
    ]


def _graded(finding: Finding) -> Finding:
    damaged = " is damaged: " in finding.message
    return Finding(Severity.ERROR, finding.message) if damaged else finding


def differences(location: DatabaseUrl) -> list[str]:
    """How the database's schema differs from the declared one; empty: not at all."""
    if location.is_sqlite:
        engine = sqlite_engine(location.path, read_only=True, connections=1)
    else:
        from resource_manager.storage.postgresql_server import postgresql_engine

        engine = postgresql_engine(location)
    try:
        with engine.begin() as connection:
            return _differences(connection)
    finally:
        engine.dispose()


def _differences(connection: Connection) -> list[str]:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return [str(each) for each in compare_metadata(context, metadata)]


def raise_epoch(url: str, *, above_epoch: int) -> int:
    """After a database was restored by other means: make its next epoch one above `above_epoch`,
    and nothing else that it numbers a repetition of what was lost; returns the epoch now.

    Raises:
        StoreError: somebody leads, or see `open_store`.
    """
    with open_store(url, create=False, upgrade=False) as store:
        epoch = store.lead("finegrain db raise-epoch", above_epoch=above_epoch)
        store.leave_lost_history()
        return epoch

"""Operations on a database for administrators: `finegrain db upgrade | check | backup | restore`.

The functions return messages, which the command line prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection

from finegrain.errors import FinegrainError
from resource_manager.engine.model.changes import CONTESTED_EPOCH
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import migrate
from resource_manager.storage.audit_log import AuditedCall, local_actor, record
from resource_manager.storage.backup import (
    Restored,
    backup,
    check_above_epoch,
    check_restorable,
    restore,
)
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
    """The severity of a finding."""

    ERROR = "error"  # the database cannot be used in this state
    WARNING = "warning"  # the database works, but with a risk


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding for an administrator. Its message says what to do."""

    severity: Severity
    message: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The steps of an upgrade. `from_version` is 0 if the database was empty or missing."""

    from_version: int
    to_version: int
    steps: list[str]


def head_version() -> int:
    """Returns the schema version of this software."""
    return SCHEMA_VERSION


def current_version(url: str) -> int:
    """Returns the schema version of the database at `url`; 0 if the database is missing or empty.

    Raises:
        StoreError: the database cannot be reached, is damaged, or belongs to another program.
    """
    location = DatabaseUrl.parse(url)
    # A folder that cannot be read is an error; it does not mean that there is no database.
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
    """Creates the database at `url`, or upgrades its schema.

    Args:
        url: the database.
        dry_run: True to only return the steps that would be done.

    Returns:
        The steps that were done, or would be done.

    Raises:
        StoreError: another process leads (STORE_IN_USE), newer software has upgraded the database
            (STORE_SCHEMA), or an error of `open_store`.
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
    if version:
        _record(url, "db upgrade", f"schema {version} to {SCHEMA_VERSION}")
    return plan


def _record(url: str, method: str, changed: str) -> None:
    with open_store(url, create=False, upgrade=False) as store:
        store.lead(f"finegrain {method}")
        changes = Changes()
        record(store, changes, AuditedCall(local_actor(), method, changed))
        store.commit(changes)


def check(url: str) -> list[Finding]:
    """Returns everything that is wrong or risky about the database at `url`.

    Reads the whole database, and changes nothing in it.
    """
    location = DatabaseUrl.parse(url)
    try:
        # Open the database read-only, because another process possibly leads.
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
    damaged = " is damaged: " in finding.message  # `SqliteStore.damage` writes this text
    return Finding(Severity.ERROR, finding.message) if damaged else finding


def differences(location: DatabaseUrl) -> list[str]:
    """Returns the differences between the database's schema and the declared schema."""
    if location.is_sqlite:
        engine = sqlite_engine(location.path, read_only=True, connections=1)
    else:
        # The module is imported only when needed, because the driver is in an optional extra.
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
    """Makes a database usable again after another program, such as pg_restore, has restored it.

    A resource manager can then lead on the database again, even if an executor had seen a newer
    epoch. The next epoch is above `above_epoch`. Event sequences and generations skip the values
    that were possibly used after the copy was made (see `lost_history.py`).

    Args:
        url: the database.
        above_epoch: the highest epoch that any executor reports.

    Returns:
        The new epoch.

    Raises:
        InvalidArgument: `above_epoch` is negative, or higher than any resource manager's epoch can
            be.
        StoreError: another process leads, or an error of `open_store`.
    """
    check_above_epoch(above_epoch)
    with open_store(url, create=False, upgrade=False) as store:
        epoch = store.lead("finegrain db raise-epoch", above_epoch=above_epoch)
        store.leave_lost_history()
        changes = Changes(counters={CONTESTED_EPOCH: 0})
        record(store, changes, AuditedCall(local_actor(), "db raise-epoch", str(epoch)))
        store.commit(changes)
        return epoch

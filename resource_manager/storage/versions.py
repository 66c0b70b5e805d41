"""Checks that this software fits a database's schema version. The errors say what to do."""

from __future__ import annotations

from finegrain.errors import Reason, StoreError
from resource_manager.storage.tables import SCHEMA_VERSION


def check_not_ahead(version: int, where: str) -> None:
    """Raises StoreError if newer software has upgraded the database."""
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the database {where} has schema version {version}, this software knows up to "
            f"{SCHEMA_VERSION}: a newer finegrain has upgraded it; install that version again, or "
            "restore a backup from before the upgrade (`finegrain db restore`, or pg_restore)",
            reason=Reason.STORE_SCHEMA,
            details={"schema_version": version, "known_version": SCHEMA_VERSION},
        )


def check_not_behind(version: int, where: str) -> None:
    """Raises StoreError if the database needs an upgrade."""
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"the database {where} has schema version {version}, this software needs "
            f"{SCHEMA_VERSION}; stop the resource manager and run `finegrain db upgrade`",
            reason=Reason.STORE_SCHEMA,
            details={"schema_version": version, "known_version": SCHEMA_VERSION},
        )

"""Makes the tables of new databases, and runs Alembic's migrations, from the version of a database
to the version of this software.

In a wheel, the folder of migration files is in the package. In a checkout, the folder is at the
root. All migrations of one run are in one transaction.
"""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    text,
)

from finegrain.errors import ConfigurationError
from resource_manager.storage.tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config


_recorded = Table(
    "alembic_version",
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""The table in which Alembic records the version of a database."""


def migrations_folder() -> Path:
    """Returns the folder with `env.py` and `versions/`.

    Raises:
        ConfigurationError: this installation is incomplete.
    """
    package = Path(os.fspath(importlib.resources.files("resource_manager")))  # type: ignore[call-overload]
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError(f"the migrations of {package} are missing; install finegrain again")


def _config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    # Alembic expands `%` in options.
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def steps(from_version: int) -> list[str]:
    """Returns the migrations above this version, the oldest first. Each is a text such as "0002
    what it does".
    """
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(_config())
    return [
        f"{revision.revision} {revision.doc}"
        for revision in reversed(list(script.walk_revisions()))
        if int(revision.revision) > from_version
    ]


def create(connection: Connection, version: int) -> None:
    """Makes all tables in an empty database, inside the connection's transaction.

    The result is the same as that of `migrate`, but this function does not load Alembic. Alembic
    would take 0.3 s. It would also take 8 MiB of memory in a process that then runs for months.
    """
    metadata.create_all(connection)
    _recorded.create(connection)
    connection.execute(insert(_recorded).values(version_num=revision_name(version)))
    _record_in_header(connection, version)


def migrate(connection: Connection, to_version: int) -> None:
    """Upgrades the database to a version, inside the connection's transaction."""
    from alembic import command

    command.upgrade(_config(connection), revision_name(to_version))
    _record_in_header(connection, to_version)


def _record_in_header(connection: Connection, version: int) -> None:
    # The version is also written to the file header, where it can be read without Alembic.
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {int(version)}")


def revision_name(version: int) -> str:
    """Returns Alembic's name of a version: four digits."""
    return f"{version:04d}"


def recorded_version(connection: Connection) -> int:
    """Returns the version that is recorded in the database; 0 if the database has no recorded
    version.
    """
    if not inspect(connection).has_table("alembic_version"):
        return 0
    found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return int(found) if found and str(found).isdecimal() else 0

"""Runs Alembic's migrations, from the version of a database to the version of this software.

In a wheel, the folder of migration files is in the package. In a checkout, it is at the root. A run
is one transaction.
"""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from finegrain.errors import ConfigurationError

if TYPE_CHECKING:
    from alembic.config import Config


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


def migrate(connection: Connection, to_version: int) -> None:
    """Upgrades the database to a version, inside the connection's transaction."""
    from alembic import command

    command.upgrade(_config(connection), revision_name(to_version))
    # The version is also written to the file header, where it can be read without Alembic.
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA user_version = {int(to_version)}")


def revision_name(version: int) -> str:
    """Returns Alembic's name of a version: four digits."""
    return f"{version:04d}"


def recorded_version(connection: Connection) -> int:
    """Returns the version that is recorded in the database; 0: the database has no recorded
    version.
    """
    if not inspect(connection).has_table("alembic_version"):
        return 0
    found = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return int(found) if found and str(found).isdecimal() else 0

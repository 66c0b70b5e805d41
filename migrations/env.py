"""Alembic's entry point: runs migrations on the connection of `resource_manager.storage.migrate`.

When a developer runs `alembic revision` (with the `alembic.ini` beside this file), this module
opens a connection itself.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine

from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.tables import metadata


def run(connection: Connection) -> None:
    """Runs all migrations in one transaction.

    SQLite's DDL is transactional, but Alembic assumes that it is not.
    `transactional_ddl` corrects this.
    """
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    url = DatabaseUrl.parse(context.config.get_main_option("sqlalchemy.url") or "").url
    with create_engine(url).begin() as own:
        run(own)

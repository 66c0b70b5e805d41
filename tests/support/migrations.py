"""Lets tests run as if this software had one more migration. Databases are then outdated."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from resource_manager.storage import migrate, schema, tables, versions

NEXT = tables.SCHEMA_VERSION + 1

STEP = f'''"""A step for tests."""
import sqlalchemy as sa
from alembic import op
revision = "{NEXT:04d}"
down_revision = "{NEXT - 1:04d}"
def upgrade():
    op.add_column("jobs", sa.Column("note", sa.Text(), nullable=False, server_default="none"))
'''


def know_next_version(patched: pytest.MonkeyPatch, folder: Path, step: str = STEP) -> None:
    """Makes this software know one more migration, in a copy of the migrations in `folder`."""
    from resource_manager.storage import postgresql_server, postgresql_store

    shutil.copytree(migrate.migrations_folder(), folder)
    (folder / f"versions/{NEXT:04d}_note.py").write_text(step)
    patched.setattr(migrate, "migrations_folder", lambda: folder)
    for module in (tables, versions, schema, postgresql_server, postgresql_store):
        patched.setattr(module, "SCHEMA_VERSION", NEXT)

"""Software that knows one migration more than this one: what is at head becomes behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from resource_manager.storage import migrate, schema, tables, versions

SECOND = '''"""A step for tests."""
import sqlalchemy as sa
from alembic import op
revision = "0002"
down_revision = "0001"
def upgrade():
    op.add_column("jobs", sa.Column("note", sa.Text(), nullable=False, server_default="none"))
'''


def know_next_version(patched: pytest.MonkeyPatch, folder: Path, step: str = SECOND) -> None:
    """Makes this software one that knows a second migration, which lies in `folder`."""
    from resource_manager.storage import postgresql_server, postgresql_store

    shutil.copytree(migrate.migrations_folder(), folder)
    (folder / "versions/0002_note.py").write_text(step)
    patched.setattr(migrate, "migrations_folder", lambda: folder)
    for module in (tables, versions, schema, postgresql_server, postgresql_store):
        patched.setattr(module, "SCHEMA_VERSION", 2)

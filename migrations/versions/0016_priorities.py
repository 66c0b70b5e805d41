"""Requests and jobs have a priority, and slots may be revocable.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns. Existing requests and jobs have the priority 0, and no slot is revocable."""
    for table in ("jobs", "requests", "request_ranges"):
        number = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
        op.execute(f"ALTER TABLE {table} ADD COLUMN priority {number} DEFAULT 0 NOT NULL")
    flag = sa.Boolean().with_variant(sa.Integer(), "sqlite")
    for table in ("requests", "request_ranges", "slots"):
        op.add_column(
            table, sa.Column("revocable", flag, server_default=sa.false(), nullable=False)
        )
    op.execute("ALTER TABLE slots ADD COLUMN revoked_for TEXT DEFAULT '' NOT NULL")

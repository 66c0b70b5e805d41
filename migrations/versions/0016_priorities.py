"""Requests and jobs have a priority.

There is no downgrade. A released migration must not be changed.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns. Existing requests and jobs have the priority 0."""
    for table in ("jobs", "requests", "request_ranges"):
        number = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
        op.execute(f"ALTER TABLE {table} ADD COLUMN priority {number} DEFAULT 0 NOT NULL")

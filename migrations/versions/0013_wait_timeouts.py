"""Requests may have a timeout.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add columns. Existing requests wait indefinitely."""
    for table in ("requests", "request_ranges"):
        op.add_column(table, sa.Column("wait_timeout_ms", _NUMBER, nullable=True))

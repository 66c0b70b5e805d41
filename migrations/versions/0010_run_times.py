"""Time limits and expected run times of requests, and the time limits of slots.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add columns. Existing requests and slots have no time limit."""
    for table in ("requests", "request_ranges"):
        op.add_column(table, sa.Column("time_limit_ms", _NUMBER, nullable=True))
        op.add_column(table, sa.Column("expected_run_time_ms", _NUMBER, nullable=True))
    op.add_column("slots", sa.Column("time_limit_ms", _NUMBER, nullable=True))
    op.add_column(
        "slots",
        sa.Column("reuse_number", _NUMBER, nullable=False, server_default=sa.text("0")),
    )

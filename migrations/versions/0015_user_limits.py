"""Limits of users: the table `user_limits`.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. Without rows, users have no limits."""
    op.create_table(
        "user_limits",
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("maximum", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("user_id", name="pk_user_limits"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )

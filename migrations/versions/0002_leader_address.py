"""The leader's address, so that a standby can refer its callers to the leader.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `leadership.address`; empty until a process leads."""
    op.add_column(
        "leadership", sa.Column("address", sa.Text(), nullable=False, server_default=sa.text("''"))
    )

"""The leader's address, so that those who reach a standby are told where to go.

Forward only. Never edited once released.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `leadership.address`; empty until somebody leads."""
    op.add_column(
        "leadership", sa.Column("address", sa.Text(), nullable=False, server_default=sa.text("''"))
    )

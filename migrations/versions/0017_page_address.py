"""The address of the leader's web page, so that the page of a standby can link to it.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add `leadership.page_address`; empty until a process leads."""
    op.add_column(
        "leadership",
        sa.Column("page_address", sa.Text(), nullable=False, server_default=sa.text("''")),
    )

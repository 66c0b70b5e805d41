"""Devices that administrators have cordoned.

There is no downgrade. A released migration must not be changed. Existing columns already contain
the devices of hosts (the topology of executors) and of slots (profile and assignment).
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the cordoned devices of each host to the table `host_settings`."""
    op.add_column(
        "host_settings",
        sa.Column("cordons", sa.Text(), server_default=sa.text("'[]'"), nullable=False),
    )

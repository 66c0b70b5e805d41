"""Whether requests are placed again when a device of their slot fails.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Add the flag to requests and ranges. It is false for existing rows."""
    for table in ("requests", "request_ranges"):
        op.add_column(
            table,
            sa.Column("restart_on_device_loss", _FLAG, server_default=sa.false(), nullable=False),
        )

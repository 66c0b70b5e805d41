"""Groups have rules that put jobs into them.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Existing groups have no rules."""
    op.add_column(
        "groups", sa.Column("rules", sa.Text(), nullable=False, server_default=sa.text("'[]'"))
    )

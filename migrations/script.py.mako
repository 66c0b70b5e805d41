"""${message}

There is no downgrade. A released migration must not be changed.
"""

from alembic import op
from sqlalchemy import Column

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    """${message}."""
    ${upgrades if upgrades else "raise NotImplementedError"}

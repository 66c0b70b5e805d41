"""Jobs have an owner, the identity that registered them, instead of the hash of a secret.

Forward only. Never edited once released.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename the column. Earlier jobs have no owner, so only operators can end them."""
    # Not `alter_column`: on SQLite it would copy the table.
    op.execute("ALTER TABLE jobs RENAME COLUMN secret_sha256 TO owner")
    op.execute("UPDATE jobs SET owner = ''")

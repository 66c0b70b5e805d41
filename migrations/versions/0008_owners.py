"""Jobs have an owner, the identity that registered them, instead of the hash of a secret.

There is no downgrade. A released migration must not be changed.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename the column. Existing jobs get no owner, so only administrators can end them."""
    # `alter_column` is not used, because on SQLite it would copy the table.
    op.execute("ALTER TABLE jobs RENAME COLUMN secret_sha256 TO owner")
    op.execute("UPDATE jobs SET owner = ''")

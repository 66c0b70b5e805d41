"""Jobs have an outcome, and the jobs on which they depend.

There is no downgrade. A released migration must not be changed.
"""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. Jobs that have already ended get the outcome that this version would set."""
    # STRICT tables of SQLite and PostgreSQL both know TEXT.
    op.execute("ALTER TABLE jobs ADD COLUMN outcome TEXT")
    op.execute("ALTER TABLE jobs ADD COLUMN depends_on TEXT DEFAULT '[]' NOT NULL")
    op.execute(
        "UPDATE jobs SET outcome = CASE WHEN end_reason = 'ENDED' THEN 'SUCCEEDED'"
        " ELSE 'FAILED' END WHERE state = 'ENDED'"
    )

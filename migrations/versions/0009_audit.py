"""The audit log, and the identity that caused a cluster event.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _text(name: str) -> "sa.Column[str]":
    return sa.Column(name, sa.Text(), nullable=False)


def _number(name: str) -> "sa.Column[int]":
    return sa.Column(name, _NUMBER, nullable=False)


def upgrade() -> None:
    """Add the table `audit`, and a column to the cluster events. The column is empty in existing
    rows.
    """
    op.create_table(
        "audit",
        sa.Column("sequence", _NUMBER, nullable=False, autoincrement=False),
        _number("time_ms"),
        _text("actor"),
        _text("method"),
        _text("object"),
        _text("outcome"),
        _number("count"),
        _text("digest"),
        sa.PrimaryKeyConstraint("sequence", name="pk_audit"),
        sqlite_strict=True,
        sqlite_with_rowid=True,
    )
    op.add_column(
        "cluster_events",
        sa.Column("actor", sa.Text(), nullable=False, server_default=sa.text("''")),
    )

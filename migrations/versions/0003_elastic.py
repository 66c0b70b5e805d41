"""Gangs, resizes of slots, and executors that were requested from providers.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_NOTHING = sa.text("''")


def _text(name: str) -> "sa.Column[str]":
    return sa.Column(name, sa.Text(), nullable=False)


def _number(name: str, *, nullable: bool = False) -> "sa.Column[int]":
    return sa.Column(name, _NUMBER, nullable=nullable)


def upgrade() -> None:
    """Add the tables `gangs` and `provisions`, and columns to requests, slots and executors."""
    op.add_column(
        "requests", sa.Column("gang_id", sa.Text(), nullable=False, server_default=_NOTHING)
    )
    op.add_column(
        "slots", sa.Column("resize_number", _NUMBER, nullable=False, server_default=sa.text("0"))
    )
    op.add_column("slots", sa.Column("ordered", sa.Text(), nullable=True))
    op.add_column("slots", sa.Column("wanted", sa.Text(), nullable=True))
    op.add_column(
        "executors", sa.Column("provided_as", sa.Text(), nullable=False, server_default=_NOTHING)
    )
    op.create_table(
        "gangs",
        _text("gang_id"),
        _text("job_id"),
        _text("placement"),
        _text("label"),
        _number("timeout_ms", nullable=True),
        _number("arrival_number"),
        _number("waiting_since_time_ms"),
        sa.PrimaryKeyConstraint("gang_id", name="pk_gangs"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name="fk_gangs_job_id", ondelete="CASCADE"
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_gangs_job_id", "gangs", ["job_id"])
    op.create_table(
        "provisions",
        _text("executor_id"),
        _text("shape"),
        _number("number"),
        _text("cause"),
        _number("ask_time_ms"),
        _text("state"),
        _text("handle"),
        _text("message"),
        sa.PrimaryKeyConstraint("executor_id", name="pk_provisions"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )

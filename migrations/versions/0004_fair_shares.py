"""Ranges of requests, resource groups, and the usage of groups and jobs.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def _text(name: str, *, nullable: bool = False) -> "sa.Column[str]":
    return sa.Column(name, sa.Text(), nullable=nullable)


def _number(name: str) -> "sa.Column[int]":
    return sa.Column(name, _NUMBER, nullable=False)


def _flag(name: str) -> "sa.Column[bool]":
    return sa.Column(name, _FLAG, nullable=False)


def upgrade() -> None:
    """Add the tables `request_ranges`, `groups` and `tallies`, and the number of requests in a job
    event.
    """
    op.add_column(
        "job_events", sa.Column("count", _NUMBER, server_default=sa.text("1"), nullable=False)
    )
    op.create_table(
        "request_ranges",
        _text("range_id"),
        _number("first_index"),
        _number("count"),
        _text("job_id"),
        _number("arrival_number"),
        _number("create_time_ms"),
        _text("profile", nullable=True),
        _number("cpu_limit_milli"),
        _number("pids_max"),
        _text("required_labels"),
        _flag("allow_pending"),
        _flag("restart_on_loss"),
        _text("ended"),
        sa.PrimaryKeyConstraint("range_id", "first_index", name="pk_request_ranges"),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name="fk_request_ranges_job_id", ondelete="CASCADE"
        ),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index("ix_request_ranges_job_id", "request_ranges", ["job_id"])
    op.create_table(
        "groups",
        _text("name"),
        _text("parent"),
        _text("weight"),
        _text("minimum"),
        _text("maximum"),
        _text("description"),
        _number("create_time_ms"),
        sa.PrimaryKeyConstraint("name", name="pk_groups"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tallies",
        _text("flow_id"),
        _text("measure"),
        _text("service"),
        _text("raised"),
        _number("time_ms"),
        _text("durations"),
        sa.PrimaryKeyConstraint("flow_id", name="pk_tallies"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )

"""CPU policies of requests, cpu assignments of slots, and settings of hosts.

There is no downgrade. A released migration must not be changed.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _added(name: str, default: str) -> "sa.Column[str]":
    return sa.Column(name, sa.Text(), server_default=sa.text(f"'{default}'"), nullable=False)


def upgrade() -> None:
    """Add the table `host_settings`, cpu policies of requests and ranges, assignments of slots, and
    the cpus that executors register.
    """
    op.add_column("requests", _added("cpu_policy", ""))
    op.add_column("request_ranges", _added("cpu_policy", ""))
    op.add_column("slots", sa.Column("assignment", sa.Text(), nullable=True))
    op.add_column("executors", _added("host_cpus", "{}"))
    op.create_table(
        "host_settings",
        sa.Column("executor_id", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("set_time_ms", _NUMBER, nullable=False),
        sa.PrimaryKeyConstraint("executor_id", name="pk_host_settings"),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )

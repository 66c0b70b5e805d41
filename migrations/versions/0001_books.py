"""The first schema: jobs, requests, slots, executors, their events, and the leader.

There is no downgrade. A released migration must not be changed.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def column(name: str, kind: Any, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=nullable, autoincrement=False)


def texts(*names: str) -> list[sa.Column[Any]]:
    return [column(name, sa.Text()) for name in names]


def numbers(*names: str) -> list[sa.Column[Any]]:
    return [column(name, NUMBER) for name in names]


def create(name: str, key: tuple[str, ...], *items: Any, with_rowid: bool = False) -> None:
    op.create_table(
        name,
        *items,
        sa.PrimaryKeyConstraint(*key, name=f"pk_{name}"),
        sqlite_strict=True,
        sqlite_with_rowid=with_rowid,
    )


def of_job(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["job_id"], ["jobs.job_id"], name=f"fk_{table}_job_id", ondelete="CASCADE"
    )


def upgrade() -> None:
    """Create all tables."""
    create("meta", ("key",), *texts("key", "value"))
    create(
        "leadership",
        ("id",),
        *numbers("id"),
        *texts("holder"),
        *numbers("rm_epoch", "until_time_ms"),
        sa.CheckConstraint("id = 1", name=op.f("ck_leadership_one_row")),
        with_rowid=True,
    )
    create("counters", ("name",), *texts("name"), *numbers("value"))
    _jobs()
    _slots()
    _executors()
    _events()


def _jobs() -> None:
    create(
        "jobs",
        ("job_id",),
        *texts("job_id", "name", "group_name"),
        column("lease_ms", NUMBER, nullable=True),
        *texts("secret_sha256", "request_id_sha256"),
        *numbers("arrival_number", "create_time_ms"),
        *texts("state", "end_reason"),
        column("end_time_ms", NUMBER, nullable=True),
        *numbers("last_sequence", "trimmed_sequence"),
        column("specified", FLAG, nullable=True),
        *texts("witness_allocation_id"),
    )
    create(
        "requests",
        ("allocation_id",),
        *texts("allocation_id", "job_id"),
        *numbers("arrival_number", "create_time_ms"),
        *texts("state", "reason", "message"),
        *numbers("generation"),
        column("end_time_ms", NUMBER, nullable=True),
        column("profile", sa.Text(), nullable=True),
        *numbers("cpu_limit_milli", "pids_max"),
        *texts("required_labels", "target_address"),
        column("allow_pending", FLAG),
        column("restart_on_loss", FLAG),
        of_job("requests"),
    )
    op.create_index("ix_requests_job_id", "requests", ["job_id"])


def _slots() -> None:
    create(
        "slots",
        ("allocation_id", "generation"),
        *texts("allocation_id"),
        *numbers("generation"),
        *texts("job_id", "executor_id", "profile"),
        *numbers("cpu_limit_milli", "pids_max"),
        *texts("cpus", "state"),
        column("allocated_time_ms", NUMBER, nullable=True),
        column("isolation", sa.Text(), nullable=True),
    )


def _executors() -> None:
    create(
        "executors",
        ("executor_id",),
        *texts("executor_id", "instance_id", "address", "total", "reserved", "default_profile"),
        *texts("labels"),
        *numbers("slots_max"),
        *texts("shared_cpus", "topology", "isolation", "boot_id", "protocol_version"),
        *texts("software_version"),
        *numbers("registration_number"),
        column("draining", FLAG),
        *texts("drain_reason"),
        column("drain_deadline_time_ms", NUMBER, nullable=True),
        *numbers("first_seen_time_ms"),
        column("lost", FLAG),
        with_rowid=True,
    )


def _events() -> None:
    create(
        "job_events",
        ("job_id", "sequence"),
        *texts("job_id"),
        *numbers("sequence", "time_ms"),
        *texts("allocation_id", "state", "reason", "message"),
        column("slot", sa.Text(), nullable=True),
        of_job("job_events"),
    )
    create(
        "cluster_events",
        ("sequence",),
        *numbers("sequence", "time_ms"),
        *texts("kind", "executor_id", "job_id", "allocation_id", "reason", "message"),
        with_rowid=True,
    )
    for subject in ("executor_id", "job_id", "allocation_id"):
        named = sa.text(f"{subject} <> ''")
        op.create_index(
            f"ix_cluster_events_{subject}",
            "cluster_events",
            [subject, "sequence"],
            sqlite_where=named,
            postgresql_where=named,
        )

"""The declared schema: tables, columns, types, keys and indices, for SQLite and PostgreSQL alike.

`rows.py` and `statements.py` read and write rows; `migrations/` upgrades a database from one
version to the next.

Free capacity is not stored, because it follows from totals and slots, and a stored copy could
become wrong. Profiles, labels, amounts and topologies are JSON text, because no query reads their
parts. Secrets are stored as hashes only. Columns ending in `_time_ms` are milliseconds since 1970.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    event,
    false,
    text,
)

SCHEMA_VERSION = 17
"""Number of the last migration; a file `migrations/versions/000N_*.py` with this N must exist."""

APPLICATION_ID = 0x4647524D
"""Marks an SQLite file as finegrain's (`PRAGMA application_id`): "FGRM"."""

APPLICATION = "finegrain"
"""Marks any database as finegrain's: the value of `application` in `meta`."""

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)

# STRICT tables know INTEGER and TEXT only; SQLite's INTEGER has 64 bits.
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")
_FLAG = Boolean().with_variant(Integer(), "sqlite")


def _text(name: str, *arguments: Any, **options: Any) -> Column[Any]:
    return Column(name, Text, *arguments, **{"nullable": False} | options)


def _number(name: str, **options: Any) -> Column[Any]:
    return Column(name, _NUMBER, **{"nullable": False} | options)


def _flag(name: str, **options: Any) -> Column[Any]:
    return Column(name, _FLAG, **{"nullable": False} | options)


def _key_number(name: str) -> Column[Any]:
    return Column(name, _NUMBER, primary_key=True, autoincrement=False)


def _table(name: str, *items: Any, with_rowid: bool = False) -> Table:
    """Declares a table. Wide rows need `with_rowid`: in the tree of the primary key they would take
    much space.
    """
    return Table(name, metadata, *items, sqlite_strict=True, sqlite_with_rowid=with_rowid)


def _of_job() -> Column[Any]:
    return _text("job_id", ForeignKey("jobs.job_id", ondelete="CASCADE"))


meta = _table("meta", _text("key", primary_key=True), _text("value"))

# The table has one row with id 1: the leader, its epoch, its address and its page's address. On
# PostgreSQL it also has the end of the lease, by the database's clock.
leadership = _table(
    "leadership",
    _key_number("id"),
    _text("holder"),
    _number("rm_epoch"),
    _number("until_time_ms"),
    _text("address", server_default=text("''")),
    _text("page_address", server_default=text("''")),
    CheckConstraint("id = 1", name="one_row"),
    with_rowid=True,
)

counters = _table("counters", _text("name", primary_key=True), _number("value"))

jobs = _table(
    "jobs",
    _text("job_id", primary_key=True),
    _text("name"),
    _text("group_name"),
    _number("lease_ms", nullable=True),
    _text("owner"),
    _text("request_id_sha256"),
    _number("arrival_number"),
    _number("create_time_ms"),
    _text("state"),
    _text("end_reason"),
    _number("end_time_ms", nullable=True),
    _number("last_sequence"),
    _number("trimmed_sequence"),
    _flag("specified", nullable=True),
    _text("witness_allocation_id"),
    _text("outcome", nullable=True),
    _text("depends_on", server_default=text("'[]'")),
    _number("priority", server_default=text("0")),
)

requests = _table(
    "requests",
    _text("allocation_id", primary_key=True),
    _of_job(),
    _number("arrival_number"),
    _number("create_time_ms"),
    _text("state"),
    _text("reason"),
    _text("message"),
    _number("generation"),
    _number("end_time_ms", nullable=True),
    _text("profile", nullable=True),
    _number("cpu_limit_milli"),
    _number("pids_max"),
    _text("required_labels"),
    _text("target_address"),
    _flag("allow_pending"),
    _flag("restart_on_loss"),
    _text("gang_id", server_default=text("''")),
    _text("cpu_policy", server_default=text("''")),
    _flag("restart_on_device_loss", server_default=false()),
    _number("time_limit_ms", nullable=True),
    _number("expected_run_time_ms", nullable=True),
    _number("wait_timeout_ms", nullable=True),
    _number("priority", server_default=text("0")),
    _flag("revocable", server_default=false()),
)
# The deletion of a job finds its requests by job id.
Index(None, requests.c.job_id)

gangs = _table(
    "gangs",
    _text("gang_id", primary_key=True),
    _of_job(),
    _text("placement"),
    _text("label"),
    _number("timeout_ms", nullable=True),
    _number("arrival_number"),
    _number("waiting_since_time_ms"),
)
# The deletion of a job finds its gangs by job id.
Index(None, gangs.c.job_id)

# This table has no foreign keys. A slot that the executor has not confirmed as freed exists for
# longer than its job. And the executor of a slot can be deleted before the slot.
slots = _table(
    "slots",
    _text("allocation_id", primary_key=True),
    _key_number("generation"),
    _text("job_id"),
    _text("executor_id"),
    _text("profile"),
    _number("cpu_limit_milli"),
    _number("pids_max"),
    _text("cpus"),
    _text("state"),
    _number("allocated_time_ms", nullable=True),
    _text("isolation", nullable=True),
    _number("resize_number", server_default=text("0")),
    _text("ordered", nullable=True),
    _text("wanted", nullable=True),
    _text("assignment", nullable=True),
    _number("time_limit_ms", nullable=True),
    _number("reuse_number", server_default=text("0")),
    _flag("revocable", server_default=false()),
    _text("revoked_for", server_default=text("''")),
)

executors = _table(
    "executors",
    _text("executor_id", primary_key=True),
    _text("instance_id"),
    _text("address"),
    _text("total"),
    _text("reserved"),
    _text("default_profile"),
    _text("labels"),
    _number("slots_max"),
    _text("shared_cpus"),
    _text("topology"),
    _text("isolation"),
    _text("boot_id"),
    _text("protocol_version"),
    _text("software_version"),
    _number("registration_number"),
    _flag("draining"),
    _text("drain_reason"),
    _number("drain_deadline_time_ms", nullable=True),
    _number("first_seen_time_ms"),
    _flag("lost"),
    _text("provided_as", server_default=text("''")),
    _text("host_cpus", server_default=text("'{}'")),
    with_rowid=True,
)

# Executors that were requested from providers. The table has no foreign key, because most of these
# executors are not registered yet.
provisions = _table(
    "provisions",
    _text("executor_id", primary_key=True),
    _text("shape"),
    _number("number"),
    _text("cause"),
    _number("ask_time_ms"),
    _text("state"),
    _text("handle"),
    _text("message"),
)

# Parts of ranges of equal requests. One row represents all members of a part that were never
# placed, or that have ended.
request_ranges = _table(
    "request_ranges",
    _text("range_id", primary_key=True),
    _key_number("first_index"),
    _number("count"),
    _of_job(),
    _number("arrival_number"),
    _number("create_time_ms"),
    _text("profile", nullable=True),
    _number("cpu_limit_milli"),
    _number("pids_max"),
    _text("required_labels"),
    _flag("allow_pending"),
    _flag("restart_on_loss"),
    _text("ended"),
    _text("cpu_policy", server_default=text("''")),
    _flag("restart_on_device_loss", server_default=false()),
    _number("time_limit_ms", nullable=True),
    _number("expected_run_time_ms", nullable=True),
    _number("wait_timeout_ms", nullable=True),
    _number("priority", server_default=text("0")),
    _flag("revocable", server_default=false()),
)
# The deletion of a job finds its ranges by job id.
Index(None, request_ranges.c.job_id)

# Decimal numbers are stored as text: the shortest form that Python reads back exactly (repr).
groups = _table(
    "groups",
    _text("name", primary_key=True),
    _text("parent"),
    _text("weight"),
    _text("minimum"),
    _text("maximum"),
    _text("description"),
    _number("create_time_ms"),
    _text("users", server_default=text("'[]'")),
    _text("rules", server_default=text("'[]'")),
)

# Limits of users. The user "*" stands for each user without separate limits.
user_limits = _table("user_limits", _text("user_id", primary_key=True), _text("maximum"))

# Usage of flows as of a moment. The table has no foreign key, because a flow is a row of `groups`
# or a row of `jobs`.
tallies = _table(
    "tallies",
    _text("flow_id", primary_key=True),
    _text("measure"),
    _text("service"),
    _text("raised"),
    _number("time_ms"),
    _text("durations"),
)

# Host policies that administrators set at runtime. An empty executor_id means the whole cluster.
# The table has no foreign key, because an executor can be deleted and register again.
host_settings = _table(
    "host_settings",
    _text("executor_id", primary_key=True),
    _text("policy"),
    _number("number"),
    _number("set_time_ms"),
    _text("cordons", server_default=text("'[]'")),
)

job_events = _table(
    "job_events",
    _text("job_id", ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True),
    _key_number("sequence"),
    _number("time_ms"),
    _text("allocation_id"),
    _text("state"),
    _text("reason"),
    _text("message"),
    _text("slot", nullable=True),
    _number("count", server_default=text("1")),
)

cluster_events = _table(
    "cluster_events",
    _key_number("sequence"),
    _number("time_ms"),
    _text("kind"),
    _text("executor_id"),
    _text("job_id"),
    _text("allocation_id"),
    _text("reason"),
    _text("message"),
    _text("actor", server_default=text("''")),
    with_rowid=True,
)

CLUSTER_EVENT_SUBJECTS = ("executor_id", "job_id", "allocation_id")
"""Columns of `cluster_events` that name the subjects of an event. A column is empty if the event
has no such subject.
"""

# The indices are for the history of one subject. Most events name few subjects, so each index omits
# the events in which its column is empty.
for _subject in CLUSTER_EVENT_SUBJECTS:
    Index(
        None,
        cluster_events.c[_subject],
        cluster_events.c.sequence,
        sqlite_where=text(f"{_subject} <> ''"),
    )


@event.listens_for(cluster_events, "before_create")
def _complete_indices(table: Table, connection: Connection, **_options: object) -> None:
    """Gives the indices their conditions for PostgreSQL.

    This is done only for PostgreSQL, because SQLAlchemy imports a dialect for its options. The
    dialect takes 3 MiB.
    """
    if connection.dialect.name == "postgresql":
        for index in table.indexes:
            index.dialect_kwargs["postgresql_where"] = index.dialect_kwargs["sqlite_where"]


# Changes by administrators, and calls that were refused. In `meta`, "audit/head" is the end of the
# chain of digests, and "audit/anchor" is the last deleted entry, after which the chain begins.
audit = _table(
    "audit",
    _key_number("sequence"),
    _number("time_ms"),
    _text("actor"),
    _text("method"),
    _text("object"),
    _text("outcome"),
    _number("count"),
    _text("digest"),
    with_rowid=True,
)

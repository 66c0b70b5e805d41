"""A batch of changes as rows, in the order in which every store writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from finegrain.errors import InvariantBroken
from finegrain.mapping.rows import Row
from resource_manager.engine.model.effects import Changes
from resource_manager.storage import rows, tables
from resource_manager.storage.codecs import Codec, MoveCodec
from resource_manager.storage.statements import C, Statements

T = TypeVar("T")


class PreparedChanges:
    """A batch that is encoded as rows before the transaction begins. So the transaction is
    short.
    """

    def __init__(self, changes: Changes) -> None:
        alive = {job.job_id for job in changes.jobs}
        # Jobs that stay deleted. A job that is both deleted and alive in this batch was deleted and
        # then registered again.
        gone = set(changes.deleted_jobs) - alive
        self._changes = changes
        # Jobs come first, because requests and events refer to them by foreign key.
        self._upserts = (
            (tables.jobs, _encoded(rows.JOBS, changes.jobs)),
            (
                tables.requests,
                # Rows of a deleted job would break the foreign key.
                _encoded(rows.REQUESTS, [r for r in changes.requests if r.job_id not in gone]),
            ),
            (tables.slots, _encoded(rows.SLOTS, changes.slots)),
            (tables.executors, _encoded(rows.EXECUTORS, changes.executors)),
            (
                tables.gangs,
                _encoded(rows.GANGS, [g for g in changes.gangs if g.job_id not in gone]),
            ),
            (tables.provisions, _encoded(rows.PROVISIONS, changes.provisions)),
            (
                tables.request_ranges,
                _encoded(rows.RANGES, [r for r in changes.ranges if r.job_id not in gone]),
            ),
            (tables.groups, _encoded(rows.GROUPS, changes.groups)),
            (tables.user_limits, _encoded(rows.USER_LIMITS, changes.user_limits)),
            (tables.tallies, _encoded(rows.TALLIES, changes.usage_records)),
            (tables.host_settings, _encoded(rows.HOST_SETTINGS, changes.host_settings)),
            (
                tables.job_events,
                _encoded(rows.JOB_EVENTS, [e for e in changes.job_events if e.job_id not in gone]),
            ),
            (tables.cluster_events, _encoded(rows.CLUSTER_EVENTS, changes.cluster_events)),
            (tables.counters, list(changes.counters.items())),
            (tables.audit, _encoded(rows.AUDIT, changes.audit)),
            (tables.meta, [(k, v) for k, v in changes.metas.items() if v is not None]),
        )
        self._moves = (
            (
                rows.REQUEST_MOVES,
                _encoded(
                    rows.REQUEST_MOVES, [r for r in changes.moved_requests if r.job_id not in gone]
                ),
            ),
            (rows.SLOT_MOVES, _encoded(rows.SLOT_MOVES, changes.moved_slots)),
        )

    def apply(self, connection: C, statements: Statements[C]) -> None:
        """Writes the batch: deletes rows, writes whole rows, changes single columns, and trims the
        event logs.

        Args:
            connection: the connection to write to, with an open transaction.
            statements: the statements for this kind of database.

        Raises:
            InvariantBroken: the batch changes columns of a row that is not stored.
        """
        changes = self._changes
        jobs = [(job_id,) for job_id in changes.deleted_jobs]
        executors = [(executor_id,) for executor_id in changes.deleted_executors]
        # Delete before writing: if an id was deleted and used again, the batch deletes and writes
        # rows with this id.
        statements.delete(connection, tables.jobs, ("job_id",), jobs)
        requests = [(allocation_id,) for allocation_id in changes.deleted_requests]
        statements.delete(connection, tables.requests, ("allocation_id",), requests)
        statements.delete(
            connection, tables.slots, ("allocation_id", "generation"), changes.deleted_slots
        )
        statements.delete(connection, tables.executors, ("executor_id",), executors)
        gangs = [(gang_id,) for gang_id in changes.deleted_gangs]
        statements.delete(connection, tables.gangs, ("gang_id",), gangs)
        provisions = [(executor_id,) for executor_id in changes.deleted_provisions]
        statements.delete(connection, tables.provisions, ("executor_id",), provisions)
        ranges = changes.deleted_ranges
        statements.delete(connection, tables.request_ranges, ("range_id", "first_index"), ranges)
        groups = [(name,) for name in changes.deleted_groups]
        statements.delete(connection, tables.groups, ("name",), groups)
        users = [(user,) for user in changes.deleted_user_limits]
        statements.delete(connection, tables.user_limits, ("user_id",), users)
        tallies = [(flow_id,) for flow_id in changes.deleted_usage_records]
        statements.delete(connection, tables.tallies, ("flow_id",), tallies)
        settings = [(executor_id,) for executor_id in changes.deleted_host_settings]
        statements.delete(connection, tables.host_settings, ("executor_id",), settings)
        values = [(key,) for key, value in changes.metas.items() if value is None]
        statements.delete(connection, tables.meta, ("key",), values)
        for table, encoded in self._upserts:
            statements.upsert(connection, table, encoded)
        for codec, encoded in self._moves:
            found = statements.update(connection, codec.table, codec.key, codec.changed, encoded)
            # If a row is missing, the engine and the database disagree. Then store nothing of this
            # batch.
            if found != len(encoded):
                raise InvariantBroken(
                    f"{len(encoded)} {codec.table.name} have changed, but only {found} are stored"
                )
        # Trim last, because the batch possibly trims some of its own events.
        statements.trim(
            connection, tables.job_events, "job_id", "sequence", changes.trimmed_job_events
        )
        if changes.trimmed_cluster_events is not None:
            upto = changes.trimmed_cluster_events
            statements.trim_all(connection, tables.cluster_events, "sequence", upto)
        if changes.trimmed_audit is not None:
            statements.trim_all(connection, tables.audit, "sequence", changes.trimmed_audit)


def _encoded(codec: Codec[T] | MoveCodec[T], entities: Sequence[T]) -> list[Row]:
    encode = codec.encode
    return [encode(entity) for entity in entities]

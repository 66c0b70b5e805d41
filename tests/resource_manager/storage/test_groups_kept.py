"""Tests of groups and usage in a database: replaced, deleted, and migrated from version 3."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import column, create_engine, insert, table

from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.entities import Group, Instant, UsageRecord
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import restore
from resource_manager.storage import creation, migrate, tables
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.opening import open_store
from resource_manager.storage.rows import JOBS
from resource_manager.storage.store import Store
from tests.support.books import job


def test_groups_and_tallies_are_replaced_and_struck(store: Store) -> None:
    groups = [Group("a", weight=0.001), Group("b", "a", 1e6, {"cpu_milli": 1}, {"cpu_milli": 0})]
    tallies = [
        UsageRecord("group/a", "cpu", 1e-300, -1.5, 1),
        UsageRecord("job/1", "cpu", 0.1 + 0.2, 1e300, 2),
    ]
    store.commit(Changes(groups=groups, usage_records=tallies))
    assert (store.load().groups, store.load().usage_records) == (groups, tallies)
    group, tally = (
        Group("a", weight=2.0, description="now"),
        UsageRecord("job/1", "cpu", 0.0, 0.0, 3),
    )
    store.commit(
        Changes(
            groups=[group],
            usage_records=[tally],
            deleted_groups=["b", "never was"],
            deleted_usage_records=["group/a", "never was"],
        )
    )
    assert (store.load().groups, store.load().usage_records) == ([group], [tally])


def test_version_12_admits_the_users_of_today(url: str) -> None:
    """Groups without jobs admit no users; a job of an earlier version may be of any user."""
    location = DatabaseUrl.parse(url)
    owners = {"high": "user/alice", "old": "", "default": "user/bob", "low": "operator/ann"}
    jobs = [
        job(f"job-{name}", group=name, owner=owner, arrival_number=number)
        for number, (name, owner) in enumerate(owners.items())
    ]
    jobs.append(job("second", group="high", owner="user/bob", arrival_number=9))
    columns = tables.jobs.columns.keys()
    engine = create_engine(location.url)
    with engine.begin() as connection:
        migrate.migrate(connection, 11)
        rows = [dict(zip(columns, JOBS.encode(each), strict=True)) for each in jobs]
        for each in rows:
            del each["priority"]  # since version 16
        connection.execute(insert(table("jobs", *map(column, rows[0]))), rows)
        groups = [
            {"name": name, "parent": "", "weight": "1.0", "minimum": "{}", "maximum": "{}"}
            | {"description": "", "create_time_ms": 1}
            for name in (*owners, "empty")
        ]
        connection.execute(insert(table("groups", *map(column, groups[0]))), groups)
        migrate.migrate(connection, 12)
        found = connection.exec_driver_sql("SELECT name, users FROM groups").all()
    engine.dispose()
    assert {name: json.loads(users) for name, users in found} == {
        "high": ["user/alice", "user/bob"],
        "old": ["*"],
        "default": ["*", "user/bob"],
        "low": [],
        "empty": [],
    }


ODD = ["Team A/β", "default", "high", "x" * 128]
"""Names that earlier versions accepted; the second and third are predefined."""


def test_jobs_of_version_3_keep_their_groups_whatever_these_are_called(url: str) -> None:
    location = DatabaseUrl.parse(url)
    rows = [job(f"job-{n}", group=name, arrival_number=n) for n, name in enumerate(ODD)]
    columns = tables.jobs.columns.keys()
    engine = create_engine(location.url)
    with engine.begin() as connection:
        migrate.migrate(connection, 3)
        values = [dict(zip(columns, JOBS.encode(row), strict=True)) for row in rows]
        for each in values:
            del each["outcome"], each["depends_on"]  # since version 11
            del each["priority"]  # since version 16
            each["secret_sha256"] = each.pop("owner")  # the name until version 8
        earlier = table("jobs", *map(column, values[0]))
        connection.execute(insert(earlier), values)
        creation.fill(connection)
    if location.is_sqlite:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA application_id = {tables.APPLICATION_ID}")
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    engine.dispose()

    with open_store(url) as store:
        epoch = store.lead("new software")
        before = store.load()
        assert (before.groups, before.usage_records, len(before.jobs)) == ([], [], 4)
        state = restore(before, EngineSettings(), Instant(1_000, 2_000))
        store.commit(state.changes.take())
        again = restore(store.load(), EngineSettings(), Instant(9_000, 9_000))
    weights: dict[str, Any] = {name: group.weight for name, group in again.groups.items()}
    delivered = {"default": 1.0, "low": 1.0, "medium": 4.0, "high": 16.0, "critical": 64.0}
    assert weights == delivered | {"Team A/β": 1.0, "x" * 128: 1.0}
    assert {row.group for row in again.jobs.values()} == set(ODD)
    assert not again.changes.take().groups
    assert epoch == 1

"""This version continues from the database of the previous version, with all its state and all
orders in flight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import SlotState
from resource_manager.engine.explain.lists import list_requests, list_slots
from resource_manager.engine.invariants.all import check_invariants
from resource_manager.engine.model.effects import Changes, Snapshot
from resource_manager.engine.model.entities import Executor
from resource_manager.engine.model.reported import ReportedSlot
from resource_manager.engine.model.settings import EngineSettings, ExecutorShape, Provisioning
from resource_manager.engine.restoring import restore
from resource_manager.storage import schema
from resource_manager.storage.location import DatabaseUrl
from resource_manager.storage.opening import open_store
from resource_manager.storage.postgresql_server import postgresql_engine
from resource_manager.storage.sqlite_file import sqlite_engine
from tests.previous.code import EVIDENCE, PreviousCode
from tests.previous.rows import lost, rows_of
from tests.previous.serving import listed, serving
from tests.support.engine_cluster import EngineCluster, FakeExecutor

TABLES = """
import json
from resource_manager.storage.tables import metadata
print(json.dumps([*metadata.tables, "alembic_version"]))
"""


def evidence(name: str) -> Any:
    """A document of the evidence."""
    return json.loads((EVIDENCE / name).read_text())


@pytest.fixture
def snapshot(url: str) -> Snapshot:
    """Returns the stored data as this version reads it, after a migration if needed."""
    with open_store(url) as store:
        return store.load()


@pytest.fixture
def bare(url: str) -> Iterator[Engine]:
    """Returns the database without any change, and without the rules of this version."""
    location = DatabaseUrl.parse(url)
    engine = (
        sqlite_engine(location.path, read_only=True, connections=1)
        if location.is_sqlite
        else postgresql_engine(location)
    )
    yield engine
    engine.dispose()


def test_the_evidence_fills_every_table_of_its_version(
    bare: Engine, previous: PreviousCode, tmp_path: Path
) -> None:
    tables = inspect(bare).get_table_names()
    with bare.connect() as connection:
        empty = [
            name for name in tables if not connection.scalar(text(f"SELECT count(*) FROM {name}"))
        ]

    assert set(tables) == set(json.loads(previous.run(TABLES, tmp_path)))
    assert empty == []


def test_its_schema_becomes_the_declared_one(url: str) -> None:
    with open_store(url):
        pass

    assert schema.current_version(url) == schema.head_version()
    assert schema.differences(DatabaseUrl.parse(url)) == []


def test_no_stored_row_and_no_value_is_lost(snapshot: Snapshot) -> None:
    assert lost(evidence("rows.json"), rows_of(snapshot)) == []


def test_a_value_that_went_or_changed_is_found() -> None:
    row = {"job_id": "a", "lease_ms": 30, "labels": [["zone", "a"]]}

    assert lost([row], [{**row, "more": 1}]) == []
    assert lost([row], []) != []
    assert lost(row, {**row, "lease_ms": 31}) == [".lease_ms was 30, is 31"]
    assert lost(row, {**row, "lease_ms": 30.0}) != []
    assert lost(row, {"job_id": "a", "lease_ms": 30}) == [".labels is missing"]


def test_histories_are_read_as_they_were_written(url: str) -> None:
    with open_store(url) as store:
        log = store.read_job_events("batch", 0, 1_000)
        history = store.read_cluster_events(1, 10_000)

    assert [each.sequence for each in log] == list(range(1, len(log) + 1))
    offers = [each for each in log if each.slot]
    assert {each.allocation_id for each in offers} > {"l-lost", "l-again", "many.10", "many.14"}
    assert {each.count for each in log} >= {1, 50}
    assert [each.sequence for each in history] == list(range(1, len(history) + 1))
    assert {each.executor_id for each in history} > {"host-a", "host-l", "small-1-1"}


def shapes() -> EngineSettings:
    """The shapes of which the story has requested executors."""
    return EngineSettings(
        provisioning=Provisioning(
            shapes=tuple(
                ExecutorShape(
                    name,
                    "story",
                    {"cpu_milli": cpu, "memory_bytes": memory * MIB},
                    default_profile=ResourceProfile(1_000, 256 * MIB),
                    labels=(("shape", name),),
                )
                for name, cpu, memory in (("small", 4_000, 4_096), ("large", 32_000, 65_536))
            )
        )
    )


def returned(executor: Executor, snapshot: Snapshot) -> FakeExecutor:
    """The executor in its state when the data was stored, with the slots that it had confirmed."""
    known = executor.registration
    host = FakeExecutor(
        known.executor_id,
        known.total,
        known.default_profile,
        known.labels,
        known.slots_max,
        known.instance_id,
        topology=known.topology,
        host_cpus=known.host_cpus,
        provided_as=known.provided_as,
        report_number=1_000,  # higher than all numbers that it sent before
    )
    for slot in snapshot.slots:
        if slot.executor_id == known.executor_id and slot.state is not SlotState.PENDING:
            host.slots[slot.allocation_id, slot.generation] = ReportedSlot(
                slot.allocation_id,
                slot.generation,
                slot.job_id,
                slot.profile,
                slot.state,
                slot.cpu_limit_milli,
                isolation=slot.isolation,
                resize_number=0,
                assignment=slot.assignment,
            )
    return host


@pytest.fixture
def cluster(snapshot: Snapshot) -> EngineCluster:
    """The engine with the stored state. No executor has returned yet."""
    made = EngineCluster(jobs=(), settings=shapes())
    made.now_ms = 60_000
    snapshot.rm_epoch = 2
    made.state = restore(snapshot, made.settings, made.at)
    made.store.apply(_as_stored(snapshot))
    return made


def _as_stored(snapshot: Snapshot) -> Changes:
    return Changes(
        **{
            name: getattr(snapshot, name)
            for name in (
                *("jobs", "requests", "slots", "executors", "gangs", "provisions", "ranges"),
                *("groups", "usage_records", "host_settings", "counters"),
            )
        }
    )


def test_the_engine_restores_all_of_it(cluster: EngineCluster) -> None:
    assert check_invariants(cluster.state) == []
    requests = list_requests(cluster.state, limit=10_000).items
    slots = list_slots(cluster.state, limit=10_000).items
    told = evidence("served.json")
    ended = {"RELEASED", "CANCELLED", "REJECTED", "LOST"}
    assert len(requests) == sum(each["state"] not in ended for each in told["requests"])
    assert len(slots) == len(told["slots"])


def settle(cluster: EngineCluster) -> None:
    """All messages in transit arrive and are answered."""
    while cluster.wire:
        cluster.deliver(cluster.wire[0])


def test_what_was_in_flight_comes_to_its_end(snapshot: Snapshot, cluster: EngineCluster) -> None:
    for executor in snapshot.executors:
        if not executor.lost:
            cluster.register(returned(executor, snapshot))
    settle(cluster)
    assert check_invariants(cluster.state) == []
    requests, slots = cluster.state.requests, cluster.state.slots
    assert {requests[name].state for name in ("o1", "o2", "s-ordered")} == {"GRANTED"}
    assert slots["s-both", 1].profile.cpu_milli == 800
    assert slots["s-both", 1].ordered is None
    cluster.executors["host-d"].finish_frees()
    cluster.report(cluster.executors["host-d"])
    assert ("s-freeing", 1) not in slots
    waiting = slots["s-grow", 1].wanted
    assert waiting is not None
    assert waiting.profile.cpu_milli == 7_500

    for job in [each for each in snapshot.jobs if each.job_id in cluster.state.jobs]:
        if job.state == "ACTIVE":
            cluster.end_job(job.job_id)
    settle(cluster)
    cluster.report(cluster.executors["host-d"])
    assert check_invariants(cluster.state) == []
    assert {each.executor_id for each in cluster.state.slots.values()} <= {"host-l", "host-d"}


async def test_a_resource_manager_serves_from_it(url: str) -> None:
    async with serving(url) as manager:
        now = await listed(manager)

    assert lost(evidence("served.json"), now) == []

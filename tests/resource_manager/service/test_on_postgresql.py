"""Tests of the service on PostgreSQL, and of the loss of its lease."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.v1 import slots_pb2
from resource_manager.main import EXIT_STEPPED_DOWN
from resource_manager.storage import schema
from resource_manager.storage.opening import open_store
from tests.support.migrations import NEXT, know_next_version
from tests.support.patience import PATIENCE_S
from tests.support.postgresql import PostgresqlServer
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    running_rm,
    slot_request,
)

pytestmark = pytest.mark.needs("postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    started = PostgresqlServer()
    yield started
    started.stop()


async def test_a_slot_is_granted_and_survives_a_restart(
    tmp_path: Path, server: PostgresqlServer
) -> None:
    url = server.url(server.create_database())
    async with running_rm(tmp_path, database_url=url) as rm, ScriptedExecutor(rm) as executor:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        (offer,) = await next_events(stream, 1)
        assert offer.state == slots_pb2.REQUEST_STATE_GRANTED
        stream.cancel()
    async with (
        running_rm(tmp_path, database_url=url) as again,
        ScriptedExecutor(again, instance_id=executor.instance_id, slots=executor.slots) as back,
    ):
        assert back.rm_epoch == 2
        stream = job.watch(rm=again)
        (request,) = (await stream.read()).snapshot.requests
        assert request.slot.state == slots_pb2.SLOT_STATE_ALLOCATED
        stream.cancel()


async def test_a_database_of_older_software_is_brought_up_to_date_at_the_start(
    tmp_path: Path, server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.url(server.create_database())
    async with running_rm(tmp_path, database_url=url) as rm:
        job = await ScriptedJob(rm).register()
    know_next_version(monkeypatch, tmp_path / "migrations")
    async with running_rm(tmp_path, database_url=url) as newer:
        stream = job.watch(rm=newer)
        await stream.read()  # the job is still known
        stream.cancel()
    assert schema.current_version(url) == NEXT


async def test_whoever_lost_the_lease_steps_down(tmp_path: Path, server: PostgresqlServer) -> None:
    database = server.create_database()
    url = server.url(database)
    async with running_rm(tmp_path, database_url=url) as rm:
        # As if another process had taken over while this one was frozen for longer than its lease.
        taken = "UPDATE leadership SET rm_epoch = rm_epoch + 1, holder = 'another'"
        await asyncio.to_thread(server.execute, taken, database)
        done, _ = await asyncio.wait({rm.task}, timeout=PATIENCE_S)
        assert done
        assert rm.task.result() == EXIT_STEPPED_DOWN
    with open_store(url, read_only=True) as store:
        assert store.load().rm_epoch == 2

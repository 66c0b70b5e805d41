"""Tests of snapshots of large jobs: in parts with different moments, and events in between."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from finegrain.errors import NotFound
from finegrain.resources import MIB, ResourceProfile
from finegrain.rpc.allocation_tokens import TokenSigner
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from resource_manager.engine.model.effects import Effect, PublishClusterEvent, PublishJobEvent
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.model.events import JobRegistered, RequestsCancelled, RequestsSubmitted
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.service import watch
from resource_manager.service.engine_driver import EngineDriver
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner
from resource_manager.service.watch import WatchHub
from resource_manager.storage.location import sqlite_url
from resource_manager.storage.opening import open_store
from tests.support.identities import own

PROFILE = ResourceProfile(1_000, 64 * MIB)


class Service:
    """One job, its state and its streams, without other listeners."""

    def __init__(self, runner: Runner, hub: WatchHub) -> None:
        self._runner = runner
        self._hub = hub
        # if set, decisions are not published, as if the service failed after the commit
        self.deaf = False

    def on_effects(self, effects: Sequence[Effect]) -> None:
        for effect in effects if not self.deaf else ():
            if isinstance(effect, PublishJobEvent):
                self._hub.publish(effect.event)
            elif isinstance(effect, PublishClusterEvent):
                self._hub.publish_cluster(effect.event)

    def on_reload(self, rm_epoch: int) -> None:
        self._hub.resync()

    async def register(self) -> None:
        await self._runner.submit(
            lambda at: JobRegistered(at, "job", "a job", "default", None, "s", "r"),
            lambda _job: None,
        )

    async def submit(self, *names: str) -> None:
        specs = tuple(RequestSpec(name, PROFILE, allow_pending=True) for name in names)
        await self._runner.submit(lambda at: RequestsSubmitted(at, "job", specs))

    async def cancel(self, *names: str) -> None:
        await self._runner.submit(lambda at: RequestsCancelled(at, "job", names))


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Service, WatchHub]]:
    metrics = ResourceManagerMetrics("test")
    store = open_store(sqlite_url(folder / "books.db"))
    runner = Runner(EngineDriver(store, EngineSettings(), metrics, holder="test"), metrics)
    hub = WatchHub(runner, metrics, TokenSigner(own("rm")))
    service = Service(runner, hub)
    await runner.start(service)
    try:
        await service.register()
        yield service, hub
    finally:
        await runner.stop()


class Reader:
    """A job master that knows only what its stream says."""

    def __init__(self) -> None:
        self.living: set[str] = set()
        self.sequence = 0
        self.parts: list[int] = []
        self.whole = False

    def take(self, message: rm_pb2.WatchJobResponse) -> None:
        if message.HasField("snapshot"):
            assert not self.parts or message.snapshot.sequence == self.sequence
            self.sequence = message.snapshot.sequence
            self.living |= {each.allocation_id for each in message.snapshot.requests}
            self.parts.append(len(message.snapshot.requests))
            self.whole = not message.snapshot.more
        for event in message.events:
            assert event.sequence == self.sequence + 1
            self.sequence = event.sequence
            if event.state == slots_pb2.REQUEST_STATE_CANCELLED:
                self.living.discard(event.allocation_id)


async def test_what_happens_between_the_parts_is_told_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SNAPSHOT_REQUESTS_MAX", 4)
    async with serving(tmp_path) as (service, hub):
        await service.submit(*(f"r{n}" for n in range(10)))
        await service.cancel("r1")
        reader = Reader()
        async with aclosing(hub.watch("job", 0)) as stream:
            reader.take(await anext(stream))
            assert reader.living == {"r0", "r2", "r3", "r4"}
            await service.cancel("r2", "r7", "r9")  # one shown already, the others not yet
            await service.submit("r10", "r11")
            while not reader.whole:
                reader.take(await anext(stream))
            await service.cancel("r11")
            while reader.sequence < 5:
                reader.take(await anext(stream))
    assert reader.living == {"r0", "r3", "r4", "r5", "r6", "r8", "r10"}
    assert reader.parts == [4, 4, 1]


async def test_many_that_have_ended_are_passed_over_in_bounded_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "SNAPSHOT_SCANNED_MAX", 3)
    async with serving(tmp_path) as (service, hub):
        await service.submit(*(f"r{n}" for n in range(10)))
        await service.cancel(*(f"r{n}" for n in range(8)))
        reader = Reader()
        async with aclosing(hub.watch("job", 0)) as stream:
            while not reader.whole:
                reader.take(await anext(stream))
    assert reader.living == {"r8", "r9"}
    assert reader.parts == [0, 0, 1, 1]


async def test_events_that_all_streams_have_sent_are_not_kept_in_memory(tmp_path: Path) -> None:
    async with serving(tmp_path) as (service, hub):
        await service.submit(*(f"r{n}" for n in range(6)))
        quick, slow = hub.watch("job", 0), hub.watch("job", 0)
        async with aclosing(quick), aclosing(slow):
            readers = Reader(), Reader()
            for stream, reader in ((quick, readers[0]), (slow, readers[1])):
                reader.take(await anext(stream))
            for number in range(5):
                await service.cancel(f"r{number}")
                while readers[0].sequence <= number:
                    readers[0].take(await anext(quick))
            (kept,) = (len(feed.tail) for feed in hub._feeds.values())
            assert kept == 5  # the slow one has not sent any of them
            while readers[1].sequence < 5:
                readers[1].take(await anext(slow))
            await service.cancel("r5")
            for stream, reader in ((quick, readers[0]), (slow, readers[1])):
                while reader.sequence < 6:
                    reader.take(await anext(stream))
            (kept,) = (len(feed.tail) for feed in hub._feeds.values())
            assert kept <= 1
    assert readers[0].living == readers[1].living == set()


async def test_a_job_without_requests_has_an_empty_snapshot(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_service, hub):
        reader = Reader()
        async with aclosing(hub.watch("job", 0)) as stream:
            reader.take(await anext(stream))
        assert reader.whole
        assert reader.parts == [0]
        with pytest.raises(NotFound):
            await anext(hub.watch("nobody", 0))

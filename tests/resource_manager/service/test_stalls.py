"""Tests that a stalled resource manager does not count its own stall as silence of others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.effects import Effect, PublishClusterEvent
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import ExecutorRegistered, JobRegistered
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.service.engine_driver import EngineDriver, Item
from resource_manager.service.metrics import ResourceManagerMetrics
from tests.resource_manager.service.test_runner import GatedStore
from tests.support.engine_cluster import host

SETTINGS = EngineSettings(report_interval_ms=1_000, lost_timeout_ms=5_000)
LEASE_MS = 6_000
TICK_MS = 200


class Standing:
    """A state with one executor and one job, and a clock that the test moves."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.now_ms = 100_000
        self.loop = loop
        metrics = ResourceManagerMetrics("test")
        store: Any = GatedStore()
        self.driver = EngineDriver(store, SETTINGS, metrics, holder="test", clock=self.clock)
        self.driver.load()
        small = ResourceProfile(100, 64 * MIB)
        executor = host("host-a", memory_bytes=GIB, default_profile=small)
        self.turn(
            lambda at: ExecutorRegistered(at, executor.registration(), executor.report()),
            lambda at: JobRegistered(at, "job", "job", "default", LEASE_MS, "s", "r"),
        )

    def clock(self) -> Instant:
        return Instant(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def turn(self, *makes: Any) -> list[str]:
        """Runs one batch with a tick; returns the kinds of its cluster events."""
        items = [Item(self.loop.create_future(), make=make) for make in makes]
        effects: list[Effect] = self.driver.run_batch(items, ticked=True)
        return [each.event.kind for each in effects if isinstance(each, PublishClusterEvent)]

    def pass_by(self, milliseconds: int) -> list[str]:
        """Lets time pass while the process is awake."""
        kinds = []
        for _ in range(0, milliseconds, TICK_MS):
            self.now_ms += TICK_MS
            kinds += self.turn()
        return kinds


@pytest.fixture
def standing() -> Iterator[Standing]:
    loop = asyncio.new_event_loop()
    yield Standing(loop)
    loop.close()


def test_whoever_is_silent_while_it_listens_is_lost(standing: Standing) -> None:
    assert standing.pass_by(7_000) == ["executor_lost", "job_ended"]


def test_nobody_is_lost_for_what_it_slept_through(standing: Standing) -> None:
    standing.now_ms += 60_000
    assert standing.turn() == []
    assert standing.pass_by(4_800) == []


def test_after_a_stall_silence_counts_anew(standing: Standing) -> None:
    standing.now_ms += 60_000
    standing.turn()
    assert standing.pass_by(4_800) == []
    assert standing.pass_by(400) == ["executor_lost"]
    assert standing.pass_by(1_000) == ["job_ended"]


def test_a_short_hitch_is_no_stall(standing: Standing) -> None:
    """Otherwise a busy host would never lose any executor."""
    kinds = standing.pass_by(2_000)
    standing.now_ms += 900
    kinds += standing.turn()
    assert kinds + standing.pass_by(2_200) == ["executor_lost"]

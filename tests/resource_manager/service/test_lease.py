"""Tests that nothing is sent while another may lead, with a store that can lose its lease."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from finegrain.errors import Reason, StoreError, Unavailable
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.service.engine_driver import EngineDriver
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner, RunnerLimits
from resource_manager.service.watchdog import writer_answers
from resource_manager.storage.store import NotLeader, StoreAway
from tests.resource_manager.service.test_runner import (
    GatedStore,
    Heard,
    committing,
    register,
    started,
)
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import eventually


class LeasedStore(GatedStore):
    """A store that leads until a test makes its leadership unsure, or makes another process the
    leader.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sure = True
        self.renewals = 0
        self.renewal: Callable[[], None] = self._renewed
        self.loading = threading.Event()
        self.loading.set()

    def _renewed(self) -> None:
        self.sure = True

    def holds_lease(self) -> bool:
        return self.sure

    def renew(self) -> None:
        self.renewals += 1
        self.renewal()

    def load(self) -> Any:
        assert self.loading.wait(PATIENCE_S)
        return super().load()


def taken() -> None:
    raise NotLeader("another has taken over")


def away() -> None:
    raise StoreAway("the database does not answer")


async def test_while_the_lease_holds_nobody_asks_the_database() -> None:
    store = LeasedStore()
    async with started(store) as (runner, _):
        await register(runner, "job-1")
        assert await runner.read(lambda state: len(state.jobs)) == 1
    assert store.renewals == 0


async def test_a_lease_in_doubt_is_renewed_before_anything_goes_out() -> None:
    store = LeasedStore()
    async with started(store) as (runner, heard):
        store.sure = False
        assert await register(runner, "job-1") == "job-1"
        assert store.renewals == 1
        assert heard.effects


async def test_a_renewal_that_took_longer_than_the_lease_is_no_permission() -> None:
    """The process may be stopped between request and answer: another may lead by now."""
    store = LeasedStore()

    def late() -> None:
        if store.renewals == 3:
            taken()

    async with started(store) as (runner, heard):
        store.sure, store.renewal = False, late
        with pytest.raises(Unavailable) as caught:
            await register(runner, "job-1")
        assert caught.value.reason is Reason.NOT_LEADER
        assert store.renewals == 3
        assert heard.effects == []


async def test_many_in_doubt_ask_the_database_once() -> None:
    """A silent database takes seconds to fail; each caller must not wait for that separately."""
    store = LeasedStore()
    answers = threading.Event()

    def slow() -> None:
        assert answers.wait(PATIENCE_S)
        store.sure = True

    async with started(store) as (runner, _):
        store.sure, store.renewal = False, slow
        asking = [asyncio.create_task(runner.confirm()) for _ in range(100)]
        await eventually(lambda: store.renewals == 1)
        asking.pop().cancel()
        answers.set()
        await asyncio.gather(*asking)
        assert store.renewals == 1


@pytest.mark.parametrize("ask", ["a change", "a read"])
async def test_who_was_replaced_answers_nobody_and_commands_nothing(ask: str) -> None:
    """This happens after a stall: the commit became durable just in time, or there was nothing to
    commit.
    """
    store = LeasedStore()
    async with started(store) as (runner, heard):
        await register(runner, "job-0")
        heard.effects.clear()
        store.sure, store.renewal = False, taken
        call: Coroutine[Any, Any, Any] | asyncio.Future[str] = (
            register(runner, "job-1")
            if ask == "a change"
            else runner.read(lambda state: len(state.jobs))
        )
        with pytest.raises(Unavailable) as caught:
            await call
        assert caught.value.reason is Reason.NOT_LEADER
        assert heard.effects == []
        assert isinstance(await runner.fatal, NotLeader)
        with pytest.raises(NotLeader):
            await runner.confirm()


async def test_a_database_that_does_not_say_is_no_permission() -> None:
    store = LeasedStore()
    async with started(store) as (runner, heard):
        store.sure, store.renewal = False, away
        with pytest.raises(StoreError, match="does not answer"):
            await register(runner, "job-1")
        assert heard.effects == []
        with pytest.raises(StoreError):
            await runner.confirm()
        assert not runner.fatal.done()


async def test_callers_are_sent_away_while_it_stays_unsure_who_leads() -> None:
    """A commit that hangs (the database is unreachable) must not keep callers waiting."""
    store = LeasedStore()
    limits = RunnerLimits(
        tick_interval_s=0.02,
        maintain_interval_s=3600,
        renew_interval_s=3600,
        unsure_max_s=0.05,
    )
    async with started(store, limits) as (runner, _):
        store.gate.clear()
        stuck = register(runner, "job-1")
        await committing(store)
        waiting = register(runner, "job-2")
        store.sure = False
        for call in (stuck, waiting):
            with pytest.raises(Unavailable) as caught:
                await asyncio.wait_for(call, 30)
            assert caught.value.reason is Reason.NOT_LEADER
        with pytest.raises(
            Unavailable, match="does not confirm that this resource manager still leads"
        ):
            await register(runner, "job-3")
        store.sure = True
        store.gate.set()

        async def served() -> str:
            while True:
                try:
                    return await register(runner, "job-4")
                except Unavailable:
                    await asyncio.sleep(0.02)

        assert await asyncio.wait_for(served(), PATIENCE_S) == "job-4"


async def test_whatever_goes_wrong_renewing_goes_on() -> None:
    """A renewal that fails in an unexpected way must not be the last one."""
    store = LeasedStore()
    limits = RunnerLimits(renew_interval_s=0.01, maintain_interval_s=3600)

    def broken() -> None:
        raise RuntimeError("nobody foresaw this")

    store.renewal = broken
    async with started(store, limits) as (runner, _):
        await eventually(lambda: store.renewals >= 3)
        assert not runner.fatal.done()


async def test_it_is_neither_ready_nor_dead_while_it_is_unsure_who_leads() -> None:
    """When idle, it asks the database for its lease only."""
    store = LeasedStore()
    limits = RunnerLimits(
        tick_interval_s=0.01,
        maintain_interval_s=3600,
        renew_interval_s=3600,
        unsure_max_s=0.02,
    )
    async with started(store, limits) as (runner, _):
        assert runner.healthy
        store.sure, store.renewal = False, away
        await eventually(lambda: not runner.healthy)
        assert await writer_answers(runner)
        store.sure = True
        await eventually(lambda: runner.healthy)
        assert await writer_answers(runner)


async def test_the_lease_is_renewed_while_the_books_are_read() -> None:
    store = LeasedStore()
    store.loading.clear()
    metrics = ResourceManagerMetrics("test")
    driver = EngineDriver(store, EngineSettings(), metrics, holder="test")
    runner = Runner(driver, metrics, limits=RunnerLimits(renew_interval_s=0.01))
    starting = asyncio.create_task(runner.start(Heard()))
    await eventually(lambda: store.renewals >= 3)
    assert not starting.done()
    store.renewal = taken
    store.loading.set()
    await eventually(runner.fatal.done)
    await asyncio.gather(starting, return_exceptions=True)
    await runner.stop()

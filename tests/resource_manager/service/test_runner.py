"""Tests of the single writer: order, group commit, reads, overload, time."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from finegrain.errors import (
    AlreadyExists,
    IllegalTransition,
    InvariantBroken,
    Reason,
    ResourceExhausted,
    StoreError,
    Unavailable,
)
from resource_manager.engine.model.effects import (
    Changes,
    Effect,
    ProbeExecutor,
    PublishClusterEvent,
    SendFree,
    StepResult,
)
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import Decide, JobRegistered, Ticked
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.service.engine_driver import EngineDriver, StateSuspect
from resource_manager.service.executor_link import ExecutorLinks, LinkOptions
from resource_manager.service.identities.epochs import EpochProofs
from resource_manager.service.lanes import LaneLimits
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner, RunnerLimits
from resource_manager.storage.memory_store import MemoryStore
from tests.support.identities import authority, own
from tests.support.patience import PATIENCE_S

QUIET = RunnerLimits(tick_interval_s=3600, maintain_interval_s=3600, renew_interval_s=3600)


class GatedStore(MemoryStore):
    """Records commits for the test; `gate` delays a commit in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Changes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.committing = threading.Event()

    def commit(self, changes: Changes) -> None:
        self.committing.set()
        assert self.gate.wait(PATIENCE_S)
        super().commit(changes)
        self.commits.append(changes)


class Heard:
    """A listener that records events."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.reloads: list[int] = []

    def on_effects(self, effects: Sequence[Effect]) -> None:
        self.effects += effects

    def on_reload(self, rm_epoch: int) -> None:
        self.reloads.append(rm_epoch)


@asynccontextmanager
async def started(
    store: GatedStore, limits: RunnerLimits = QUIET, **parts: Any
) -> AsyncIterator[tuple[Runner, Heard]]:
    metrics = ResourceManagerMetrics("test")
    driver = EngineDriver(store, EngineSettings(), metrics, holder="test", **parts)
    runner, heard = Runner(driver, metrics, limits=limits), Heard()
    await runner.start(heard)
    try:
        yield runner, heard
    finally:
        store.gate.set()
        await runner.stop()


def job(job_id: str) -> Callable[[Instant], JobRegistered]:
    return lambda at: JobRegistered(at, job_id, "a job", "default", None, "s" * 64, "r" * 64)


def register(runner: Runner, job_id: str, *, light: bool = False) -> asyncio.Future[str]:
    return asyncio.ensure_future(
        runner.submit(job(job_id), lambda known: str(known.job_id), light=light)
    )


weights = pytest.mark.parametrize("light", [False, True], ids=["heavy", "light"])
"""Whether the steps run on the writer's thread, or on the event loop."""


async def committing(store: GatedStore) -> None:
    assert await asyncio.to_thread(store.committing.wait, 30)
    store.committing.clear()


@weights
async def test_answers_and_effects_come_only_after_the_commit(light: bool) -> None:
    store = GatedStore()
    store.gate.clear()
    async with started(store) as (runner, heard):
        answer = register(runner, "job-1", light=light)
        await committing(store)
        await asyncio.sleep(0)
        assert not answer.done()
        assert not heard.effects
        store.gate.set()
        assert await answer == "job-1"
        assert [each.event.kind for each in heard.effects if isinstance(each, PublishClusterEvent)]


async def test_what_arrives_during_a_commit_is_committed_together() -> None:
    store = GatedStore()
    store.gate.clear()
    async with started(store) as (runner, _):
        first = register(runner, "job-0")
        await committing(store)
        rest = [register(runner, f"job-{n}") for n in range(1, 50)]
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, *rest)
    assert [len(each.jobs) for each in store.commits] == [1, 49]


@pytest.mark.parametrize(
    ("light", "thread"), [(False, "rm-writer_0"), (True, "MainThread")], ids=["heavy", "light"]
)
async def test_only_light_events_are_stepped_on_the_event_loop(light: bool, thread: str) -> None:
    from resource_manager.engine.step import step

    threads: list[str] = []

    def noted(state: Any, event: Any) -> Any:
        if isinstance(event, JobRegistered):
            threads.append(threading.current_thread().name)
        return step(state, event)

    store = GatedStore()
    async with started(store, step=noted, light_s=inf) as (runner, _):
        # The first batch possibly runs the timers, too, and is then not light.
        await runner.read(lambda _state: None)
        await register(runner, "job-1", light=light)
        # In a batch with another event, a light event is stepped on the thread, too.
        store.gate.clear()
        first = register(runner, "job-2", light=light)
        await committing(store)
        rest = [register(runner, "job-3", light=True), register(runner, "job-4")]
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, *rest)
    assert threads == [thread, thread, "rm-writer_0", "rm-writer_0"]


async def test_steps_that_took_long_are_not_continued_on_the_event_loop() -> None:
    from resource_manager.engine.step import step

    threads: list[str] = []

    def noted(state: Any, event: Any) -> Any:
        if isinstance(event, JobRegistered):
            threads.append(threading.current_thread().name)
        return step(state, event)

    # Every batch takes longer than 0 s.
    async with started(GatedStore(), step=noted, light_s=0.0) as (runner, _):
        await register(runner, "job-1")
        await register(runner, "job-2", light=True)
    assert threads == ["rm-writer_0", "rm-writer_0"]


@weights
async def test_reads_wait_for_the_commit_and_never_show_what_is_not_durable(light: bool) -> None:
    store = GatedStore()
    store.gate.clear()
    async with started(store) as (runner, _):
        register(runner, "job-1", light=light)
        await committing(store)
        seen = asyncio.ensure_future(
            runner.read(lambda state: (len(state.jobs), len(store.commits)))
        )
        # A read that did not wait would be answered within a few turns of the loop.
        for _ in range(100):
            await asyncio.sleep(0)
        assert not seen.done()
        store.gate.set()
        assert await seen == (1, 1)


async def test_a_refused_event_concerns_its_caller_only() -> None:
    async with started(GatedStore()) as (runner, _):
        await register(runner, "job-1")
        refused: Coroutine[Any, Any, Any] = runner.submit(
            lambda at: JobRegistered(at, "job-1", "another", "default", None, "s" * 64, "r" * 64)
        )
        results = await asyncio.gather(refused, register(runner, "job-2"), return_exceptions=True)
    assert isinstance(results[0], AlreadyExists)
    assert results[1] == "job-2"


async def test_above_the_limit_callers_are_told_when_to_come_back() -> None:
    store = GatedStore()
    store.gate.clear()
    limits = RunnerLimits(tick_interval_s=3600, lanes=LaneLimits(queue_items_max=3, retry_s=0.7))
    async with started(store, limits) as (runner, _):
        first = register(runner, "job-0")
        await committing(store)
        waiting = [register(runner, f"job-{n}") for n in range(1, 4)]
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted) as caught:
            await runner.submit(job("job-9"))
        assert caught.value.retry_after_s == 0.7
        store.gate.set()
        assert await asyncio.gather(first, *waiting) == ["job-0", "job-1", "job-2", "job-3"]


async def test_large_calls_side_by_side_count_with_all_their_parts() -> None:
    store = GatedStore()
    store.gate.clear()
    limits = RunnerLimits(tick_interval_s=3600, lanes=LaneLimits(owner_items_max=40))
    async with started(store, limits) as (runner, _):
        first = register(runner, "job-0")
        await committing(store)
        makes = [job(f"job-{n}") for n in range(1, 4)]
        call: Coroutine[Any, Any, Any] = runner.submit_chunks(makes, items=10, owner="flood")
        large = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        with pytest.raises(ResourceExhausted, match="30 items of this caller"):
            await runner.submit_chunks(makes, items=10, owner="flood")
        store.gate.set()
        await first
        assert [each.job_id for each in await large] == ["job-1", "job-2", "job-3"]


async def test_large_batches_are_split_and_signs_of_life_go_first() -> None:
    store = GatedStore()
    store.gate.clear()
    limits = RunnerLimits(tick_interval_s=3600, lanes=LaneLimits(batch_items_max=10))
    order: list[str] = []

    def noted(name: str, _done: asyncio.Future[Any]) -> None:
        order.append(name)

    async with started(store, limits) as (runner, _):
        first = register(runner, "job-0")
        await committing(store)
        calls: list[Coroutine[Any, Any, Any]] = [
            runner.submit(job(f"large-{n}"), items=8) for n in range(2)
        ]
        waiting = [asyncio.ensure_future(each) for each in calls]
        sign: Coroutine[Any, Any, Any] = runner.submit(job("urgent"), urgent=True)
        urgent = asyncio.ensure_future(sign)
        for name, task in (("large-0", waiting[0]), ("large-1", waiting[1]), ("urgent", urgent)):
            task.add_done_callback(functools.partial(noted, name))
        await asyncio.sleep(0)
        store.gate.set()
        await asyncio.gather(first, urgent, *waiting)
    assert [[each.job_id for each in changes.jobs] for changes in store.commits] == [
        ["job-0"],
        ["urgent", "large-0"],
        ["large-1"],
    ]
    assert order == ["urgent", "large-0", "large-1"]


@weights
async def test_a_step_that_may_have_half_changed_the_books_drops_them(light: bool) -> None:
    from resource_manager.engine.step import step

    def failing(state: Any, event: Any) -> Any:
        if isinstance(event, JobRegistered) and event.job_id == "poison":
            state.jobs["half"] = None
            raise RuntimeError("a bug")
        return step(state, event)

    store = GatedStore()
    async with started(store, step=failing) as (runner, heard):
        with pytest.raises(Exception, match="failed while it handled this call"):
            await runner.submit(job("poison"), light=light)
        assert await runner.read(lambda state: list(state.jobs)) == []
        assert (heard.reloads, runner.rm_epoch) == ([2], 2)
        assert not any(changes.jobs for changes in store.commits)
        assert not isinstance(await register(runner, "job-1"), StateSuspect)


async def test_who_shares_a_batch_with_a_bug_may_try_again() -> None:
    from resource_manager.engine.step import step

    def failing(state: Any, event: Any) -> Any:
        if isinstance(event, JobRegistered) and event.job_id == "poison":
            raise IllegalTransition("a bug")
        return step(state, event)

    store = GatedStore()
    store.gate.clear()
    async with started(store, step=failing) as (runner, heard):
        first = register(runner, "job-0")
        await committing(store)
        rest = [register(runner, name) for name in ("job-1", "poison", "job-2")]
        await asyncio.sleep(0)
        store.gate.set()
        told = await asyncio.gather(first, *rest, return_exceptions=True)
        assert [type(each) for each in told] == [str, StoreError, IllegalTransition, StoreError]
        made = [each.job_id for changes in store.commits for each in changes.jobs]
        assert made == ["job-0"]
        assert await register(runner, "job-1") == "job-1"
        assert heard.reloads == [2]


async def test_a_bug_in_a_decision_undoes_its_batch() -> None:
    from resource_manager.engine.step import step

    broken = True

    def failing(state: Any, event: Any) -> Any:
        nonlocal broken
        if broken and isinstance(event, Decide):
            broken = False
            raise InvariantBroken("a bug")
        return step(state, event)

    store = GatedStore()
    async with started(store, step=failing) as (runner, heard):
        with pytest.raises(StoreError, match="was not applied; try again"):
            await register(runner, "job-1")
        assert not store.commits
        assert await register(runner, "job-1") == "job-1"
        assert heard.reloads == [2]


async def test_signs_of_life_that_waited_count_before_anybody_is_called_lost() -> None:
    """The tick of a batch comes last, with the time of the batch."""
    from resource_manager.engine.step import step

    seen: list[str] = []

    def noting(state: Any, event: Any) -> Any:
        seen.append(type(event).__name__)
        return step(state, event)

    store = GatedStore()
    store.gate.clear()
    limits = RunnerLimits(tick_interval_s=0.01)
    async with started(store, limits, step=noting) as (runner, _):
        first = register(runner, "job-0")
        await committing(store)
        seen.clear()
        second = register(runner, "job-1")
        await asyncio.sleep(0.05)  # several ticks become due in the meantime and count as one
        store.gate.set()
        await asyncio.gather(first, second)
        assert seen[:3] == ["JobRegistered", "Ticked", "Decide"]


async def test_time_that_passes_is_noticed_though_nobody_calls() -> None:
    """Expired leases, ended delays and lost executors have no caller that would wake the writer."""
    store, ticked = GatedStore(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def noting(_state: Any, event: Any) -> Any:
        if isinstance(event, Ticked):
            loop.call_soon_threadsafe(ticked.set)
        return StepResult()

    limits = replace(QUIET, tick_interval_s=0.01)
    async with started(store, limits, step=noting), asyncio.timeout(30):
        for _ in range(3):
            await ticked.wait()
            ticked.clear()


async def test_before_the_start_and_after_the_stop_callers_are_sent_away() -> None:
    metrics = ResourceManagerMetrics("test")
    driver = EngineDriver(GatedStore(), EngineSettings(), metrics, holder="test")
    runner = Runner(driver, metrics, limits=QUIET)
    with pytest.raises(Unavailable, match="starting"):
        await runner.read(lambda state: state)
    await runner.start(Heard())
    await runner.stop()
    with pytest.raises(Unavailable, match="stopping") as caught:
        await runner.submit(job("job-1"))
    assert caught.value.reason is Reason.UNREACHABLE


async def test_nobody_is_commanded_after_the_links_were_stopped() -> None:
    """The last batch, after callers were rejected, may still decide something."""
    metrics = ResourceManagerMetrics("test")
    async with started(GatedStore()) as (runner, _):
        links = ExecutorLinks(
            runner, metrics, LinkOptions(own("rm"), EpochProofs(authority, own("rm")))
        )
        await links.stop()
        before = asyncio.all_tasks()
        links.probe(ProbeExecutor("host-a", "127.0.0.1:1"))
        links.send(SendFree("host-a", "127.0.0.1:1", 1, 1, ()))
        assert asyncio.all_tasks() == before

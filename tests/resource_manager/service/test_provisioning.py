"""Tests how orders of the engine reach providers, and how outcomes come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from finegrain.errors import FinegrainError, NotFound, Reason, StoreError, Unavailable
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.entities import Instant, Provision
from resource_manager.engine.model.events import (
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.providers.provider import Observation, Presence, ProviderFailed, Started
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.provisioning import Providers, Provisioning
from resource_manager.storage.store import NotLeader
from tests.support.rm_service import eventually

AT = Instant(monotonic_ms=1, time_ms=2)
ID = "small-1-1"


class Books:
    """A runner that takes events, and may be unavailable or replaced as the leader."""

    def __init__(self) -> None:
        self.fatal: asyncio.Future[FinegrainError] = asyncio.get_running_loop().create_future()
        self.told: list[Any] = []
        self.refusals: list[FinegrainError] = []
        self.doubts: list[FinegrainError] = []
        self.provisions: dict[str, Provision] = {}
        self.hosts: dict[str, object] = {}
        self.reads = 0

    async def confirm(self) -> None:
        await asyncio.sleep(0)
        if self.doubts:
            raise self.doubts.pop(0)

    async def submit(self, make: Any, render: Any, *, urgent: bool) -> None:
        await asyncio.sleep(0)
        if self.refusals:
            raise self.refusals.pop(0)
        self.told.append(make(AT))

    async def read(self, fn: Callable[[Any], Any]) -> Any:
        await asyncio.sleep(0)
        self.reads += 1
        if self.refusals:
            raise self.refusals.pop(0)
        return fn(SimpleNamespace(provisions=self.provisions, hosts=self.hosts))

    def has(self, state: ProvidedExecutorState, handle: str = "unit-1") -> None:
        self.provisions[ID] = Provision(ID, "small", 1, "a test", 0, state=state, handle=handle)


@dataclass
class Scripted:
    """A scripted provider; calls wait for `gate` if there is one."""

    start_outcome: Started | Exception = field(default_factory=lambda: Started("unit-1", "hello"))
    stop_outcomes: list[str | Exception] = field(default_factory=list)
    observations: list[Observation | Exception] = field(default_factory=list)
    gate: asyncio.Event | None = None
    known: frozenset[str] = frozenset()
    calls: list[tuple[str, ...]] = field(default_factory=list)
    under_way: list[str] = field(default_factory=list)
    closed: bool = False

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        self.calls.append(("start", executor_id, shape, "again" if again else ""))
        await self._work(executor_id)
        if isinstance(self.start_outcome, Exception):
            raise self.start_outcome
        return self.start_outcome

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        self.calls.append(("stop", executor_id, shape, handle))
        await self._work(executor_id)
        outcome = self.stop_outcomes.pop(0) if self.stop_outcomes else ""
        if isinstance(outcome, Exception):
            raise outcome
        self.known -= {executor_id}
        return outcome

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        await asyncio.sleep(0)
        observation = self.observations.pop(0) if self.observations else Observation(Presence.RUNS)
        if isinstance(observation, Exception):
            raise observation
        return observation

    def owns(self, executor_id: str) -> bool:
        return executor_id in self.known

    def noted(self) -> list[str]:
        return sorted(self.known)

    async def close(self) -> None:
        self.closed = True

    async def _work(self, executor_id: str) -> None:
        assert executor_id not in self.under_way, "two calls about one executor"
        self.under_way.append(executor_id)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.under_way.remove(executor_id)


@dataclass
class Service:
    """The provisioning service between a scripted runner and a scripted provider."""

    books: Books
    provider: Scripted
    provisioning: Provisioning
    metrics: ResourceManagerMetrics

    def order(self, *wishes: StartExecutor | StopExecutor) -> None:
        for each in wishes:
            self.provisioning.carry_out(each)

    async def told(self, count: int = 1) -> list[Any]:
        await eventually(lambda: len(self.books.told) >= count, what=f"{count} outcomes")
        return self.books.told

    async def looked_on(self) -> None:
        """Waits for three more checks, each of which begins with two reads."""
        before = self.books.reads
        await eventually(lambda: self.books.reads >= before + 2 * 3 + 1, what="looks")

    async def called(self, count: int) -> list[tuple[str, ...]]:
        await eventually(lambda: len(self.provider.calls) >= count, what=f"{count} calls")
        return self.provider.calls


@asynccontextmanager
async def service(provider: Scripted | None = None) -> AsyncIterator[Service]:
    books, scripted = Books(), provider or Scripted()
    metrics = ResourceManagerMetrics("0")
    providers = Providers(
        {"scripted": scripted}, {"small": "scripted"}, look_interval_s=0.01, stray_timeout_s=0.1
    )
    made = Provisioning(books, metrics, providers)  # type: ignore[arg-type]
    try:
        yield Service(books, scripted, made, metrics)
    finally:
        await made.stop()
        assert scripted.closed
        assert not scripted.under_way


START = StartExecutor(ID, "small")
STOP = StopExecutor(ID, "small", "unit-1")


async def test_a_start_and_a_stop_are_answered_with_what_came_of_them() -> None:
    async with service(Scripted(stop_outcomes=["good bye"])) as at:
        at.order(START)
        await at.told(1)
        at.order(STOP)

        assert await at.told(2) == [
            ProvisionStarted(AT, ID, "unit-1", "hello"),
            ProvisionEnded(AT, ID, "good bye"),
        ]
        assert at.provider.calls == [("start", ID, "small", ""), ("stop", ID, "small", "unit-1")]
        counted = at.metrics.provider_calls.labels("scripted", "start", "done")
        assert counted._value.get() == 1


async def test_a_provider_is_told_that_it_may_have_been_told_before() -> None:
    async with service() as at:
        at.order(StartExecutor(ID, "small", again=True))
        await at.told()
        assert at.provider.calls == [("start", ID, "small", "again")]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ProviderFailed("no share is free"), "no share is free"),
        (RuntimeError("a bug"), "provider scripted failed at start: RuntimeError('a bug')"),
        (ProviderFailed("x" * 5_000), "x" * 1_000 + "..."),
    ],
)
async def test_failures_are_told_with_their_cause(error: Exception, message: str) -> None:
    async with service(Scripted(start_outcome=error)) as at:
        at.order(START)
        assert await at.told() == [ProvisionFailed(AT, ID, message)]


async def test_a_stop_that_failed_is_told_and_can_be_asked_for_again() -> None:
    async with service(Scripted(stop_outcomes=[ProviderFailed("the host is away")])) as at:
        at.order(STOP)
        await at.told(1)
        at.order(STOP)
        assert await at.told(2) == [
            ProvisionStopFailed(AT, ID, "the host is away"),
            ProvisionEnded(AT, ID),
        ]


async def test_one_wish_twice_is_one_call() -> None:
    async with service(Scripted(gate=asyncio.Event())) as at:
        at.order(START, START, StartExecutor(ID, "small", again=True))
        await at.called(1)
        at.provider.gate.set()  # type: ignore[union-attr]
        await at.told()
        # A second call would be made within a few turns of the loop, none of which waits.
        for _ in range(100):
            await asyncio.sleep(0)
        assert at.provider.calls == [("start", ID, "small", "")]
        assert len(at.books.told) == 1


async def test_a_stop_ends_the_start_that_is_under_way_and_comes_after_it() -> None:
    async with service(Scripted(gate=asyncio.Event())) as at:
        at.order(START)
        await at.called(1)
        at.order(STOP)
        await at.called(2)
        at.provider.gate.set()  # type: ignore[union-attr]
        assert await at.told() == [ProvisionEnded(AT, ID)]


async def test_executors_do_not_wait_for_each_other() -> None:
    async with service(Scripted(gate=asyncio.Event())) as at:
        at.order(*(StartExecutor(f"small-1-{n}", "small") for n in range(20)))
        await at.called(20)
        at.provider.gate.set()  # type: ignore[union-attr]
        await at.told(20)


async def test_an_outcome_is_told_until_the_books_have_it() -> None:
    async with service() as at:
        at.books.refusals = [
            Unavailable("starting"),
            StoreError("the commit failed"),
            Unavailable("the books are read anew"),
        ]
        at.order(START)
        assert await at.told() == [ProvisionStarted(AT, ID, "unit-1", "hello")]


async def test_an_outcome_that_the_books_refuse_is_dropped() -> None:
    async with service() as at:
        at.books.refusals = [NotFound("nobody asked for it")]
        at.order(START)
        await eventually(lambda: not at.provisioning._works, what="nothing is under way")
        assert at.books.told == []


async def test_a_stop_while_a_failed_stop_is_being_told_is_another_call() -> None:
    """The engine receives the failure and makes the next order before the service knows that the
    engine has received it.
    """
    async with service(Scripted(stop_outcomes=[ProviderFailed("away")])) as at:
        at.books.refusals = [Unavailable("starting")]
        at.order(STOP)
        await eventually(lambda: not at.books.refusals, what="it is being told")
        at.order(STOP)
        await at.told(2)
        assert at.provider.calls == [("stop", ID, "small", "unit-1")] * 2


async def test_nothing_is_done_by_one_that_may_not_lead() -> None:
    async with service() as at:
        at.books.doubts = [NotLeader("another one leads", reason=Reason.STORE_IN_USE)]
        at.order(START)
        await eventually(lambda: not at.provisioning._works, what="it is given up")
        assert at.provider.calls == []
        assert at.books.told == []


async def test_while_it_is_unsure_who_leads_nothing_is_done_yet() -> None:
    async with service() as at:
        at.books.doubts = [StoreError("away"), StoreError("away")]
        at.order(START)
        await at.told()
        assert at.books.doubts == []


async def test_one_that_ended_by_itself_is_cleared_away_and_told() -> None:
    observations: list[Observation | Exception] = [
        Observation(Presence.RUNS),
        Observation(Presence.ENDED, "exit status 1"),
    ]
    async with service(Scripted(observations=observations)) as at:
        at.books.has(ProvidedExecutorState.REGISTERED)
        at.provisioning.begin()
        told = await at.told()
        assert told[0] == ProvisionEnded(AT, ID, "it ended by itself: exit status 1")
        assert at.provider.calls[0] == ("stop", ID, "small", "unit-1")


@pytest.mark.parametrize("state", [ProvidedExecutorState.ASKED, ProvidedExecutorState.STOPPING])
async def test_those_that_need_not_run_are_not_looked_at(state: ProvidedExecutorState) -> None:
    observations: list[Observation | Exception] = [Observation(Presence.ENDED)]
    async with service(Scripted(observations=observations)) as at:
        at.books.has(state)
        at.provisioning.begin()
        await at.looked_on()
        assert at.provider.observations == observations


@pytest.mark.parametrize(
    "observation",
    [Observation(Presence.UNKNOWN, "cannot be told"), ProviderFailed("no"), ValueError("a bug")],
)
async def test_what_cannot_be_seen_is_left_alone(observation: Observation | Exception) -> None:
    async with service(Scripted(observations=[observation])) as at:
        at.books.has(ProvidedExecutorState.STARTED)
        at.provisioning.begin()
        await eventually(lambda: not at.provider.observations, what="it was looked at")
        await at.looked_on()
        assert at.provider.calls == []


async def test_one_that_cannot_be_cleared_away_is_tried_again_at_the_next_look() -> None:
    provider = Scripted(
        observations=[Observation(Presence.ENDED), Observation(Presence.ENDED)],
        stop_outcomes=[ProviderFailed("a process is left")],
    )
    async with service(provider) as at:
        at.books.has(ProvidedExecutorState.REGISTERED)
        at.provisioning.begin()
        assert await at.told() == [ProvisionEnded(AT, ID, "it ended by itself")]
        assert len(at.provider.calls) >= 2


async def test_a_stop_asked_for_while_it_is_cleared_away_is_answered() -> None:
    provider = Scripted(
        observations=[Observation(Presence.ENDED)],
        stop_outcomes=[ProviderFailed("a process is left")],
        gate=asyncio.Event(),
    )
    async with service(provider) as at:
        at.books.has(ProvidedExecutorState.REGISTERED)
        at.provisioning.begin()
        await at.called(1)
        at.order(STOP)
        provider.gate.set()  # type: ignore[union-attr]
        assert (await at.told())[0] == ProvisionStopFailed(AT, ID, "a process is left")


async def test_looking_goes_on_when_the_books_are_away_for_a_moment() -> None:
    async with service(Scripted(observations=[Observation(Presence.ENDED)])) as at:
        at.books.has(ProvidedExecutorState.STARTED)
        at.books.refusals = [Unavailable("starting")]
        at.provisioning.begin()
        await at.told()


class Unreadable(Scripted):
    """A provider whose notes are on a failing disk."""

    def owns(self, executor_id: str) -> bool:
        raise OSError(5, "Input/output error")

    def noted(self) -> list[str]:
        raise OSError(5, "Input/output error")


async def test_notes_that_cannot_be_read_keep_nobody_from_being_looked_after() -> None:
    observations: list[Observation | Exception] = [
        Observation(Presence.RUNS),
        Observation(Presence.ENDED, "exit status 1"),
    ]
    async with service(Unreadable(observations=observations)) as at:
        at.books.has(ProvidedExecutorState.REGISTERED)
        gone = Provision("old-1-1", "old", 2, "a test", 0, state=ProvidedExecutorState.REGISTERED)
        at.books.provisions["old-1-1"] = gone
        at.provisioning.begin()
        assert await at.told() == [ProvisionEnded(AT, ID, "it ended by itself: exit status 1")]
        del at.books.provisions[ID]
        at.order(StopExecutor("old-1-1", "old", ""))
        (_, failed) = await at.told(2)
        assert isinstance(failed, ProvisionStopFailed)
        assert "scripted could not check: OSError(5, 'Input/output error')" in failed.message


async def test_the_provider_of_a_shape_that_is_gone_is_found_by_what_it_knows() -> None:
    async with service(Scripted(known=frozenset({"old-1-1"}))) as at:
        at.order(StopExecutor("old-1-1", "old", "unit-9"))
        assert await at.told() == [ProvisionEnded(AT, "old-1-1")]
        at.order(StopExecutor("old-1-2", "old", "unit-9"))
        (_, failed) = await at.told(2)
        assert isinstance(failed, ProvisionStopFailed)
        assert "configure the shape again" in failed.message


async def test_whoever_started_it_stops_it_though_its_shape_is_another_ones_now() -> None:
    former = Scripted(known=frozenset({ID}))
    async with service() as at:
        at.provisioning._providers = Providers(
            {"former": former, "scripted": at.provider}, {"small": "scripted"}
        )
        at.order(STOP, StopExecutor("small-1-2", "small"))
        await at.told(2)
        assert former.calls == [("stop", ID, "small", "unit-1")]
        assert at.provider.calls == [("stop", "small-1-2", "small", "")]


async def test_what_the_books_know_nothing_of_is_stopped_after_a_while() -> None:
    """A restored backup may lack an executor; one that registers in time is known again."""
    async with service(Scripted(known=frozenset({ID, "stray-1-1", "came-1-1"}))) as at:
        at.books.has(ProvidedExecutorState.ASKED)
        at.books.hosts["came-1-1"] = object()
        at.provisioning.begin()
        assert await at.called(1) == [("stop", "stray-1-1", "", "")]
        await at.looked_on()
        assert at.provider.calls == [("stop", "stray-1-1", "", "")]


async def test_its_end_ends_calls_but_no_executor() -> None:
    provider = Scripted(gate=asyncio.Event())
    async with service(provider) as at:
        at.order(START, StopExecutor("small-1-2", "small"))
        await at.called(2)
        await at.provisioning.stop()
        at.order(StopExecutor("small-1-3", "small"))
        assert len(provider.calls) == 2
        assert at.books.told == []


async def test_whoever_leads_no_longer_drops_what_was_to_follow() -> None:
    provider = Scripted(gate=asyncio.Event())
    async with service(provider) as at:
        at.order(START)
        await at.called(1)
        at.order(STOP)
        at.provisioning.drop_all()
        await eventually(lambda: not at.provisioning._works, what="nothing is under way")
        assert len(provider.calls) == 1
        assert at.books.told == []

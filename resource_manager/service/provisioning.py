"""Carries to providers what the rules want of them, and brings back what came of it.

Decides that an executor has at most one call under way, that a stop goes before a start, and that
an outcome is told until the books have it. Notices executors that ended by themselves, and clears
them away. Refuses to know when an executor is wanted and how one is started.

Calls outlast books that are read anew: what they are about is named by an id that is never used
again, and both outcomes are true whoever asks. They do not outlast leadership, nor this process:
whoever leads next asks again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from finegrain.errors import FinegrainError, Unavailable
from finegrain.logs import get_logger
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.events import (
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.engine.state import State
from resource_manager.providers.provider import (
    Observation,
    Presence,
    Provider,
    ProviderFailed,
    Started,
)
from resource_manager.service.engine_driver import MakeEvent
from resource_manager.service.leadership import may_command
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.runner import Runner

CHECKS_AT_ONCE_MAX = 16
TELL_PAUSE_S = 0.2
STRAY_TIMEOUT_S = 60.0
MESSAGE_LENGTH_MAX = 1_000

_log = get_logger("finegrain.rm.provisioning")

Order = StartExecutor | StopExecutor


@dataclass(frozen=True, slots=True)
class Providers:
    """Who starts and stops: providers by name, and which of them a shape belongs to."""

    by_name: Mapping[str, Provider]
    of_shape: Mapping[str, str]
    look_interval_s: float = 5.0
    stray_timeout_s: float = STRAY_TIMEOUT_S  # unknown to the books for so long: it is stopped

    def find(self, executor_id: str, shape: str) -> tuple[str, Provider]:
        """The provider of an executor: the one that has notes of it, since its shape may be
        configured no longer, or for another provider; else that of its shape.

        Raises:
            ProviderFailed: nobody knows it.
        """
        configured = self.of_shape.get(shape, "")
        trouble = ""
        for name in sorted(self.by_name, key=lambda name: name != configured):
            try:
                if self.by_name[name].owns(executor_id):
                    return name, self.by_name[name]
            except Exception as error:  # its notes cannot be read just now, say
                trouble = f" (provider {name} cannot say: {error!r})"
        if not configured:
            raise ProviderFailed(
                f"shape {shape} is not configured, and no provider knows executor {executor_id}"
                f"{trouble}; configure the shape again (providers_file), so that it can be stopped",
                details={"executor_id": executor_id, "shape": shape},
            )
        return configured, self.by_name[configured]


class Carries(Protocol):
    """What whoever dispatches effects needs of this."""

    def carry_out(self, order: Order) -> None:
        """Begins to carry a wish to its provider; the outcome comes back as an event."""


@dataclass(slots=True, eq=False)
class _Work:
    """What is under way for one executor, and what comes next."""

    order: Order
    ended_by_itself: str = ""  # why it is stopped although the rules did not ask for that
    answered: bool = False  # its provider has; the books may not know yet
    following: Order | None = None
    task: asyncio.Task[None] | None = None


class Provisioning:
    """One per resource manager; `begin` once it leads, `stop` at its end."""

    def __init__(
        self, runner: Runner, metrics: ResourceManagerMetrics, providers: Providers
    ) -> None:
        self._runner = runner
        self._metrics = metrics
        self._providers = providers
        self._works: dict[str, _Work] = {}
        self._seen: dict[str, Observation] = {}  # what was logged last, by executor
        self._strays: dict[str, float] = {}  # since when the books do not know them
        self._watcher: asyncio.Task[None] | None = None
        self._over = False

    def begin(self) -> None:
        """Looks after what was started from now on."""
        self._watcher = asyncio.get_running_loop().create_task(self._watch())

    def carry_out(self, order: Order) -> None:
        """See `Carries`."""
        if self._over:
            return
        work = self._works.get(order.executor_id)
        if work is None:
            self._work_on(_Work(order))
            return
        same = type(work.order) is type(order)
        if not same or (work.answered and isinstance(order, StopExecutor)):
            work.following = order
        else:  # the outcome of the call under way is the answer to this one, too
            work.ended_by_itself = ""
        if isinstance(order, StopExecutor) and isinstance(work.order, StartExecutor) and work.task:
            work.task.cancel()

    def drop_all(self) -> None:
        """Another one leads: what is under way is ended, as far as it can be, and not told."""
        self._over = True
        if self._watcher is not None:
            self._watcher.cancel()
        for work in self._works.values():
            work.following = None
            if work.task is not None:
                work.task.cancel()

    async def stop(self) -> None:
        """Ends what is under way and lets go of the providers; executors run on."""
        self.drop_all()
        tasks = [work.task for work in self._works.values() if work.task is not None]
        if self._watcher is not None:
            tasks.append(self._watcher)
        await asyncio.gather(*tasks, return_exceptions=True)
        for provider in self._providers.by_name.values():
            await provider.close()

    # -- one call ------------------------------------------------------------------------------

    def _work_on(self, work: _Work) -> None:
        executor_id = work.order.executor_id
        self._works[executor_id] = work
        work.task = asyncio.get_running_loop().create_task(self._carry(work))
        work.task.add_done_callback(lambda _task: self._ended(work))

    def _ended(self, work: _Work) -> None:
        self._works.pop(work.order.executor_id, None)
        if work.following is not None and not self._over:
            self._work_on(_Work(work.following))

    async def _carry(self, work: _Work) -> None:
        if not await may_command(self._runner):
            return
        order = work.order
        made = await (self._start(order) if isinstance(order, StartExecutor) else self._end(work))
        work.answered = True
        if made is not None:
            await self._tell(order.executor_id, made)

    async def _start(self, order: StartExecutor) -> MakeEvent:
        executor_id, shape = order.executor_id, order.shape
        try:
            name, provider = self._providers.find(executor_id, shape)
            started: Started = await self._timed(
                name, "start", provider.start(executor_id, shape, again=order.again)
            )
        except ProviderFailed as error:
            message = _shortened(error.message)
            _log.warning("executor_not_started", executor_id=executor_id, error=message)
            return lambda at: ProvisionFailed(at, executor_id, message)
        said, handle = _shortened(started.message), started.handle
        _log.info("executor_started", executor_id=executor_id, handle=handle, message=said)
        return lambda at: ProvisionStarted(at, executor_id, handle, said)

    async def _end(self, work: _Work) -> MakeEvent | None:
        assert isinstance(work.order, StopExecutor)  # noqa: S101 - it is no start
        executor_id, shape = work.order.executor_id, work.order.shape
        try:
            name, provider = self._providers.find(executor_id, shape)
            said: str = await self._timed(
                name, "stop", provider.stop(executor_id, shape, work.order.handle)
            )
        except ProviderFailed as error:
            message = _shortened(error.message)
            _log.warning("executor_not_stopped", executor_id=executor_id, error=message)
            if work.ended_by_itself:  # it is looked at again
                return None
            return lambda at: ProvisionStopFailed(at, executor_id, message)
        message = _shortened("; ".join(each for each in (work.ended_by_itself, said) if each))
        _log.info("executor_gone", executor_id=executor_id, message=message)
        return lambda at: ProvisionEnded(at, executor_id, message)

    async def _timed(self, provider: str, call: str, doing: Coroutine[Any, Any, Any]) -> Any:
        """Counts a call, and turns what a provider should not raise into a failure of its own."""
        began, outcome = time.monotonic(), "failed"
        try:
            result = await doing
            outcome = "done"
        except ProviderFailed:
            raise
        except Exception as error:
            _log.error("provider_broken", provider=provider, call=call, exc_info=error)
            raise ProviderFailed(f"provider {provider} failed at {call}: {error!r}") from error
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        finally:
            self._metrics.provider_calls.labels(provider, call, outcome).inc()
            self._metrics.provider_call_seconds.labels(provider, call).observe(
                time.monotonic() - began
            )
        return result

    async def _tell(self, executor_id: str, make: MakeEvent) -> None:
        """Until the books have it: the database may be away, and the books may be read anew."""
        while not self._runner.fatal.done():
            try:
                await self._runner.submit(make, render=lambda _none: None, urgent=True)
            except Unavailable:
                await asyncio.sleep(TELL_PAUSE_S)
                continue
            except FinegrainError as error:
                _log.info("outcome_dropped", executor_id=executor_id, error=error.message)
            return

    # -- looking after them --------------------------------------------------------------------

    async def _watch(self) -> None:
        slots = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)

        async def look(provision: StopExecutor) -> None:
            async with slots:
                await self._check(provision)

        while True:
            await asyncio.sleep(self._providers.look_interval_s)
            noted = await asyncio.to_thread(self._noted)
            try:
                present = await self._runner.read(_provisioned_executors)
                unknown = await self._runner.read(partial(_unknown, executor_ids=noted))
            except FinegrainError:
                continue  # the books are away for the moment
            self._stop_strays(unknown)
            known = {each.executor_id for each in present}
            self._seen = {
                name: observation for name, observation in self._seen.items() if name in known
            }
            await asyncio.gather(*(look(each) for each in present))

    async def _check(self, provision: StopExecutor) -> None:
        executor_id, shape = provision.executor_id, provision.shape
        if executor_id in self._works:
            return
        try:
            name, provider = self._providers.find(executor_id, shape)
            observation: Observation = await self._timed(
                name, "status", provider.status(executor_id, shape, provision.handle)
            )
        except ProviderFailed as error:
            observation = Observation(Presence.UNKNOWN, error.message)
        self._note(executor_id, observation)
        if (
            observation.presence is Presence.ENDED
            and executor_id not in self._works
            and not self._over
        ):
            said = (
                f"it ended by itself: {observation.message}"
                if observation.message
                else "it ended by itself"
            )
            self._work_on(_Work(provision, ended_by_itself=said))

    def _noted(self) -> list[str]:
        found: list[str] = []
        for name, provider in self._providers.by_name.items():
            try:
                found += provider.noted()
            except Exception as error:  # the others are looked after all the same
                _log.error("provider_broken", provider=name, call="noted", exc_info=error)
        return found

    def _stop_strays(self, unknown: list[str]) -> None:
        """Books that were restored to an earlier state do not know what was started since. What
        runs registers, is known then, and is given back like others; the rest goes.
        """
        now_s = time.monotonic()
        self._strays = {name: self._strays.get(name, now_s) for name in unknown}
        for name, since_s in self._strays.items():
            if now_s - since_s >= self._providers.stray_timeout_s and name not in self._works:
                _log.warning("stray_executor", executor_id=name)
                stray = _Work(StopExecutor(name, ""), ended_by_itself="the books do not know it")
                self._work_on(stray)

    def _note(self, executor_id: str, observation: Observation) -> None:
        """Logs what is news; what is as usual, and says nothing, is none."""
        if observation != self._seen.get(executor_id, Observation(Presence.RUNS)):
            _log.info(
                "executor_seen",
                executor_id=executor_id,
                presence=observation.presence.value,
                message=observation.message,
            )
        self._seen[executor_id] = observation


def _provisioned_executors(state: State) -> list[StopExecutor]:
    """Those that should run, as what it takes to stop them."""
    return [
        StopExecutor(each.executor_id, each.shape, each.handle)
        for each in state.provisions.values()
        if each.state in (ProvidedExecutorState.STARTED, ProvidedExecutorState.REGISTERED)
    ]


def _unknown(state: State, executor_ids: list[str]) -> list[str]:
    """Those of whom the books know nothing."""
    return [each for each in executor_ids if not (each in state.provisions or each in state.hosts)]


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_LENGTH_MAX else message[:MESSAGE_LENGTH_MAX] + "..."

"""Carries start and stop orders of the rules to providers, and reports the outcomes to the engine.

An executor has at most one call in progress; a stop cancels a start in progress. An outcome is
submitted again until the state has it. The module also watches the executors: it cleans up and
reports those that ended by themselves, and stops those that the state does not know. The rules
(`engine/provision`) decide when an executor is wanted; the provider knows how to start it.
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
TELL_PAUSE_S = 0.2  # before an outcome is submitted again
STRAY_TIMEOUT_S = 60.0
MESSAGE_LENGTH_MAX = 1_000  # of a provider's message; the rest is cut off

_log = get_logger("finegrain.rm.provisioning")

Order = StartExecutor | StopExecutor


@dataclass(frozen=True, slots=True)
class Providers:
    """Providers by name, and which of them starts which executor shape."""

    by_name: Mapping[str, Provider]
    of_shape: Mapping[str, str]  # provider's name by shape
    look_interval_s: float = 5.0  # between two checks of all executors
    stray_timeout_s: float = STRAY_TIMEOUT_S  # an executor unknown for this long is stopped

    def find(self, executor_id: str, shape: str) -> tuple[str, Provider]:
        """Returns name and provider of an executor.

        That is the provider that has notes of the executor, else the one configured for its shape.
        Notes go first because the configuration of a shape may have changed since the start.

        Args:
            executor_id: the executor.
            shape: its shape.

        Returns:
            The provider's name, and the provider.

        Raises:
            ProviderFailed: no provider has notes of it, and its shape is not configured.
        """
        configured = self.of_shape.get(shape, "")
        trouble = ""
        # The configured provider is asked first, because it usually has the notes.
        for name in sorted(self.by_name, key=lambda name: name != configured):
            try:
                if self.by_name[name].owns(executor_id):
                    return name, self.by_name[name]
            except Exception as error:  # for example, its notes cannot be read just now
                trouble = f" (provider {name} could not check: {error!r})"
        if not configured:
            raise ProviderFailed(
                f"shape {shape} is not configured, and no provider knows executor {executor_id}"
                f"{trouble}; configure the shape again (providers_file), so that it can be stopped",
                details={"executor_id": executor_id, "shape": shape},
            )
        return configured, self.by_name[configured]


class Carries(Protocol):
    """What the dispatcher of effects needs of `Provisioning`."""

    def carry_out(self, order: Order) -> None:
        """Begins to carry out an order. The outcome comes back as an event."""


@dataclass(slots=True, eq=False)
class _Work:
    """The order in progress for one executor, and the one that follows."""

    order: Order
    ended_by_itself: str = ""  # why it is stopped although the rules did not order that
    answered: bool = False  # the provider has answered; the state may not have the outcome yet
    following: Order | None = None  # the order to carry out next
    task: asyncio.Task[None] | None = None


class Provisioning:
    """Carries out orders for one resource manager: `begin` once it leads, `stop` at its end.

    Calls survive a reload of the state: executor ids are never used again, so an outcome is true
    for any later state. Calls do not survive loss of leadership or the end of this process; the
    next leader orders them again.
    """

    def __init__(
        self, runner: Runner, metrics: ResourceManagerMetrics, providers: Providers
    ) -> None:
        self._runner = runner
        self._metrics = metrics
        self._providers = providers
        self._works: dict[str, _Work] = {}
        self._seen: dict[str, Observation] = {}  # what was logged last, by executor
        self._strays: dict[str, float] = {}  # since when the state does not know an executor
        self._watcher: asyncio.Task[None] | None = None
        self._over = False

    def begin(self) -> None:
        """Begins to watch the executors that were started."""
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
        # After the provider's answer another stop is a new attempt, so it is carried out next.
        if not same or (work.answered and isinstance(order, StopExecutor)):
            work.following = order
        else:  # the outcome of the call in progress answers this order, too
            work.ended_by_itself = ""
        if isinstance(order, StopExecutor) and isinstance(work.order, StartExecutor) and work.task:
            work.task.cancel()

    def drop_all(self) -> None:
        """Cancels the calls in progress without reporting: another resource manager leads."""
        self._over = True
        if self._watcher is not None:
            self._watcher.cancel()
        for work in self._works.values():
            # No order follows: the next leader decides again.
            work.following = None
            if work.task is not None:
                work.task.cancel()

    async def stop(self) -> None:
        """Cancels the calls in progress and closes the providers. Executors go on running."""
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
        # From here on this call can no longer answer a further stop.
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
            if work.ended_by_itself:  # the next check looks at it again
                return None
            return lambda at: ProvisionStopFailed(at, executor_id, message)
        message = _shortened("; ".join(each for each in (work.ended_by_itself, said) if each))
        _log.info("executor_gone", executor_id=executor_id, message=message)
        return lambda at: ProvisionEnded(at, executor_id, message)

    async def _timed(self, provider: str, call: str, doing: Coroutine[Any, Any, Any]) -> Any:
        """Counts a provider's call, and turns its unexpected errors into `ProviderFailed`."""
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
        """Submits an outcome until the state has it.

        The database may be away, or the state may be about to be read again.
        """
        while not self._runner.fatal.done():
            try:
                await self._runner.submit(make, render=lambda _none: None, urgent=True)
            except Unavailable:
                await asyncio.sleep(TELL_PAUSE_S)
                continue
            except FinegrainError as error:
                # The engine refuses an outcome that no longer concerns it. Repeating does not
                # change that.
                _log.info("outcome_dropped", executor_id=executor_id, error=error.message)
            return

    # -- watching executors --------------------------------------------------------------------

    async def _watch(self) -> None:
        slots = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)

        async def look(provision: StopExecutor) -> None:
            async with slots:
                await self._check(provision)

        while True:
            await asyncio.sleep(self._providers.look_interval_s)
            # In a thread, because providers may read files for this.
            noted = await asyncio.to_thread(self._noted)
            try:
                # Read after the notes: an executor that was started before is then known to the
                # state.
                present = await self._runner.read(_provisioned_executors)
                unknown = await self._runner.read(partial(_unknown, executor_ids=noted))
            except FinegrainError:
                continue  # the state cannot be read at the moment
            self._stop_strays(unknown)
            known = {each.executor_id for each in present}
            # Executors that are no longer provisioned are forgotten, so the table stays small.
            self._seen = {
                name: observation for name, observation in self._seen.items() if name in known
            }
            # All of them, but few at a time, because each may start a command of the operator.
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
        # Checked again, because an order may have arrived during the status call.
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
            except Exception as error:  # the other providers are asked all the same
                _log.error("provider_broken", provider=name, call="noted", exc_info=error)
        return found

    def _stop_strays(self, unknown: list[str]) -> None:
        """Stops executors that a provider has notes of and the state does not know.

        A database restored from a backup does not know what was started since. An executor that
        runs registers within the timeout; the state then knows it, and the rules give it back like
        any other. Whatever is left after the timeout is stopped here.
        """
        now_s = time.monotonic()
        self._strays = {name: self._strays.get(name, now_s) for name in unknown}
        for name, since_s in self._strays.items():
            if now_s - since_s >= self._providers.stray_timeout_s and name not in self._works:
                _log.warning("stray_executor", executor_id=name)
                stray = _Work(
                    StopExecutor(name, ""), ended_by_itself="the resource manager does not know it"
                )
                self._work_on(stray)

    def _note(self, executor_id: str, observation: Observation) -> None:
        """Logs an observation that differs from the last one (at first: running, no message)."""
        if observation != self._seen.get(executor_id, Observation(Presence.RUNS)):
            _log.info(
                "executor_seen",
                executor_id=executor_id,
                presence=observation.presence.value,
                message=observation.message,
            )
        self._seen[executor_id] = observation


def _provisioned_executors(state: State) -> list[StopExecutor]:
    """Returns the executors that should run, as the orders that would stop them."""
    return [
        StopExecutor(each.executor_id, each.shape, each.handle)
        for each in state.provisions.values()
        if each.state in (ProvidedExecutorState.STARTED, ProvidedExecutorState.REGISTERED)
    ]


def _unknown(state: State, executor_ids: list[str]) -> list[str]:
    """Returns those of `executor_ids` that the state does not know."""
    return [each for each in executor_ids if not (each in state.provisions or each in state.hosts)]


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_LENGTH_MAX else message[:MESSAGE_LENGTH_MAX] + "..."

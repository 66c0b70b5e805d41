"""Sends the engine's orders to start and stop executors to providers, and reports the outcomes.

There is at most one call in progress for each executor, and a stop cancels a start in progress. An
outcome is submitted again until the state contains the outcome. The module also watches the
executors of providers. It reports and cleans up executors that ended by themselves, and stops
executors that the state does not know. The engine's rules (`engine/scaling`) decide when an
executor is needed. The provider knows how to start an executor.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
REPORT_PAUSE_S = 0.2  # pause before an outcome is submitted again
STRAY_TIMEOUT_S = 60.0
MESSAGE_LENGTH_MAX = 1_000  # a longer message of a provider is shortened to this length

_log = get_logger("finegrain.rm.provisioning")

Order = StartExecutor | StopExecutor
WriteToken = Callable[[str, Path], Awaitable[None]]
"""Writes a join token for an executor id to a file. Raises ProviderFailed."""


@dataclass(frozen=True, slots=True)
class Providers:
    """The providers by name, and the provider of each executor shape."""

    by_name: Mapping[str, Provider]
    of_shape: Mapping[str, str]  # for each shape, the name of its provider
    look_interval_s: float = 5.0  # pause between two checks of all executors
    # an executor that the state does not know is stopped after this time
    stray_timeout_s: float = STRAY_TIMEOUT_S
    token_file: Callable[[str], Path] | None = None  # returns the file for an executor's join token
    write_token: WriteToken | None = None

    async def give_token(self, executor_id: str) -> None:
        """Writes the join token of an executor that is about to be started.

        Raises:
            ProviderFailed: the token cannot be written.
        """
        if self.write_token is not None and self.token_file is not None:
            await self.write_token(executor_id, self.token_file(executor_id))

    def take_token(self, executor_id: str) -> None:
        """Deletes the join token of an executor that has ended."""
        if self.token_file is not None:
            with contextlib.suppress(OSError):
                self.token_file(executor_id).unlink(missing_ok=True)

    def find(self, executor_id: str, shape: str) -> tuple[str, Provider]:
        """Returns the name and the provider of an executor.

        This is the provider that has notes of the executor: records of the executors that the
        provider has started. If no provider has notes, it is the configured provider of the shape.
        Notes have priority, because the configuration of a shape can change after the start of an
        executor.

        Args:
            executor_id: the id of the executor.
            shape: the shape of the executor.

        Returns:
            The name of the provider, and the provider.

        Raises:
            ProviderFailed: no provider has notes of the executor, and its shape is not configured.
        """
        configured = self.of_shape.get(shape, "")
        trouble = ""
        # The configured provider comes first, because it usually has the notes.
        for name in sorted(self.by_name, key=lambda name: name != configured):
            try:
                if self.by_name[name].owns(executor_id):
                    return name, self.by_name[name]
            # the check failed, for example because the provider's notes cannot be read at the
            # moment
            except Exception as error:
                trouble = f" (provider {name} could not check: {error!r})"
        if not configured:
            raise ProviderFailed(
                f"shape {shape} is not configured, and no provider knows executor {executor_id}"
                f"{trouble}; configure the shape again (providers_file), so that it can be stopped",
                details={"executor_id": executor_id, "shape": shape},
            )
        return configured, self.by_name[configured]


class Carries(Protocol):
    """The part of `Provisioning` that the dispatcher of effects uses."""

    def carry_out(self, order: Order) -> None:
        """Starts to carry out an order. The outcome is submitted as an event."""


@dataclass(slots=True, eq=False)
class _Work:
    """The order in progress for one executor, and the order that follows."""

    order: Order
    ended_by_itself: str = ""  # reason why the executor is stopped without an order of the engine
    # True: the provider has answered, but the outcome is possibly not stored yet
    answered: bool = False
    following: Order | None = None  # the order to carry out next
    task: asyncio.Task[None] | None = None


class Provisioning:
    """Carries out orders. Call `begin` when this process leads, and `stop` at its end.

    Calls continue when the state is read again. Executor ids are never reused, so an outcome is
    valid for every later state. Calls end when this process ends or is no longer the leader. The
    next leader then repeats the orders.
    """

    def __init__(
        self, runner: Runner, metrics: ResourceManagerMetrics, providers: Providers
    ) -> None:
        self._runner = runner
        self._metrics = metrics
        self._providers = providers
        self._works: dict[str, _Work] = {}
        self._seen: dict[str, Observation] = {}  # last logged observation, by executor
        self._strays: dict[
            str, float
        ] = {}  # by executor: the time since which the state does not know the executor
        self._watcher: asyncio.Task[None] | None = None
        self._over = False

    def begin(self) -> None:
        """Starts to watch the executors of providers."""
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
        # If the provider has already answered, a further stop is a new attempt, which is carried
        # out next.
        if not same or (work.answered and isinstance(order, StopExecutor)):
            work.following = order
        else:  # the outcome of the call in progress is also the outcome of this order
            work.ended_by_itself = ""
        if isinstance(order, StopExecutor) and isinstance(work.order, StartExecutor) and work.task:
            work.task.cancel()

    def drop_all(self) -> None:
        """Cancels the calls in progress and submits no outcomes, because another resource manager
        leads.
        """
        self._over = True
        if self._watcher is not None:
            self._watcher.cancel()
        for work in self._works.values():
            # The following order is removed, too, because the next leader decides again.
            work.following = None
            if work.task is not None:
                work.task.cancel()

    async def stop(self) -> None:
        """Cancels the calls in progress, and closes the providers. Executors continue to run."""
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
        # An order to stop the executor that comes from here on needs a new call.
        work.answered = True
        if made is not None:
            await self._report(order.executor_id, made)

    async def _start(self, order: StartExecutor) -> MakeEvent:
        executor_id, shape = order.executor_id, order.shape
        try:
            name, provider = self._providers.find(executor_id, shape)
            await self._providers.give_token(executor_id)
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
        assert isinstance(work.order, StopExecutor)  # noqa: S101 - starts do not come here
        executor_id, shape = work.order.executor_id, work.order.shape
        try:
            name, provider = self._providers.find(executor_id, shape)
            said: str = await self._timed(
                name, "stop", provider.stop(executor_id, shape, work.order.handle)
            )
        except ProviderFailed as error:
            message = _shortened(error.message)
            _log.warning("executor_not_stopped", executor_id=executor_id, error=message)
            if work.ended_by_itself:  # the next check tries again
                return None
            return lambda at: ProvisionStopFailed(at, executor_id, message)
        self._providers.take_token(executor_id)
        message = _shortened("; ".join(each for each in (work.ended_by_itself, said) if each))
        _log.info("executor_stopped", executor_id=executor_id, message=message)
        return lambda at: ProvisionEnded(at, executor_id, message)

    async def _timed(self, provider: str, call: str, doing: Coroutine[Any, Any, Any]) -> Any:
        """Counts a provider's call, and converts its unexpected errors to `ProviderFailed`."""
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

    async def _report(self, executor_id: str, make: MakeEvent) -> None:
        """Submits an outcome until the state contains the outcome.

        An attempt can fail because the database cannot be reached, or because the state must be
        read again.
        """
        while not self._runner.fatal.done():
            try:
                await self._runner.submit(make, render=lambda _none: None, urgent=True)
            except Unavailable:
                await asyncio.sleep(REPORT_PAUSE_S)
                continue
            except FinegrainError as error:
                # The engine rejected the outcome because it is no longer relevant. A retry would
                # not help.
                _log.info("outcome_dropped", executor_id=executor_id, error=error.message)
            return

    # -- watching executors --------------------------------------------------------------------

    async def _watch(self) -> None:
        slots = asyncio.Semaphore(CHECKS_AT_ONCE_MAX)

        async def check(provision: StopExecutor) -> None:
            async with slots:
                await self._check(provision)

        while True:
            await asyncio.sleep(self._providers.look_interval_s)
            # The notes are read in a thread, because providers can read files.
            noted = await asyncio.to_thread(self._noted)
            try:
                # Read the state after the notes. So the state contains every executor that has
                # notes.
                present = await self._runner.read(_provisioned_executors)
                unknown = await self._runner.read(partial(_unknown, executor_ids=noted))
            except FinegrainError:
                continue  # the state cannot be read at the moment
            self._stop_strays(unknown)
            known = {each.executor_id for each in present}
            # Remove executors that do not exist any more. So the table stays small.
            self._seen = {
                name: observation for name, observation in self._seen.items() if name in known
            }
            # Only a few executors are checked at the same time, because each check can run an
            # administrator's command.
            await asyncio.gather(*(check(each) for each in present))

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
        # The orders are checked again, because an order can arrive during the status call.
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
            except Exception as error:  # continue with the other providers
                _log.error("provider_broken", provider=name, call="noted", exc_info=error)
        return found

    def _stop_strays(self, unknown: list[str]) -> None:
        """Stops executors that are in the notes of a provider, but not in the state.

        A database that was restored from a backup does not contain the executors that were started
        after the backup. A running executor registers within the timeout. Then the state knows the
        executor, and the engine's rules stop the executor when it is no longer needed. Executors
        that the state does not know after the timeout are stopped here.
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
        """Logs an observation if it differs from the last observation of the executor. The first
        observation is logged, unless the executor runs and there is no message.
        """
        if observation != self._seen.get(executor_id, Observation(Presence.RUNS)):
            _log.info(
                "executor_seen",
                executor_id=executor_id,
                presence=observation.presence.value,
                message=observation.message,
            )
        self._seen[executor_id] = observation


def _provisioned_executors(state: State) -> list[StopExecutor]:
    """Returns the executors of providers that should run. Each executor is given as the order that
    would stop it.
    """
    return [
        StopExecutor(each.executor_id, each.shape, each.handle)
        for each in state.provisions.values()
        if each.state in (ProvidedExecutorState.STARTED, ProvidedExecutorState.REGISTERED)
    ]


def _unknown(state: State, executor_ids: list[str]) -> list[str]:
    """Returns the ids that the state does not know."""
    return [each for each in executor_ids if not (each in state.provisions or each in state.hosts)]


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_LENGTH_MAX else message[:MESSAGE_LENGTH_MAX] + "..."

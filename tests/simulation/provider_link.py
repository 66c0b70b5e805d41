"""Simulates how a manager calls the provider: one call at a time for each executor.

It follows `resource_manager/service/provisioning.py`. It submits an outcome until the engine has
stored it. If the manager dies during a call, the answer is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from finegrain.errors import Unavailable
from finegrain.values.states import ProvidedExecutorState
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import (
    Event,
    ProvisionEnded,
    ProvisionFailed,
    ProvisionStarted,
    ProvisionStopFailed,
)
from resource_manager.providers.provider import Presence, Started
from tests.simulation.cloud import Cloud

if TYPE_CHECKING:
    from tests.simulation.manager import Manager

LOOK_MS = 1_000
TELL_PAUSE_MS = 200

Order = StartExecutor | StopExecutor


@dataclass(eq=False)
class _Work:
    """The call in flight for one executor, and the next one."""

    order: Order
    ended_by_itself: bool = False  # it is stopped although the engine did not ask for it
    answered: bool = False  # the provider has answered; the engine may not have the outcome yet
    following: Order | None = None


class ProviderLink:
    """The provider calls of one manager process."""

    def __init__(self, manager: Manager, cloud: Cloud) -> None:
        self.manager, self.cloud = manager, cloud
        self._works: dict[str, _Work] = {}

    def look(self) -> None:
        """Regularly stops executors that ended by themselves. So their remains are removed."""
        if self.manager.leading:
            for name, each in list(self.manager.state.provisions.items()):
                awaited = each.state in (
                    ProvidedExecutorState.STARTED,
                    ProvidedExecutorState.REGISTERED,
                )
                ended = awaited and self.cloud.status(name).presence is Presence.ENDED
                if ended and name not in self._works:
                    order = StopExecutor(name, each.shape, each.handle)
                    self._work_on(_Work(order, ended_by_itself=True))
        self.manager.after(LOOK_MS, self.look)

    def carry_out(self, order: Order) -> None:
        """Executes an order of the engine. An order to stop aborts a start that is in flight."""
        work = self._works.get(order.executor_id)
        if work is None:
            self._work_on(_Work(order))
            return
        stops, same = isinstance(order, StopExecutor), type(work.order) is type(order)
        if not same or (work.answered and stops):
            work.following = order
        else:
            work.ended_by_itself = False
        if stops and isinstance(work.order, StartExecutor):
            self._over(work)

    def _work_on(self, work: _Work) -> None:
        order = work.order
        self._works[order.executor_id] = work
        self.manager.log(f"{self.manager.name} asks for {_words(order)}")
        if isinstance(order, StartExecutor):
            started = self._then(work, self._started)
            self.cloud.start(order.executor_id, order.shape, started)
        else:
            self.cloud.stop(order.executor_id, self._then(work, self._stopped))

    def _then(self, work: _Work, take: Callable[[_Work, Any], None]) -> Callable[[Any], None]:
        manager, life = self.manager, self.manager.life

        def answered(result: Any) -> None:
            if self._works.get(work.order.executor_id) is work and not work.answered:
                work.answered = True
                take(work, result)

        return lambda result: manager.run(life, lambda: answered(result))

    def _over(self, work: _Work) -> None:
        del self._works[work.order.executor_id]
        if work.following is not None:
            self._work_on(_Work(work.following))

    def _started(self, work: _Work, result: Any) -> None:
        name = work.order.executor_id
        if isinstance(result, Started):
            handle = result.handle
            self._tell(work, lambda at: ProvisionStarted(at, name, handle))
        else:
            self._tell(work, lambda at: ProvisionFailed(at, name, str(result)))

    def _stopped(self, work: _Work, result: Any) -> None:
        name = work.order.executor_id
        if result is None:
            self._tell(work, lambda at: ProvisionEnded(at, name))
        elif work.ended_by_itself:
            self._over(work)  # a later `look` finds it again
        else:
            self._tell(work, lambda at: ProvisionStopFailed(at, name, str(result)))

    def _tell(self, work: _Work, make: Callable[[Instant], Event]) -> None:
        """Submits an outcome until it is durable."""

        def take(answer: Any) -> None:
            if self._works.get(work.order.executor_id) is not work:
                return
            if isinstance(answer, Unavailable):
                self.manager.after(TELL_PAUSE_MS, lambda: self._tell(work, make))
            else:
                self._over(work)

        self.manager.submit(make, take)


def _words(order: Order) -> str:
    if isinstance(order, StopExecutor):
        return f"an end of {order.executor_id}"
    return f"{order.executor_id}{' again' if order.again else ''}"

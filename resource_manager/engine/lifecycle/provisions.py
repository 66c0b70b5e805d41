"""Moves provisions through their states. A provision begins when the resource manager orders an
executor. It ends when the provider reports that nothing of the executor is left.

A provision is stored as ASKED before its provider gets the order. So after a crash, the resource
manager knows all executors that it has possibly ordered. `scaling/passes.py` decides when an
executor is requested or given back.

Example: an executor of the shape "small", which has at most 60 s to register.

  event                                       state       what happens
  passes.py orders it                         ASKED       row stored, then StartExecutor is sent
  the provider has started the executor       STARTED     its handle is stored, for StopExecutor
  the executor registers within 60 s          REGISTERED  planned requests are placed on it
      if the executor registers before the provider answers, ASKED changes directly to REGISTERED
  no slots for the idle timeout               STOPPING    drained, StopExecutor is sent
      an executor is also stopped if it failed, registered too late, or is lost for too long
  no answer from the provider                 STOPPING    StopExecutor is sent repeatedly
  the provider reports that nothing is left   deleted     executor and slots are deleted, too
      the resource manager does not wait until the executor counts as lost
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.errors import IllegalTransition
from finegrain.resources import Amounts, add, total_of
from finegrain.values.states import ExecutorState, ProvidedExecutorState
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.effects import StartExecutor, StopExecutor
from resource_manager.engine.model.entities import Provision
from resource_manager.engine.model.settings import EngineSettings, ExecutorShape
from resource_manager.engine.model.state_tables import DrainInput
from resource_manager.engine.model.timers import Timer, Timers, backoff_ms
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.elastic import NUMBER, PENDING, Elastic, of_shape
from resource_manager.engine.placement.hosts import Hosts

_P = ProvidedExecutorState
PROVISION_MOVES = frozenset(
    {
        (_P.ASKED, _P.STARTED),
        (_P.ASKED, _P.REGISTERED),
        (_P.ASKED, _P.STOPPING),
        (_P.STARTED, _P.REGISTERED),
        (_P.STARTED, _P.STOPPING),
        (_P.REGISTERED, _P.STOPPING),
    }
)
"""The allowed moves. Any other move is a bug. A provision can end in any state, and its row is then
deleted.
"""


@dataclass(slots=True, eq=False)
class ProvisionMoves:
    """Moves provisions through their states, and adds up their totals."""

    journal: Journal
    changes: ChangeTracker
    elastic: Elastic
    hosts: Hosts
    provisions: dict[str, Provision]
    rm_epoch: int
    settings: EngineSettings
    timers: Timers
    transitions: Transitions
    usage: UsageAccounting

    def request_executor(self, shape: ExecutorShape, cause: str) -> Provision:
        """Requests one more executor from its provider.

        Args:
            shape: the executor shape.
            cause: the reason why the executor is requested, for people.
        """
        number = self.next_number()
        provision = Provision(
            # The epoch keeps the id unique even if a restored backup has a lower counter.
            executor_id=f"{shape.name}-{self.rm_epoch}-{number}",
            shape=shape.name,
            number=number,
            cause=cause,
            ask_time_ms=self.journal.at.time_ms,
            deadline_at_ms=self.journal.now_ms + shape.start_timeout_ms,
        )
        self.provisions[provision.executor_id] = provision
        # Effects are performed after the commit. So the row is on disk before the provider gets the
        # order.
        self.keep(provision)
        self.journal.effects.append(StartExecutor(provision.executor_id, shape.name))
        self.record("provision_asked", provision, cause)
        return provision

    def next_number(
        self,
    ) -> int:
        """Returns a new provision number and stores the counter."""
        self.elastic.number += 1
        self.changes.counter(NUMBER, self.elastic.number)
        return self.elastic.number

    def resume(
        self,
    ) -> None:
        """Repeats unfinished orders to providers after a restart, because their outcome is unknown.

        A pending provision gets a new deadline. If the shape of the provision is no longer
        configured, the executor is stopped.
        """
        for provision in self.provisions.values():
            shape = self.elastic.shapes.get(provision.shape)
            if provision.state in PENDING:
                if shape is None:
                    self.stop(provision, f"shape {provision.shape} is no longer configured")
                    continue
                # The executor could not register while no resource manager was running. So the
                # executor gets the full time again.
                provision.deadline_at_ms = self.journal.now_ms + shape.start_timeout_ms
            # It is unknown whether the provider has received the order. With `again`, the provider
            # checks by the id whether the executor exists.
            if provision.state is ProvidedExecutorState.ASKED:
                again = StartExecutor(provision.executor_id, provision.shape, again=True)
                self.journal.effects.append(again)
            elif provision.state is ProvidedExecutorState.STOPPING:
                self._send_stop(provision)

    def fail(self, provision: Provision, message: str) -> None:
        """Stops the executor of a provision because it does not register, and starts a back-off of
        its shape.
        """
        self.back_off(provision.shape, f"{provision.executor_id}: {message}")
        self.record("provision_failed", provision, message)
        self.stop(provision, message)

    def back_off(self, shape: str, message: str) -> None:
        """Pauses requests for executors of a shape after a failure.

        The pause doubles with each failure. Failures during a pause do not count.
        """
        backoff = self.elastic.backoffs.get(shape)
        if backoff is None:
            return
        backoff.last_failure = message
        # One cause, such as an exhausted quota, makes all outstanding orders fail. Only the first
        # failure must double the pause.
        if self.journal.now_ms < backoff.until_ms:
            return
        settings = self.settings.provisioning
        pause = backoff_ms(backoff.failures, settings.backoff_min_ms, settings.backoff_max_ms)
        backoff.failures += 1
        backoff.until_ms = self.journal.now_ms + pause
        backoff.until_time_ms = self.journal.at.time_ms + pause

    def provision_timer_fired(self, executor_id: str) -> None:
        """Repeats a stop order that its provider has not answered."""
        provision = self.provisions.get(executor_id)
        if provision is not None and provision.state is ProvidedExecutorState.STOPPING:
            self._send_stop(provision)

    def stop(self, provision: Provision, message: str) -> None:
        """Gives an executor back to its provider. The executor gets no new slots, and its present
        slots end when the executor stops.
        """
        self.move(provision, ProvidedExecutorState.STOPPING, message)
        provision.deadline_at_ms = None
        self.unplan(provision.executor_id)
        host = self.hosts.get(provision.executor_id)
        # The host exists if the executor has registered. The host must get no new slots until the
        # executor is stopped.
        if host is not None:
            self.drain(host, message)
        self.record("provision_stopping", provision, message)
        self._send_stop(provision)

    def drain(self, host: Host, message: str) -> None:
        """Drains an executor that is given back."""
        executor = host.executor
        if executor.draining:
            return
        self.transitions.move_drain(executor, DrainInput.DRAIN)
        executor.drain_reason = f"given back to its provider: {message}"
        self.changes.executor(executor)
        self.usage.total_changed(host)

    def registered(self, provision: Provision, host: Host) -> None:
        """Records that the executor has registered. If the executor is already being given back to
        its provider, this method drains it.
        """
        if provision.state is ProvidedExecutorState.STOPPING:
            self.drain(host, provision.message)
        elif provision.state in PENDING:
            self.move(provision, ProvidedExecutorState.REGISTERED, "registered")
            provision.deadline_at_ms = provision.idle_since_ms = None

    def proved(self, provision: Provision) -> None:
        """Records that an executor of the shape works, which ends the back-off of the shape."""
        self.elastic.verdicts[provision.executor_id] = True
        backoff = self.elastic.backoffs.get(provision.shape)
        if backoff is not None:
            backoff.failures = backoff.until_ms = 0

    def move(self, provision: Provision, to: ProvidedExecutorState, message: str) -> None:
        """Moves a provision to another state and stores it.

        Args:
            provision: the provision.
            to: the new state of the provision.
            message: reason of the move, for people.

        Raises:
            IllegalTransition: the move is not in `PROVISION_MOVES`.
        """
        if (provision.state, to) not in PROVISION_MOVES:
            raise IllegalTransition(
                f"provision {provision.executor_id} is {provision.state}, which does not"
                f" allow {to}",
                details={"entity": provision.executor_id, "state": provision.state, "input": to},
            )
        provision.state = to
        provision.message = message
        self.keep(provision)

    def _send_stop(self, provision: Provision) -> None:
        """Sends a stop order. Arms the timer that repeats the order if there is no answer."""
        effect = StopExecutor(provision.executor_id, provision.shape, provision.handle)
        self.journal.effects.append(effect)
        patience_ms = self.settings.provisioning.backoff_max_ms
        # The timer uses the longest back-off time, because a provider can need minutes to stop a
        # machine.
        self.timers.arm(Timer.PROVISION, provision.executor_id, self.journal.now_ms + patience_ms)

    def unplan(self, executor_id: str) -> None:
        """Removes an executor from the plan, and deletes all planning data of the executor."""
        self.elastic.plan.drop(executor_id)
        self.elastic.surplus.discard(executor_id)
        self.elastic.lost_since_ms.pop(executor_id, None)
        self.elastic.idle_marks.pop(executor_id, None)
        self.elastic.verdicts.pop(executor_id, None)

    def keep(self, provision: Provision) -> None:
        self.elastic.version += 1
        self.changes.provision(provision)

    def record(self, kind: str, provision: Provision, message: str) -> None:
        self.journal.cluster_event(kind, executor_id=provision.executor_id, message=message)

    def present(
        self,
    ) -> dict[str, int]:
        """Returns the total of all executors that are not lost."""
        elastic = self.elastic
        # The sum is cached, because each planning pass needs the sum. It changes only together with
        # `version`.
        if elastic.present is None or elastic.present[0] != self.hosts.version:
            here = total_of(
                host.executor.registration.total
                for host in self.hosts.values()
                if host.executor.state is not ExecutorState.LOST
            )
            elastic.present = (self.hosts.version, here)
        return elastic.present[1]

    def counted(
        self,
    ) -> dict[str, int]:
        """Returns the total that the configured maximum limits.

        The total includes all executors that are not lost, and all provisions that have not
        registered. Provisions that are being stopped also count, because their executors are
        possibly still running.
        """
        return add(
            self.present(),
            self._pending_total((*PENDING, ProvidedExecutorState.STOPPING)),
        )

    def retained_total(
        self,
    ) -> dict[str, int]:
        """Returns the total of present and ordered executors, without the executors that are being
        given back.
        """
        # Subtract only registered executors, because the sum of present and ordered executors does
        # not include provisions that were stopped before they registered.
        leaving = total_of(
            host.executor.registration.total
            for provision in self.provisions.values()
            if provision.state is ProvidedExecutorState.STOPPING
            and (host := self.hosts.get(provision.executor_id)) is not None
            and host.executor.state is not ExecutorState.LOST
        )
        there = add(self.present(), self._pending_total(PENDING))
        return {name: amount - leaving.get(name, 0) for name, amount in there.items()}

    def room_below_maximum(
        self,
    ) -> dict[str, int]:
        """Returns the amounts that can still be requested, for each dimension with a maximum."""
        there = self.counted()
        return {
            name: max(0, most - there.get(name, 0))
            for name, most in self.settings.provisioning.total_max.items()
        }

    def requestable_shapes(
        self,
    ) -> list[ExecutorShape]:
        """Returns the executor shapes of which an executor can be requested now.

        Three conditions must hold: the shape is not in back-off, the maximum count of the shape is
        not reached, and one more executor stays within the maximum total.
        """
        elastic = self.elastic
        room = self.room_below_maximum()
        return [
            shape
            for name, shape in elastic.shapes.items()
            # The shape is not in back-off, below its maximum count, and within the maximum total.
            if elastic.backoffs[name].until_ms <= self.journal.now_ms
            and (not shape.count_max or of_shape(self.provisions, name) < shape.count_max)
            and all(shape.total.get(each, 0) <= left for each, left in room.items())
        ]

    def _pending_total(
        self,
        states: tuple[ProvidedExecutorState, ...],
    ) -> Amounts:
        shapes = self.elastic.shapes
        return total_of(
            shapes[provision.shape].total
            for provision in self.provisions.values()
            if provision.state in states
            # `present` already counts a registered executor, with its actual total.
            and provision.executor_id not in self.hosts
            and provision.shape in shapes
        )


def is_lost(host: Host | None) -> bool:
    """Returns True if the executor is known and lost."""
    return host is not None and host.executor.state is ExecutorState.LOST

"""Connects the engine with executors in memory. The test controls every message between them.

No message arrives by itself: a test delivers or loses each command, or lets `settle` deliver all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from resource_manager.engine.invariants.all import check_invariants, findings
from resource_manager.engine.invariants.sweep import Finding
from resource_manager.engine.model.effects import Effect, StartExecutor, StopExecutor
from resource_manager.engine.model.entities import Instant
from resource_manager.engine.model.events import (
    CommandUndelivered,
    Decide,
    Event,
    ExecutorRegistered,
    RegistrationAnswer,
    ReportAnswer,
    SlotsReported,
    Ticked,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh, restore
from resource_manager.engine.step import step
from tests.support.engine_cluster.executor import Command, FakeExecutor
from tests.support.engine_cluster.store import RowStore

START_TIME_MS = 1_700_000_000_000
DELIVERIES_MAX = 50
CHECKED_AFTER_A_BATCH = 5  # entities with which the sweep over the invariants continues


@dataclass(frozen=True, eq=False)
class OnTheWire:
    """A command that has not arrived yet, with the epoch of its resource manager."""

    rm_epoch: int
    command: Command


class Conversation:
    """The engine, its store, its executors, and the messages in transit.

    Attributes:
        auto_settle: whether `settle` runs after each call and each time step.
        wire: commands that have not arrived.
        effects: effects of the last batch.
        providers: the calls of the engine to providers.
        sweeps: whether the invariants are checked in pauses between batches. A test must turn this
            off if it makes a state that contradicts itself.
    """

    def __init__(self, settings: EngineSettings, *, auto_settle: bool = False) -> None:
        self.settings = settings
        self.auto_settle = auto_settle
        self.now_ms = 1_000
        self.store = RowStore()
        self.executors: dict[str, FakeExecutor] = {}
        self.wire: list[OnTheWire] = []
        self.effects: list[Effect] = []
        self.providers: list[StartExecutor | StopExecutor] = []
        self.state = fresh(settings, 1, self.at)
        self.sweeps = True
        self._sweep: Iterator[Finding] = iter(())

    @property
    def at(self) -> Instant:
        return Instant(self.now_ms, START_TIME_MS + self.now_ms)

    # Events and time.

    def batch(self, *events: Event) -> Any:
        """Steps the events and a decision, and commits; returns the answer to the last event.

        It delivers no command, even with `auto_settle`.
        """
        answer: Any = None
        self.effects = []
        for event in (*events, Decide(self.at)):
            result = step(self.state, event)
            self.effects.extend(result.effects)
            answer = answer if isinstance(event, Decide) else result.answer
        self.store.apply(self.state.changes.take())
        self.wire.extend(
            OnTheWire(self.state.rm_epoch, effect)
            for effect in self.effects
            if isinstance(effect, Command)
        )
        self.providers += [
            each for each in self.effects if isinstance(each, StartExecutor | StopExecutor)
        ]
        self._continue_sweep()
        return answer

    def _continue_sweep(self) -> None:
        """Continues a sweep over the invariants that pauses while batches change the state."""
        some = list(islice(self._sweep, CHECKED_AFTER_A_BATCH if self.sweeps else 0))
        if not some:
            self._sweep = findings(self.state)
        assert [finding for finding in some if finding is not None] == []

    def apply(self, event: Event) -> Any:
        """Steps one event as a batch. If `auto_settle` is set, also settles. Returns the answer."""
        answer = self.batch(event)
        if self.auto_settle:
            self.settle()
        return answer

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.apply(Ticked(self.at))

    def settle(self) -> None:
        """Delivers commands and decides until nothing is left to do; then checks the invariants."""
        self.deliver_all()
        while self.state.unfinished:
            self.batch()
            self.deliver_all()
        self.check()

    def check(self) -> None:
        """Fails if an invariant is violated."""
        assert check_invariants(self.state) == []

    def restart_rm(self, epoch: int | None = None) -> None:
        """Replaces the resource manager by a new one that reads the store.

        Its epoch is the next one by default. Commands on the wire stay there.
        """
        epoch = epoch or self.state.rm_epoch + 1
        # their results are lost, or done and never reported to the new resource manager
        self.providers.clear()
        self._sweep = iter(())
        self.state = restore(self.store.snapshot(epoch), self.settings, self.at)

    # Executors.

    def register(self, executor: FakeExecutor) -> RegistrationAnswer:
        """Registers an executor, for the first time or again."""
        self.executors[executor.executor_id] = executor
        return self.deliver_registration(self.registration_of(executor))

    def register_all(self, executors: Iterable[FakeExecutor] | None = None) -> None:
        """Registers these executors, or all known ones again."""
        for executor in list(self.executors.values() if executors is None else executors):
            self.register(executor)

    def registration_of(self, executor: FakeExecutor) -> ExecutorRegistered:
        """Creates a registration, for delivery now or later."""
        return ExecutorRegistered(self.at, executor.registration(), executor.report())

    def deliver_registration(self, sent: ExecutorRegistered) -> RegistrationAnswer:
        executor = self.executors[sent.registration.executor_id]
        answer: RegistrationAnswer = self.batch(sent)
        executor.registered(answer, self.state.rm_epoch)
        return answer

    def report_of(self, executor: FakeExecutor) -> SlotsReported:
        """Creates a new report, for delivery now or later."""
        return SlotsReported(
            self.at,
            executor.executor_id,
            executor.registration().instance_id,
            executor.registration_number,
            executor.report(),
        )

    def report(self, executor: FakeExecutor, held: SlotsReported | None = None) -> ReportAnswer:
        """Delivers a new report, or the one given as `held`; the executor obeys the answer."""
        event = replace(held, at=self.at) if held is not None else self.report_of(executor)
        answer: ReportAnswer = self.batch(event)
        if answer.acknowledged_report_number == executor.report_number:
            executor.acknowledged(executor.report_number)
        executor.drop(answer.unowned)
        executor.start_limits_again(answer.reused_slots)
        if answer.host_policy_number:
            executor.follow(answer.host_policy, answer.host_policy_number)
        return answer

    def report_all(self) -> None:
        """Delivers a new report of every executor."""
        for executor in self.executors.values():
            self.report(executor)

    def short_report_of(self, executor: FakeExecutor) -> SlotsReported:
        """Creates a report that says "unchanged" instead of repeating the state."""
        return replace(self.report_of(executor), report=executor.short_report())

    def short_report(self, executor: FakeExecutor) -> ReportAnswer:
        """Delivers a report that says "unchanged", then a full one if the answer asks for it."""
        answer = self.report(executor, self.short_report_of(executor))
        return self.report(executor) if answer.send_full_report else answer

    # Commands.

    def next_command(self, executor_id: str) -> OnTheWire:
        """Returns the first command in transit to an executor."""
        return next(sent for sent in self.wire if sent.command.executor_id == executor_id)

    def deliver(self, sent: OnTheWire, *, lose_answer: bool = False) -> None:
        """Delivers a command. Its answer is lost in two cases: `lose_answer` is set, or the sender
        was replaced.
        """
        self.wire.remove(sent)
        executor = self.executors.get(sent.command.executor_id)
        if executor is None:  # the executor has vanished, and the resource manager learns it now
            if sent.rm_epoch == self.state.rm_epoch:
                self._undelivered(sent.command)
            return
        answer = executor.execute(sent.command, self.at, sent.rm_epoch)
        self.effects = []
        if sent.rm_epoch != self.state.rm_epoch:
            return
        if lose_answer:
            self._undelivered(sent.command)
        else:
            self.batch(answer)

    def deliver_all(self, most: int = DELIVERIES_MAX) -> None:
        """Delivers commands until none is in transit. Fails after `most` commands. If four commands
        for each executor are more than `most`, this is the limit.
        """
        for _ in range(max(most, 4 * len(self.executors))):
            if not self.wire:
                return
            self.deliver(self.wire[0])
        raise AssertionError(f"still {len(self.wire)} commands under way: a livelock?")

    def fail(self, sent: OnTheWire) -> None:
        """Loses a command before it arrives."""
        self.wire.remove(sent)
        if sent.rm_epoch == self.state.rm_epoch:
            self._undelivered(sent.command)

    def _undelivered(self, command: Command) -> None:
        self.batch(
            CommandUndelivered(
                self.at,
                command.executor_id,
                command.registration_number,
                command.command_number,
                cause="connection refused",
            )
        )

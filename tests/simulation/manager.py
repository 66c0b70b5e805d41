"""A resource manager in virtual time: leadership, batches, commits, and the effects afterwards.

It follows `resource_manager/service`: runner.py (batches, reloads, renewals), executor_link.py and
the standby. A process that does not lead waits for the lease. It sends nothing unless its own clock
proves that it still has the lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    IllegalTransition,
    InvalidArgument,
    InvariantBroken,
    Reason,
    StoreError,
    Unavailable,
)
from resource_manager.engine.executors.reports import EpochSeen
from resource_manager.engine.model.effects import (
    Changes,
    Effect,
    ProbeExecutor,
    SendAllocate,
    SendFree,
    SendResize,
    Snapshot,
    StartExecutor,
    StopExecutor,
)
from resource_manager.engine.model.entities import Instant, Slot
from resource_manager.engine.model.events import (
    CommandAnswered,
    CommandRefused,
    CommandUndelivered,
    Decide,
    Event,
    ExecutorProbed,
    JobKeptAlive,
    JobRegistered,
    RequestsSubmitted,
    SlotsReuseRequested,
    Ticked,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.hosts import ReportNumbers
from resource_manager.engine.restoring import restore
from resource_manager.engine.state import State
from resource_manager.engine.step import step
from resource_manager.service.wire import decoding
from resource_manager.storage.store import NotLeader
from tests.simulation.database import STOP_MS, Client, Database
from tests.simulation.network import Loop, Network, Reply, Unreached
from tests.simulation.provider_link import ProviderLink
from tests.simulation.provision_checks import planned_on, served_first

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.cloud import Cloud
    from tests.simulation.executor import Executor

TICK_MS = 200
RENEW_MS = 250
POLL_MS = 100  # how often a standby polls
COMMAND_WAIT_MS = 2_000
FOREVER_MS = 1 << 60

Log = Callable[[str], None]
Command = SendAllocate | SendFree | SendResize


@dataclass
class Item:
    """A future event or a read, and the callback that takes its answer."""

    reply: Reply
    make: Callable[[Instant], Event] | None = None
    read: Callable[[State], Any] | None = None


@dataclass
class Batch:
    """The results of one batch, until they are durable."""

    answers: list[tuple[Reply, Any]]
    reads: list[Item]
    effects: list[Effect]
    decided_ms: int


class Manager(Client):
    """One of the resource managers of a cluster, across its restarts."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        database: Database,
        settings: EngineSettings,
        checks: Checks,
        log: Log,
    ) -> None:
        super().__init__(name, loop)
        self.rng, self.network, self.database = rng, network, database
        self.settings, self.checks, self.log = settings, checks, log
        self.executors: dict[str, Executor] = {}
        self.cloud: Cloud | None = None
        self.batches = 0
        self.leading = False
        self.held_down = False  # True: an administrator keeps it stopped
        self._books = 0  # number of times that the state was read
        self._sure_until_ms = -1
        self.state = restore(Snapshot(rm_epoch=0), settings, self.at)

    @property
    def at(self) -> Instant:
        """Returns the present moment. Every process start has a different monotonic clock."""
        return Instant(self.loop.now_ms + 1_000 * self.life, self.time_ms)

    # -- starts and ends ---------------------------------------------------------------------

    def start(self) -> None:
        """Starts the process, which then waits for leadership."""
        if self.held_down or self.up:
            return
        self.life += 1
        self.up = True
        self.leading = self._busy = self._tick_due = False
        self.epoch = 0
        self.stopped_until_ms = 0
        self._sure_until_ms = -1
        self._inbox: list[Item] = []
        self._report_numbers: ReportNumbers = {}
        self._provider = ProviderLink(self, self.cloud) if self.cloud else None
        if self._provider:
            self._provider.look()
        self._lead()

    def crash(self, why: str = "dies") -> None:
        """Ends the process at once. It is started again later."""
        self.log(f"{self.name} {why}")
        self.up = self.leading = False
        self.next_commit = ""
        self.database.disconnected(self)
        self.loop.after(self.rng.choice((20, 200, 1_000, 5_000)), self.start)

    def stop(self) -> None:
        """Stops as planned: accepts nothing more and releases leadership."""
        if self.leading and self._is_sure():
            self.database.give_back(self)
        self.crash("is stopped")

    # -- leadership ------------------------------------------------------------------------

    def _lead(self) -> None:
        sent_ms = self.loop.now_ms
        above = self.state.rm_epoch if self.epoch else 0
        self.database.lead(self, above, lambda result: self._led(sent_ms, result))

    def _led(self, sent_ms: int, result: Any) -> None:
        if isinstance(result, NotLeader):
            return self.crash("has lost leadership")
        if isinstance(result, Exception):
            return self.after(self.rng.randint(POLL_MS, 2 * POLL_MS), self._lead)
        first = not self.leading
        self.epoch = result
        self._renewed(sent_ms, None)
        self._read_books()
        self._busy = False
        if first:
            self.leading = True
            self.after(TICK_MS, self._tick)
            self.after(RENEW_MS, self._renew)
        return self._wake()

    def _read_books(self) -> None:
        snapshot = self.database.load()
        snapshot.rm_epoch = self.epoch
        self._books += 1
        if self.leading:
            self._report_numbers |= self.state.hosts.report_numbers()
        self.state = restore(snapshot, self.settings, self.at)
        self.state.hosts.restore_report_numbers(self._report_numbers)
        self.log(f"{self.name} leads at epoch {self.epoch}")
        self.checks.books(self.state)
        self.checks.require(self.checks.usage.restored(self))
        self.checks.require(self.checks.fair.restored(self.state, self.database))
        self.checks.require(self.checks.priorities.restored(self.state))
        self.checks.require(self.checks.jobs.restored(self.state, self.database))

    def _renew(self) -> None:
        sent_ms = self.loop.now_ms
        self.database.renew(self, lambda result: self._renewed(sent_ms, result))
        self.after(RENEW_MS, self._renew)

    def _renewed(self, sent_ms: int, result: Any) -> None:
        if isinstance(result, NotLeader):
            self.crash("has lost leadership")
        elif result is None:
            lease_ms = self.database.lease_ms
            self._sure_until_ms = FOREVER_MS if lease_ms is None else sent_ms + lease_ms

    def _is_sure(self) -> bool:
        """Returns whether the lease is certainly valid, counted from before the call was sent."""
        return self.loop.now_ms < self._sure_until_ms

    # -- batches ---------------------------------------------------------------------------

    def submit(self, make: Callable[[Instant], Event], reply: Reply = lambda _answer: None) -> None:
        """Steps an event in the next batch; the answer is sent when it is durable."""
        self._take(Item(reply, make=make))

    def read(self, read: Callable[[State], Any], reply: Reply) -> None:
        """Reads durable state between two batches."""
        self._take(Item(reply, read=read))

    def _take(self, item: Item) -> None:
        if not self.leading:
            return item.reply(Unavailable(f"{self.name} does not lead", reason=Reason.NOT_LEADER))
        self._inbox.append(item)
        return self._wake()

    def _tick(self) -> None:
        self._tick_due = True
        self._wake()
        self.after(TICK_MS, self._tick)

    def _wake(self) -> None:
        if not self._busy and (self._inbox or self._tick_due or self.state.unfinished):
            self._busy = True
            self.after(1, self._turn)

    def _turn(self) -> None:
        planned = planned_on(self.state)
        items, self._inbox = self._inbox, []
        ticked, self._tick_due = self._tick_due, False
        batch = Batch([], [item for item in items if item.make is None], [], self.loop.now_ms)
        try:
            changes, idle = self._change(items, batch, ticked=ticked)
        except EpochSeen as error:
            self.checks.saw_epoch(self, error.seen)
            for item in items:
                item.reply(Unavailable(error.message, reason=Reason.NOT_LEADER))
            return self.crash(f"steps down: {error}")
        self.batches += 1
        self.checks.decided(self, batch.effects, changes, idle=idle)
        self.checks.require(served_first(self.state, planned))
        if changes:
            self.checks.usage.decided(self, changes)
            return self.database.commit(self, changes, lambda r: self._committed(batch, r))
        return self._speak(batch)

    def _change(self, items: list[Item], batch: Batch, *, ticked: bool) -> tuple[Changes, bool]:
        """Steps all events; returns the rows to store, and whether all calls were keep-alives."""
        at, idle = self.at, True
        for item in items:
            if item.make is not None:
                event = item.make(at)
                idle = idle and isinstance(event, JobKeptAlive)
                answer = self._answer(event, batch.effects)
                self.checks.answered(self.state, answer)
                if isinstance(answer, Slot):
                    # a copy: the slot may change before the answer is sent
                    answer = replace(answer)
                batch.answers.append((item.reply, answer))
        if ticked:
            self._step(Ticked(at), batch.effects)
            self.checks.require(self.checks.gangs.late(self.state, at.monotonic_ms))
            self.checks.require(self.checks.times.late(self.state, self.loop.now_ms))
            self.checks.require(self.checks.resizes.late(self.state, at.monotonic_ms))
        self._step(Decide(at), batch.effects)
        changes = self.state.changes.take()
        return changes, idle and not changes and not batch.effects

    def _answer(self, event: Event, effects: list[Effect]) -> Any:
        if isinstance(event, JobRegistered | RequestsSubmitted):
            jobs = self.checks.jobs
            used = jobs.used(self.state, event)
            answer = self._step(event, effects)
            self.checks.require(jobs.answers(self.state, event, used, answer))
            return answer
        if not isinstance(event, SlotsReuseRequested):
            return self._step(event, effects)
        fair = self.checks.fair
        before = fair.asks(self.state, event)
        answer = self._step(event, effects)
        if isinstance(answer, list):
            self.checks.require(fair.answers(self.state, event, before, answer))
        return answer

    def _step(self, event: Event, effects: list[Effect]) -> Any:
        try:
            result = step(self.state, event)
        except (IllegalTransition, InvariantBroken, EpochSeen):
            raise
        except FinegrainError as error:
            return error
        effects += result.effects
        return result.answer

    def _committed(self, batch: Batch, result: Any) -> None:
        if isinstance(result, NotLeader):
            return self.crash("has lost leadership")
        if isinstance(result, Exception):
            self.log(f"{self.name} could not commit: {result}")
            for reply, _ in batch.answers:
                reply(StoreError("the change could not be stored"))
            for item in batch.reads:
                item.reply(StoreError("the change could not be stored"))
            self._books += 1  # calls in flight belong to the discarded state
            return self._lead()
        self.checks.durable(batch.effects, batch.decided_ms)
        return self._speak(batch)

    def _speak(self, batch: Batch) -> None:
        if not self._is_sure():
            return self.after(50, lambda: self._speak(batch))
        self.checks.speaks(self)
        if self.next_commit == "speak late":
            self.stop_for(STOP_MS)
        return self.after(self.rng.choice((0, 0, 1)), lambda: self._carry_out(batch))

    def _carry_out(self, batch: Batch) -> None:
        for reply, answer in batch.answers:
            if isinstance(answer, Slot):
                self.checks.resizes.acknowledged(answer)
            reply(answer)
        for item in batch.reads:
            assert item.read is not None
            try:
                item.reply(item.read(self.state))
            except FinegrainError as error:
                item.reply(error)
        for effect in batch.effects:
            if isinstance(effect, SendAllocate | SendFree | SendResize):
                self._command(effect)
            elif isinstance(effect, ProbeExecutor):
                self._probe(effect)
            elif isinstance(effect, StartExecutor | StopExecutor):
                assert self._provider is not None
                self._provider.carry_out(effect)
        self._busy = False
        self._wake()

    # -- executors -------------------------------------------------------------------------

    def _command(self, command: Command) -> None:
        executor, rm_epoch = self._at(command.address), self.state.rm_epoch
        books = self._books
        self.log(
            f"{self.name} orders {type(command).__name__[4:].lower()} {command.command_number} of"
            f" {command.registration_number} at {command.executor_id}: {_names(command)}"
        )
        self.network.call(
            self,
            executor,
            lambda reply: executor.command(command, rm_epoch, reply),
            lambda result: self._outcome(command, result) if books == self._books else None,
            COMMAND_WAIT_MS,
        )

    def _at(self, address: str) -> Executor:
        """Returns the executor that listens, or listened, at an address."""
        return self.executors[address.partition(":")[0]]

    def _probe(self, probe: ProbeExecutor) -> None:
        names = (probe.executor_id, probe.address)
        self.network.call(
            self,
            self._at(probe.address),
            lambda reply: reply(None),
            lambda result: self.submit(
                lambda at: ExecutorProbed(at, *names, repr(result) if result else "")
            ),
            COMMAND_WAIT_MS,
        )

    def _outcome(self, command: Command, result: Any) -> None:
        names = (command.executor_id, command.registration_number, command.command_number)
        try:
            if isinstance(result, Exception):
                raise result
            outcomes, message = result
            report = decoding.report(message, "report")
        except (FailedPrecondition, InvalidArgument) as error:
            self.log(f"{self.name} hears {names} refused: {error}")
            reason = error.reason.value
            # This must not happen: both sides must count the commands in the same way.
            if error.reason is Reason.COMMAND_OUT_OF_ORDER:
                self.checks.require([f"{names[0]}: {error}"])
            self.submit(lambda at: CommandRefused(at, *names, reason=reason))
        except (FinegrainError, Unreached) as error:
            cause = repr(error)
            self.submit(lambda at: CommandUndelivered(at, *names, cause=cause))
        else:
            self.submit(lambda at: CommandAnswered(at, *names, outcomes=outcomes, report=report))


def _names(command: Command) -> str:
    if isinstance(command, SendResize):
        return f"{command.allocation_id}/{command.generation} to change {command.resize.number}"
    if isinstance(command, SendFree):
        return " ".join(f"{name}/{generation}" for name, generation, _ in command.slots)
    return " ".join(f"{o.slot.allocation_id}/{o.slot.generation}" for o in command.orders)

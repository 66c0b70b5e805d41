"""The resource manager's shell in virtual time: batches, commits, crashes around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import (
    FailedPrecondition,
    FinegrainError,
    IllegalTransition,
    InvalidArgument,
    InvariantBroken,
    Reason,
)
from resource_manager.engine.effects import Effect, ProbeExecutor, SendAllocate, SendFree
from resource_manager.engine.entities import Instant
from resource_manager.engine.events import (
    CommandAnswered,
    CommandRefused,
    CommandUndelivered,
    Decide,
    Event,
    ExecutorProbed,
    Ticked,
)
from resource_manager.engine.settings import EngineSettings
from resource_manager.engine.state import State
from resource_manager.engine.step import step
from resource_manager.service import from_wire
from tests.simulation.network import Loop, Network, Node, Reply, Unreached
from tests.simulation.store import DictStore

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.executor import Executor

TICK_MS = 200
COMMAND_WAIT_MS = 2_000
START_TIME_MS = 1_700_000_000_000


@dataclass
class Item:
    """An event to come and whoever waits for its answer."""

    make: Callable[[Instant], Event]
    reply: Reply


class Manager(Node):
    """One resource manager after another, over the same store."""

    def __init__(
        self,
        loop: Loop,
        rng: Random,
        network: Network,
        settings: EngineSettings,
        checks: Checks,
        log: Callable[[str], None],
    ) -> None:
        super().__init__("rm", loop)
        self.rng, self.network, self.settings, self.checks, self.log = (
            rng,
            network,
            settings,
            checks,
            log,
        )
        self.store = DictStore()
        self.executors: dict[str, Executor] = {}
        self.batches = 0
        self.crash_at = ""  # "before" or "after" the next commit
        self.state = State.restore(self.store.load(), settings, self.at)

    @property
    def at(self) -> Instant:
        """This moment. Every process has a monotonic clock of its own."""
        return Instant(self.loop.now_ms + 1_000 * self.life, START_TIME_MS + self.loop.now_ms)

    def start(self) -> None:
        """A new incarnation reads the books."""
        self.life += 1
        self.up = True
        self._inbox: list[Item] = []
        self._busy = False
        self._tick_due = False
        self.state = State.restore(self.store.load(), self.settings, self.at)
        self.log(f"rm starts at epoch {self.state.rm_epoch}")
        self.checks.books(self.state)
        self.after(TICK_MS, self._tick)

    def crash(self) -> None:
        """Dies where it stands."""
        self.log("rm dies")
        self.up = False
        self.crash_at = ""
        self.loop.after(self.rng.choice((20, 200, 1_000, 5_000)), self.start)

    def submit(self, make: Callable[[Instant], Event], reply: Reply = lambda _answer: None) -> None:
        """Steps an event in the next batch; the answer goes out when it is durable."""
        self._inbox.append(Item(make, reply))
        self._wake()

    def _tick(self) -> None:
        self._tick_due = True
        self._wake()
        self.after(TICK_MS, self._tick)

    def _wake(self) -> None:
        if not self._busy:
            self._busy = True
            self.after(1, self._turn)

    def _turn(self) -> None:
        batch, self._inbox = self._inbox, []
        at, effects, answers = self.at, list[Effect](), list[tuple[Reply, Any]]()
        for item in batch:
            answer = self._step(item.make(at), effects)
            self.checks.answered(self.state, answer)
            answers.append((item.reply, answer))
        if self._tick_due:
            self._tick_due = False
            self._step(Ticked(at), effects)
        self._step(Decide(at), effects)
        self.batches += 1
        changes = self.state.take_changes()
        self.checks.decided(self.state, effects, changed=bool(changes))
        commit = self.store.commit_of(changes)
        self.after(self.rng.randint(1, 8), lambda: self._committed(commit, answers, effects))

    def _step(self, event: Event, effects: list[Effect]) -> Any:
        try:
            result = step(self.state, event)
        except (IllegalTransition, InvariantBroken):
            raise
        except FinegrainError as error:
            return error
        effects += result.effects
        return result.answer

    def _committed(
        self,
        commit: Callable[[], list[str]],
        answers: list[tuple[Reply, Any]],
        effects: list[Effect],
    ) -> None:
        if self.crash_at == "before":
            return self.crash()
        self.checks.require(commit())
        if self.crash_at == "after":
            return self.crash()
        for reply, answer in answers:
            reply(answer)
        for effect in effects:
            if isinstance(effect, SendAllocate | SendFree):
                self._command(effect)
            elif isinstance(effect, ProbeExecutor):
                self._probe(effect)
        self._busy = False
        if self._inbox or self._tick_due:
            self._wake()
        return None

    def _command(self, command: SendAllocate | SendFree) -> None:
        executor, rm_epoch = self.executors[command.executor_id], self.state.rm_epoch
        self.log(
            f"rm orders {type(command).__name__[4:].lower()} {command.command_number} of"
            f" {command.registration_number} at {command.executor_id}: {_names(command)}"
        )
        self.network.call(
            self,
            executor,
            lambda reply: executor.command(command, rm_epoch, reply),
            lambda result: self._outcome(command, result),
            COMMAND_WAIT_MS,
        )

    def _probe(self, probe: ProbeExecutor) -> None:
        names = (probe.executor_id, probe.address)
        self.network.call(
            self,
            self.executors[probe.executor_id],
            lambda reply: reply(None),
            lambda result: self.submit(
                lambda at: ExecutorProbed(at, *names, repr(result) if result else "")
            ),
            COMMAND_WAIT_MS,
        )

    def _outcome(self, command: SendAllocate | SendFree, result: Any) -> None:
        names = (command.executor_id, command.registration_number, command.command_number)
        try:
            if isinstance(result, Exception):
                raise result
            outcomes, message = result
            report = from_wire.report(message, "report")
        except (FailedPrecondition, InvalidArgument) as error:
            self.log(f"rm hears {names} refused: {error}")
            reason = error.reason.value
            if error.reason is Reason.COMMAND_OUT_OF_ORDER:  # both sides count the same, always
                self.checks.require([f"{names[0]}: {error}"])
            self.submit(lambda at: CommandRefused(at, *names, reason=reason))
        except (FinegrainError, Unreached) as error:
            cause = repr(error)
            self.submit(lambda at: CommandUndelivered(at, *names, cause=cause))
        else:
            self.submit(lambda at: CommandAnswered(at, *names, outcomes=outcomes, report=report))


def _names(command: SendAllocate | SendFree) -> str:
    if isinstance(command, SendFree):
        return " ".join(f"{name}/{generation}" for name, generation, _ in command.slots)
    return " ".join(f"{o.slot.allocation_id}/{o.slot.generation}" for o in command.orders)

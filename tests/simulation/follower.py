"""A simulated client: keeps its job alive and follows its event log at changing managers.

Like the client library, it repeats calls until they are answered. `job_master.py` decides what to
request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import FinegrainError, NotFound, OutOfRange, Reason, StoreError, Unavailable
from finegrain.values.states import RequestState
from resource_manager.engine.explain.intervals import intervals_of
from resource_manager.engine.lifecycle.journal import slot_to_dict
from resource_manager.engine.model.entities import JobEvent
from resource_manager.engine.model.events import JobKeptAlive
from resource_manager.engine.state import State
from tests.simulation.manager import Manager
from tests.simulation.network import Loop, Network, Node, Reply, Unreached

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

CALL_WAIT_MS = 1_500
WATCH_MS = 250


@dataclass(frozen=True)
class Told:
    """The last state of a request that a job master received."""

    state: RequestState
    slot: Mapping[str, object] | None = None

    @property
    def generation(self) -> int:
        """Returns the slot's generation; 0 if no slot was named."""
        return int(str(self.slot["generation"])) if self.slot is not None else 0

    @property
    def resize_number(self) -> int:
        """Returns the number of the slot's last resize, as far as the job master knows."""
        return int(str(self.slot.get("resize_number", 0))) if self.slot is not None else 0


@dataclass(frozen=True)
class Snapshot:
    """The first item of a stream that does not resume at a position."""

    sequence: int
    living: Mapping[str, Told]


class Follower(Node):
    """A job's connection to the leading manager."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        managers: list[Manager],
        checks: Checks,
        log: Callable[[str], None],
        lease_ms: int | None,
    ) -> None:
        super().__init__(name, loop)
        self.rng, self.network, self.managers = rng, network, managers
        self.checks, self.log, self.lease_ms = checks, log, lease_ms
        self.over = False  # the RM knows no active job of this name
        self.given_back: set[tuple[str, int]] = set()  # (id, generation); generation 0 means any
        self._forget()

    def _forget(self) -> None:
        self.registered = self.busy = False
        self.seen: dict[str, Told] = {}
        self.snapshot: Snapshot | None = None
        self.sequence: int | None = 0  # None: the stream begins with a snapshot
        self.stream = 0

    # -- calls -----------------------------------------------------------------------------

    def _next_manager(self) -> None:
        self.managers = [*self.managers[1:], self.managers[0]]

    def until_answered(
        self,
        make: Callable[[Any], Any],
        done: Reply,
        expected: Callable[[FinegrainError], bool] = lambda _error: False,
    ) -> None:
        """Repeats a call until it is answered. Refusals that `expected` accepts count as
        answers.
        """

        def take(result: Any) -> None:
            if isinstance(result, FinegrainError) and expected(result):
                self.log(f"{self.name} is refused: {result.reason}")
            elif isinstance(result, Unreached | Unavailable):
                if not isinstance(result, StoreError):
                    self._next_manager()
                self.after(self.rng.randint(20, 400), attempt)
            elif isinstance(result, NotFound) or (
                isinstance(result, FinegrainError) and result.reason is Reason.JOB_ENDED
            ):
                self._end(str(result))
            elif isinstance(result, Exception):
                self.checks.require([f"{self.name} is refused: {result}"])
            else:
                done(result)

        def attempt() -> None:
            manager = self.managers[0]
            self.network.call(
                self, manager, lambda reply: manager.submit(make, reply), take, CALL_WAIT_MS
            )

        attempt()

    def _end(self, why: str) -> None:
        if not self.over:
            self.over = True
            self.log(f"{self.name} is over: {why}")

    def _keep_alive(self) -> None:
        if self.lease_ms is not None and not self.over:
            lease_ms, sent_ms = self.lease_ms, self.loop.now_ms
            manager = self.managers[0]

            def take(result: Any) -> None:
                if isinstance(result, Unreached | Unavailable):
                    self._next_manager()
                elif not isinstance(result, Exception):
                    self.checks.kept_alive(self.name, sent_ms, lease_ms)

            self.network.call(
                self,
                manager,
                lambda reply: manager.submit(lambda at: JobKeptAlive(at, self.name), reply),
                take,
                CALL_WAIT_MS,
            )
            self.after(lease_ms // 6, self._keep_alive)

    # -- the watch log ---------------------------------------------------------------------

    def _watch(self) -> None:
        stream, after, manager = self.stream, self.sequence, self.managers[0]

        def take(result: Any) -> None:
            if stream != self.stream:
                return
            if isinstance(result, OutOfRange):
                self.log(f"{self.name} begins anew: {result}")
                self.stream += 1
                self.sequence = None
            elif isinstance(result, NotFound):
                self._end(str(result))
            elif isinstance(result, Snapshot):
                self._take_snapshot(result)
            elif isinstance(result, Unreached | Unavailable):
                self._next_manager()
            elif not isinstance(result, Exception):
                for event in result:
                    self._take(event)
                self.checks.require(self.checks.gangs.followed(self))

        name = self.name
        self.network.call(
            self,
            manager,
            lambda reply: manager.read(lambda state: _read_log(manager, state, name, after), reply),
            take,
            CALL_WAIT_MS,
        )
        self.after(WATCH_MS, self._watch)

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        if self.sequence is None:
            self.sequence, self.snapshot = snapshot.sequence, snapshot
            self.seen = dict(snapshot.living)
            self.checks.require(self.checks.gangs.followed(self))

    def _take(self, event: JobEvent) -> None:
        if self.sequence is None or event.sequence <= self.sequence:
            return
        if event.sequence != self.sequence + 1:
            self.checks.require([f"{self.name} misses events after {self.sequence}"])
        self.sequence = event.sequence
        self.checks.told(event)
        told = Told(event.state, event.slot)
        self.seen.update(dict.fromkeys(names_of(event.allocation_id, event.count), told))
        if event.state is RequestState.RELEASED:
            self._released(event)
        if event.state is RequestState.RELEASED and not event.reason and event.slot is not None:
            asked = {(event.allocation_id, told.generation), (event.allocation_id, 0)}
            if not asked & self.given_back:
                self.checks.require([f"{event.allocation_id} was released, but not by {self.name}"])

    def _released(self, event: JobEvent) -> None:
        """Handles a RELEASED event; for subclasses."""

    def waits(self, name: str) -> bool:
        """Returns whether a request must be assumed to wait."""
        told = self.told_of(name)
        return told is not None and told.state is RequestState.PENDING

    def held(self) -> dict[tuple[str, int], Told]:
        """Returns the slots of the job, as far as it knows them."""
        return {
            (name, told.generation): told
            for name, told in self.seen.items()
            if told.state is RequestState.GRANTED and self.up and not self.over
        }

    def told_of(self, name: str) -> Told | None:
        """Returns the state that the job must know of its request; None: the request may have
        ended.
        """
        if name in self.seen or self.snapshot is not None:
            return self.seen.get(name)
        return Told(RequestState.PENDING)


def names_of(first: str, count: int) -> list[str]:
    """Returns the names of `count` consecutive members of a range, or the only name."""
    if count == 1:
        return [first]
    range_id, _, index = first.rpartition(".")
    return [f"{range_id}.{n}" for n in range(int(index), int(index) + count)]


def _read_log(
    manager: Manager, state: State, job_id: str, after: int | None
) -> Snapshot | list[JobEvent]:
    """Returns the next items of a stream; see `resource_manager/service/watch.py`.

    Raises:
        NotFound: the job does not exist.
        OutOfRange: the position is no longer stored, or was never reached.
    """
    job = state.jobs.get(job_id)
    if job is None:
        raise NotFound(f"job {job_id} is unknown", reason=Reason.JOB_UNKNOWN)
    if after is None:
        living = {}
        for interval in intervals_of(state, job):
            request = interval.request
            if not interval.ended:
                slot = state.slots.of(request)
                shown = request.state is RequestState.GRANTED and slot is not None
                told = Told(
                    request.state if shown else RequestState.PENDING,
                    slot_to_dict(slot, "") if shown and slot is not None else None,
                )
                living.update(dict.fromkeys(names_of(request.allocation_id, interval.count), told))
        return Snapshot(job.last_sequence, living)
    if not job.trimmed_sequence <= after <= job.last_sequence:
        raise OutOfRange(
            f"{after} is not within {job.trimmed_sequence} to {job.last_sequence}", details={}
        )
    events = manager.database.rows.events_after(job_id, after)
    return [event for event in events if event.sequence <= job.last_sequence]

"""A job master: asks, gives back, keeps alive or falls silent, and follows its event log.

Every call is repeated until it is answered, at one manager after another, as the client library
does. One that starts again remembers its name and its secret only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import FinegrainError, NotFound, OutOfRange, Reason, StoreError, Unavailable
from finegrain.resources import MIB, ResourceProfile
from resource_manager.engine.entities import (
    ENDED_REQUEST_STATES,
    JobEvent,
    RequestSpec,
    RequestState,
)
from resource_manager.engine.events import (
    JobEndRequested,
    JobKeptAlive,
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.offers import slot_to_dict
from resource_manager.engine.state import State
from task_executor.engine.slots import SlotKey
from tests.simulation.manager import Manager
from tests.simulation.network import Loop, Network, Node, Reply, Unreached

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.slot_host import Troubles

CALL_WAIT_MS = 1_500
WATCH_MS = 250
PROFILES = (
    ResourceProfile(1_000, 256 * MIB),
    ResourceProfile(500, 100 * MIB, managed_memory_bytes=30 * MIB + 1),
    ResourceProfile(3_000, 1_024 * MIB),
    ResourceProfile(250, 64 * MIB, extended=(("license", 1),)),
    ResourceProfile(64_000, 256 * MIB),  # larger than any host
)
WEIGHTS = (6, 4, 2, 2, 1)


@dataclass(frozen=True)
class Told:
    """What a job master was told last about a request."""

    state: RequestState
    slot: Mapping[str, object] | None = None

    @property
    def generation(self) -> int:
        """Of the slot; 0: none was named."""
        return int(str(self.slot["generation"])) if self.slot is not None else 0


@dataclass(frozen=True)
class Snapshot:
    """What a stream begins with when nothing is to be resumed."""

    sequence: int
    living: Mapping[str, Told]


class JobMaster(Node):
    """One job's master."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        managers: list[Manager],
        checks: Checks,
        log: Callable[[str], None],
        troubles: Troubles,
        batch_max: int,
    ) -> None:
        super().__init__(name, loop)
        self.rng, self.network, self.managers, self.checks = rng, network, managers, checks
        self.log, self.troubles, self.batch_max = log, troubles, batch_max
        self.unknown = rng.random() < 0.25
        self.lease_ms = rng.choice((None, 3_000, 6_000, 10_000))
        self.over = self.leaving = False  # over: the RM knows no such living job
        self.made = 0
        self.acknowledged: set[str] = set()
        self.given_back: set[tuple[str, int]] = set()  # (id, generation), 0 for any
        self._forget()

    def _forget(self) -> None:
        self.registered = self.busy = False
        self.seen: dict[str, Told] = {}
        self.snapshot: Snapshot | None = None
        self.sequence: int | None = 0  # None: the stream begins with a snapshot
        self.stream = 0

    def start(self) -> None:
        """Makes itself known and begins."""
        self.life += 1
        self.up = True
        self._forget()
        if self.life > 1:
            self.sequence = None
        self._until_answered(
            lambda at: JobRegistered(at, self.name, self.name, "default", self.lease_ms, "s", "r"),
            self._begin,
        )

    def _begin(self, _job: Any) -> None:
        if not self.registered:
            self.registered = True
            self._keep_alive()
            self._watch()
            self._act()

    def leave(self) -> None:
        """Asks for nothing more and ends the job."""
        self.leaving = True
        if self.up and not self.over:
            self._until_answered(
                lambda at: JobEndRequested(at, self.name, "ENDED"), lambda _job: self._end("left")
            )

    def crash(self, *, back_in_ms: int | None) -> None:
        """Dies; for good if `back_in_ms` is None (then its lease will lapse)."""
        self.log(f"{self.name} {'falls silent' if back_in_ms is None else 'dies'}")
        self.up = False
        if back_in_ms is not None:
            self.loop.after(back_in_ms, self.start)

    def offered(self, key: SlotKey, reply: Reply) -> None:
        """An executor offers a slot directly."""
        reply(not self.over and self.rng.random() >= self.troubles.offer_declined)

    # -- calls -----------------------------------------------------------------------------

    def _next_manager(self) -> None:
        self.managers = [*self.managers[1:], self.managers[0]]

    def _until_answered(self, make: Callable[[Any], Any], done: Reply) -> None:
        def take(result: Any) -> None:
            if isinstance(result, Unreached | Unavailable):
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

    def _take(self, event: JobEvent) -> None:
        if self.sequence is None or event.sequence <= self.sequence:
            return
        if event.sequence != self.sequence + 1:
            self.checks.require([f"{self.name} misses events after {self.sequence}"])
        self.sequence = event.sequence
        self.checks.told(event)
        self.seen[event.allocation_id] = told = Told(event.state, event.slot)
        if event.state is RequestState.RELEASED and not event.reason and event.slot is not None:
            asked = {(event.allocation_id, told.generation), (event.allocation_id, 0)}
            if not asked & self.given_back:
                self.checks.require([f"{event.allocation_id} was released, but not by {self.name}"])

    def told_of(self, name: str) -> Told | None:
        """What it must believe of a request of its own; None: it may be over."""
        if name in self.seen or self.snapshot is not None:
            return self.seen.get(name)
        return Told(RequestState.PENDING)

    # -- what it wants ---------------------------------------------------------------------

    def _act(self) -> None:
        self.after(self.rng.randint(50, 900), self._act)
        if self.over or self.leaving or self.busy:
            return
        what = self.rng.random()
        held = [
            (name, told.generation)
            for name, told in self.seen.items()
            if told.state is RequestState.GRANTED
        ]
        if what < 0.35 and len(held) < 4 * self.batch_max:
            self._request()
        elif what < 0.7 and held:
            self._release(self.rng.sample(held, self.rng.randint(1, min(4, len(held)))))
        elif what < 0.8:
            self._cancel()

    def _request(self) -> None:
        specs = tuple(self._spec() for _ in range(self.rng.randint(1, self.batch_max)))
        self.busy = True

        def done(outcomes: Any) -> None:
            self.busy = False
            fine = {outcome.id for outcome in outcomes if not outcome.reason}
            self.acknowledged |= self.checks.acknowledged(self.name, fine)

        self._until_answered(lambda at: RequestsSubmitted(at, self.name, specs), done)

    def _spec(self) -> RequestSpec:
        rng = self.rng
        self.made += 1
        return RequestSpec(
            f"{self.name}-{self.made}",
            None if self.unknown else rng.choices(PROFILES, WEIGHTS)[0],
            required_labels=(("zone", rng.choice("ab")),) if rng.random() < 0.25 else (),
            target_address="127.0.0.1:99" if rng.random() < 0.2 else "",
            allow_pending=rng.random() < 0.7,
            restart_on_loss=rng.random() < 0.5,
        )

    def _release(self, held: list[tuple[str, int]]) -> None:
        slots = [
            # Of a slot that it had before, now and then; nothing may happen.
            (name, max(1, generation - 1) if self.rng.random() < 0.2 else generation)
            for name, generation in held
        ]
        self.given_back.update(slots)
        self._until_answered(
            lambda at: SlotsReleased(at, self.name, tuple(slots)), lambda _outcomes: None
        )

    def _cancel(self) -> None:
        waiting = [
            name
            for name in sorted(self.acknowledged)
            if (told := self.told_of(name)) is not None and told.state not in ENDED_REQUEST_STATES
        ]
        some = tuple(self.rng.sample(waiting, min(3, len(waiting))))
        if some:
            self.given_back.update((name, 0) for name in some)
            self._until_answered(
                lambda at: RequestsCancelled(at, self.name, some), lambda _outcomes: None
            )


def _read_log(
    manager: Manager, state: State, job_id: str, after: int | None
) -> Snapshot | list[JobEvent]:
    """What a stream says next; see `resource_manager/service/watch.py`.

    Raises:
        NotFound: no such job.
        OutOfRange: the position is no longer kept, or was never reached.
    """
    job = state.jobs.get(job_id)
    if job is None:
        raise NotFound(f"job {job_id} is unknown", reason=Reason.JOB_UNKNOWN)
    if after is None:
        living = {}
        for request in state.requests.values():
            if request.job_id != job_id:
                continue
            name = request.allocation_id
            if request.state not in ENDED_REQUEST_STATES:
                slot = state.slot_of(request)
                shown = request.state is RequestState.GRANTED and slot is not None
                living[name] = Told(
                    request.state if shown else RequestState.PENDING,
                    slot_to_dict(slot, "") if shown and slot is not None else None,
                )
        return Snapshot(job.last_sequence, living)
    if not job.trimmed_sequence <= after <= job.last_sequence:
        raise OutOfRange(
            f"{after} is not within {job.trimmed_sequence} to {job.last_sequence}", details={}
        )
    log = manager.database.rows.logs.get(job_id)
    events = [] if log is None else log.after(after)
    return [event for event in events if event.sequence <= job.last_sequence]

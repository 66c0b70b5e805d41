"""A job master: asks, gives back, keeps alive or falls silent, and follows its event log.

Every call is repeated until it is answered, as the client library does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import FinegrainError, NotFound, Reason
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
from tests.simulation.network import Loop, Network, Node, Reply, Unreached

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.manager import Manager

CALL_WAIT_MS = 1_500
PROFILES = (
    ResourceProfile(1_000, 256 * MIB),
    ResourceProfile(500, 100 * MIB, managed_memory_bytes=30 * MIB + 1),
    ResourceProfile(3_000, 1_024 * MIB),
    ResourceProfile(250, 64 * MIB, extended=(("license", 1),)),
    ResourceProfile(64_000, 256 * MIB),  # larger than any host
)
WEIGHTS = (6, 4, 2, 2, 1)


class JobMaster(Node):
    """One job's master."""

    def __init__(
        self,
        name: str,
        loop: Loop,
        rng: Random,
        network: Network,
        manager: Manager,
        checks: Checks,
        log: Callable[[str], None],
        *,
        unknown: bool,
        lease_ms: int | None,
    ) -> None:
        super().__init__(name, loop)
        self.rng, self.network, self.manager, self.checks, self.log = (
            rng,
            network,
            manager,
            checks,
            log,
        )
        self.unknown, self.lease_ms = unknown, lease_ms
        self.registered = self.over = self.busy = False  # over: the RM knows no such living job
        self.leaving = False
        self.made = 0
        self.acknowledged: set[str] = set()
        self.given_back: set[tuple[str, int]] = set()  # (id, generation), 0 for any
        self.seen: dict[str, JobEvent] = {}  # latest event of each request
        self.sequence = 0

    def start(self) -> None:
        """Makes itself known and begins."""
        self.up = True
        self._until_answered(
            lambda at: JobRegistered(at, self.name, self.name, "default", self.lease_ms, "s", "r"),
            self._begin,
        )

    def _begin(self, _job: Any) -> None:
        if self.registered:
            return
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

    def fall_silent(self) -> None:
        """Dies for good; the lease will lapse."""
        self.up = False

    # -- calls -----------------------------------------------------------------------------

    def _until_answered(self, make: Callable[[Any], Any], done: Reply) -> None:
        def take(result: Any) -> None:
            if isinstance(result, Unreached):
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
            manager = self.manager
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
            self._until_answered(lambda at: JobKeptAlive(at, self.name), lambda _job: None)
            self.after(self.lease_ms // 4, self._keep_alive)

    # -- the watch log ---------------------------------------------------------------------

    def _watch(self) -> None:
        def serve(reply: Reply) -> None:
            log = self.manager.store.job_events.get(self.name, [])
            reply([event for event in log if event.sequence > after])

        def take(result: Any) -> None:
            if not isinstance(result, Unreached):
                for event in result:
                    self._take(event)

        after = self.sequence
        self.network.call(self, self.manager, serve, take, CALL_WAIT_MS)
        self.after(250, self._watch)

    def _take(self, event: JobEvent) -> None:
        if event.sequence <= self.sequence:
            return
        if event.sequence != self.sequence + 1:
            self.checks.require([f"{self.name} misses events after {self.sequence}"])
        self.sequence = event.sequence
        self.seen[event.allocation_id] = event
        if event.state is RequestState.RELEASED and not event.reason and event.slot is not None:
            asked = {(event.allocation_id, event.slot["generation"]), (event.allocation_id, 0)}
            if not asked & self.given_back:
                self.checks.require([f"{event.allocation_id} was released, but not by {self.name}"])

    # -- what it wants ---------------------------------------------------------------------

    def _act(self) -> None:
        self.after(self.rng.randint(50, 900), self._act)
        if self.over or self.leaving or self.busy:
            return
        what = self.rng.random()
        held = [
            event
            for event in self.seen.values()
            if event.state is RequestState.GRANTED and event.slot is not None
        ]
        if what < 0.35 and len(held) < 25:
            self._request()
        elif what < 0.7 and held:
            self._release(self.rng.sample(held, self.rng.randint(1, min(4, len(held)))))
        elif what < 0.8:
            self._cancel()

    def _request(self) -> None:
        specs = tuple(self._spec() for _ in range(self.rng.randint(1, 6)))
        self.busy = True

        def done(outcomes: Any) -> None:
            self.busy = False
            fine = {outcome.id for outcome in outcomes if not outcome.reason}
            self.acknowledged |= fine
            self.checks.acknowledged(self.name, fine)

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

    def _release(self, events: list[JobEvent]) -> None:
        slots = []
        for event in events:
            assert event.slot is not None
            generation = event.slot["generation"]
            assert isinstance(generation, int)
            if self.rng.random() < 0.2:  # of a slot that it had before; nothing may happen
                generation = max(1, generation - 1)
            slots.append((event.allocation_id, generation))
        self.given_back.update(slots)
        self._until_answered(
            lambda at: SlotsReleased(at, self.name, tuple(slots)), lambda _outcomes: None
        )

    def _cancel(self) -> None:
        waiting = [
            name
            for name in sorted(self.acknowledged)
            if name not in self.seen or self.seen[name].state not in ENDED_REQUEST_STATES
        ]
        some = tuple(self.rng.sample(waiting, min(3, len(waiting))))
        if some:
            self.given_back.update((name, 0) for name in some)
            self._until_answered(
                lambda at: RequestsCancelled(at, self.name, some), lambda _outcomes: None
            )

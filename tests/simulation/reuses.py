"""Lets a job master reuse its slots for requests that wait.

It repeats a call until it is answered. It checks that the answers agree with the job's log.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from finegrain.errors import Reason
from finegrain.values.outcomes import ItemOutcome
from resource_manager.engine.model.entities import JobEvent, RequestSpec
from resource_manager.engine.model.events import SlotsReuseRequested
from task_executor.engine.slots import SlotKey

if TYPE_CHECKING:
    from tests.simulation.fair_checks import Key
    from tests.simulation.job_master import JobMaster

AT_ONCE_MAX = 4

GIVEN_BACK = frozenset({Reason.FAIR_SHARE, Reason.NOT_REUSABLE})


class Reuses:
    """The reuse calls of one job master.

    Attributes:
        specs: specs of its requests by id. For a range, the key is the id of the range. Gangs are
            not included.
    """

    def __init__(self, master: JobMaster, rng: Random) -> None:
        self.specs: dict[str, RequestSpec] = {}
        self._master, self._rng = master, rng
        self._asked: set[str] = set()  # requests that were named in a call
        self._open: dict[Key, str] = {}  # calls without an answer: slot to request
        # for each slot: the requests, and whether the reuse was granted
        self._told: dict[Key, dict[str, bool]] = {}

    def begin(self) -> None:
        """Starts; after a restart of the master it does not know of earlier calls."""
        self._open.clear()
        self._told.clear()
        self._act()

    def _act(self) -> None:
        master = self._master
        master.after(self._rng.randint(80, 700), self._act)
        if not (master.over or master.leaving or master.busy):
            pairs = self._pairs()
            if pairs:
                self._ask(pairs)

    def _pairs(self) -> list[tuple[str, int, str]]:
        """Draws slots and waiting requests, mostly with equal specs."""
        master, rng = self._master, self._rng
        held = [key for key in master.held() if key not in self._open and self._spec(key[0])]
        waiting = [
            name
            for name in sorted(master.acknowledged)
            if name not in self._asked and self._spec(name) and master.waits(name)
        ]
        found: list[tuple[str, int, str]] = []
        for name, generation in rng.sample(held, min(AT_ONCE_MAX, len(held))):
            same = [each for each in waiting if self._kind(each) == self._kind(name)]
            pool = same if rng.random() < 0.95 else waiting
            if pool:
                for_id = rng.choice(pool[:5])
                waiting.remove(for_id)
                old = generation > 1 and rng.random() < 0.05
                found.append((name, generation - old, for_id))
        return found

    def _spec(self, name: str) -> RequestSpec | None:
        return self.specs.get(name) or self.specs.get(name.rpartition(".")[0])

    def _kind(self, name: str) -> object:
        spec = self._spec(name)
        assert spec is not None
        times = spec.time_limit_ms, spec.wait_timeout_ms
        return spec.profile, spec.required_labels, spec.target_address, times

    def _ask(self, pairs: list[tuple[str, int, str]]) -> None:
        master = self._master
        for name, generation, for_id in pairs:
            self._asked.add(for_id)
            self._open[name, generation] = for_id

        def done(outcomes: list[ItemOutcome]) -> None:
            for (name, generation, for_id), outcome in zip(pairs, outcomes, strict=True):
                key = name, generation
                self._open.pop(key, None)
                self._told.setdefault(key, {})[for_id] = not outcome.reason
                if not outcome.reason:
                    fair, database = master.checks.fair, master.checks.database
                    master.checks.require(fair.agreed(key, for_id, database))
                    master.checks.times.agreed(SlotKey(*key), master.loop.now_ms)

        def make(at: Any) -> SlotsReuseRequested:
            return SlotsReuseRequested(at, master.name, tuple(pairs))

        master.log(f"{master.name} asks to reuse {pairs}")
        master.until_answered(make, done)

    def ended(self, event: JobEvent) -> list[str]:
        """Checks a RELEASED event of the job's log; returns problems."""
        name = event.allocation_id
        if event.reason == Reason.REUSED and name not in self._asked:
            return [f"the work of {name} was taken over, and nobody has asked for that"]
        if event.reason not in GIVEN_BACK or event.slot is None:
            return []
        key = name, int(str(event.slot["generation"]))
        told = self._told.get(key, {})
        has = self._master.checks.database.rows.has
        if told and key not in self._open and all(told.values()) and all(map(has, told)):
            return [f"{key} may do the work of {sorted(told)}, and is taken away: {event.reason}"]
        return []

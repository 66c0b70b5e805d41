"""What flows have received survives whoever leads: after a restart every tally is where it would be
without, but for one interval of accrual.

Only where nobody's wall clock was set meanwhile: the time between two incarnations has no other
measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from resource_manager.engine.fairness.flows import Flow
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.settings import Fairness
from resource_manager.engine.state import State

if TYPE_CHECKING:
    from tests.simulation.manager import Manager

ROUNDING = 1e-5
"""Times of rows are whole milliseconds."""

LATE_MS = 2_000
"""A row is written with the next batch after it is due, and in a commit that may take long."""


@dataclass(frozen=True, slots=True)
class _Books:
    """Tallies and rates of books, as of one moment."""

    at_ms: int
    wall_ahead_ms: int
    flows: dict[str, tuple[float, float]]
    window_ms: int


class UsageChecks:
    """Holds the tallies of new books against those that were durable last."""

    def __init__(self) -> None:
        self.compared = 0
        self._known: dict[str, float] = {}  # service received, as of `_known_ms`
        self._known_ms = 0
        self._clocks: set[int] = set()  # by how much those were off who wrote rows
        self._peaks: dict[str, list[tuple[int, float]]] = {}
        self._decided: dict[int, _Books] = {}  # not known to be durable, by what is to be stored

    def decided(self, manager: Manager, changes: Changes) -> None:
        """These changes make the books what they are now, if they become durable."""
        tree = manager.state.flows
        # Every process has a monotonic clock of its own, and the tree that of its last event.
        at_ms = tree.clock.now_ms + manager.loop.now_ms - manager.at.monotonic_ms
        flows = {flow.id: (tree.usage(flow).service, flow.rate) for flow in _flows(manager.state)}
        window_ms = manager.settings.fairness.usage_interval_ms + LATE_MS
        self._decided[id(changes)] = _Books(at_ms, manager.wall_ahead_ms, flows, window_ms)

    def stored(self, changes: Changes) -> None:
        """They are durable, whether or not their manager will ever know."""
        books = self._decided.pop(id(changes))
        self._decided.clear()
        self._clocks.add(books.wall_ahead_ms)
        # Between two batches nothing is written: a manager that stalls keeps no interval.
        since_ms = (self._known_ms if self._known else books.at_ms) - books.window_ms
        self._known = {flow_id: service for flow_id, (service, _) in books.flows.items()}
        self._known_ms = books.at_ms
        for flow_id, (_, rate) in books.flows.items():
            peaks = self._peaks.setdefault(flow_id, [])
            peaks.append((books.at_ms, rate))
            while len(peaks) > 1 and peaks[1][0] <= since_ms:
                del peaks[0]

    def forget(self) -> None:
        """Older books were put in the place of these."""
        self._known, self._peaks = {}, {}

    def restored(self, manager: Manager) -> Iterator[str]:
        """Somebody has read the books; what is wrong with the tallies."""
        state, fairness = manager.state, manager.settings.fairness
        past_s = (manager.loop.now_ms - self._known_ms) / 1_000
        if not self._known or self._clocks != {manager.wall_ahead_ms}:
            return
        left, counted_s = _decay(past_s, fairness)
        window_s = (fairness.usage_interval_ms + LATE_MS) / 1_000
        for flow in _flows(state):
            # What slots cost is fixed anew at a restart.
            expected = self._known.get(flow.id, 0.0) * left + flow.rate * counted_s
            found = state.flows.usage(flow).service
            peak = max((each for _, each in self._peaks.get(flow.id, ())), default=0.0)
            if abs(found - expected) > max(peak, flow.rate) * window_s + ROUNDING * expected:
                yield (
                    f"{flow.id} has received {found}; without the restart it were {expected}"
                    f" (at a rate of at most {peak})"
                )
            self.compared += 1


def _flows(state: State) -> list[Flow]:
    return [*state.flows.groups.values(), *state.flows.jobs.values()]


def _decay(past_s: float, fairness: Fairness) -> tuple[float, float]:
    """The part that is left after so long, and the seconds of it that still count."""
    if fairness.half_life_ms is None:
        return 1.0, past_s
    half_life_s = fairness.half_life_ms / 1_000
    left = 0.5 ** (past_s / half_life_s)
    return left, (1 - left) * half_life_s / log(2)

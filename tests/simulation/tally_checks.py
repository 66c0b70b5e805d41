"""What flows have received survives whoever leads: after a restart every tally is where it would be
without, but for one interval of accrual.

Only where nobody's wall clock was set meanwhile: the time between two incarnations has no other
measure.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import TYPE_CHECKING

from resource_manager.engine.fair.flows import Flow
from resource_manager.engine.settings import Fairness
from resource_manager.engine.state import State

if TYPE_CHECKING:
    from tests.simulation.manager import Manager

ROUNDING = 1e-5
"""Times of rows are whole milliseconds."""

LATE_MS = 3_000
"""A row is written with the next batch after it is due, and in a commit that may take long."""


class TallyChecks:
    """Holds the tallies of new books against those that were durable last."""

    def __init__(self) -> None:
        self.compared = 0
        self._known: dict[str, tuple[float, float]] = {}  # tally and rate, as of `_known_ms`
        self._known_ms = 0
        self._clocks: set[int] = set()  # by how much those were off who wrote rows
        self._peaks: dict[str, list[tuple[int, float]]] = {}

    def durable(self, manager: Manager) -> None:
        """The books of a leader are durable as they are now."""
        now_ms, state = manager.loop.now_ms, manager.state
        self._clocks.add(manager.wall_ahead_ms)
        tree = state.flows
        self._known = {flow.id: (tree.tally(flow).service, flow.rate) for flow in _flows(state)}
        self._known_ms = tree.clock.now_ms + now_ms - manager.at.monotonic_ms
        window_ms = state.settings.fairness.tally_interval_ms + LATE_MS
        for flow in _flows(state):
            peaks = self._peaks.setdefault(flow.id, [])
            peaks[:] = [each for each in peaks if each[0] > now_ms - window_ms]
            peaks.append((now_ms, flow.rate))

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
        window_s = (fairness.tally_interval_ms + LATE_MS) / 1_000
        for flow in _flows(state):
            service, rate = self._known.get(flow.id, (0.0, 0.0))
            expected = service * left + rate * counted_s
            found = state.flows.tally(flow).service
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

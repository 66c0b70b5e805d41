"""Checks that usage survives a restart. It may differ by the accrual of at most one interval. It
may also differ by the accrual during an earlier outage, if this accrual was not written before the
next outage.

It compares only if no wall clock was changed: only wall clocks measure the time between two
incarnations.
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
"""Relative tolerance: times of rows are whole milliseconds."""

LATE_MS = 2_000
"""A row is written in the first batch after it is due, and its commit may be slow."""


@dataclass(frozen=True, slots=True)
class _Books:
    """Usage and rates at one moment."""

    at_ms: int
    wall_ahead_ms: int
    flows: dict[str, tuple[float, float]]
    window_ms: int


class UsageChecks:
    """Compares usage after a restart with the usage that was durable last."""

    def __init__(self) -> None:
        self.compared = 0
        self._known: dict[str, float] = {}  # the usage at the time `_known_ms`
        self._known_ms = 0
        # The present manager computed the usage of this time, before `_led_ms`, from rates.
        self._gap_ms = self._led_ms = self._window_ms = 0
        self._clocks: set[int] = set()  # clock errors of the managers that wrote rows
        self._peaks: dict[str, list[tuple[int, float]]] = {}
        self._decided: dict[int, _Books] = {}  # not known to be durable; by id of the changes

    def decided(self, manager: Manager, changes: Changes) -> None:
        """Records the usage that becomes durable with these changes."""
        tree = manager.state.flows
        # Every process has a different monotonic clock. The tree has the time of its last event, by
        # the clock of that process.
        at_ms = tree.clock.now_ms + manager.loop.now_ms - manager.at.monotonic_ms
        flows = {flow.id: (tree.usage(flow).service, flow.rate) for flow in _flows(manager.state)}
        window_ms = manager.settings.fairness.usage_interval_ms + LATE_MS
        self._decided[id(changes)] = _Books(at_ms, manager.wall_ahead_ms, flows, window_ms)

    def stored(self, changes: Changes) -> None:
        """The changes are durable, whether or not their manager learns it."""
        books = self._decided.pop(id(changes))
        self._decided.clear()
        self._clocks.add(books.wall_ahead_ms)
        # Nothing is written between two batches, so a stalled manager exceeds the interval.
        self._window_ms = books.window_ms + self._unwritten_ms(books.at_ms, books.window_ms)
        since_ms = (self._known_ms if self._known else books.at_ms) - self._window_ms
        self._known = {flow_id: service for flow_id, (service, _) in books.flows.items()}
        self._known_ms = books.at_ms
        for flow_id, (_, rate) in books.flows.items():
            peaks = self._peaks.setdefault(flow_id, [])
            peaks.append((books.at_ms, rate))
            while len(peaks) > 1 and peaks[1][0] <= since_ms:
                del peaks[0]

    def _unwritten_ms(self, at_ms: int, window_ms: int) -> int:
        """Returns the time before the present manager led whose usage may not be written yet.

        A manager writes this usage only after the first interval since its start has passed.
        """
        return self._gap_ms if at_ms - self._led_ms < window_ms else 0

    def forget(self) -> None:
        """A backup replaced the database."""
        self._known, self._peaks = {}, {}

    def restored(self, manager: Manager) -> Iterator[str]:
        """Checks the usage that a manager has read; yields problems."""
        state, fairness = manager.state, manager.settings.fairness
        past_s = (manager.loop.now_ms - self._known_ms) / 1_000
        if not self._known or self._clocks != {manager.wall_ahead_ms}:
            return
        left, counted_s = _decay(past_s, fairness)
        interval_ms = fairness.usage_interval_ms + LATE_MS
        window_s = max(interval_ms, self._window_ms) / 1_000
        gap_ms = manager.loop.now_ms - self._known_ms
        self._gap_ms = gap_ms + self._unwritten_ms(self._known_ms, interval_ms)
        self._led_ms = manager.loop.now_ms
        for flow in _flows(state):
            # A restart recomputes what slots cost.
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
    """Returns two values for the time `past_s`: the fraction of usage that still counts after this
    time, and the integral of this fraction over this time.
    """
    if fairness.half_life_ms is None:
        return 1.0, past_s
    half_life_s = fairness.half_life_ms / 1_000
    left = 0.5 ** (past_s / half_life_s)
    return left, (1 - left) * half_life_s / log(2)

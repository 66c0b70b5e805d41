"""Measures the distance of a run from the ideal fluid schedule, and the time that the run takes to
converge.

The error of a flow compares the service that it received in a window of time with its due service.
The due service is the service that the ideal schedule gives the flow in this window, for its real
demand. Windows are needed because slots are indivisible: a share of 6 slots changes in steps of 17
%.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from resource_manager.simulator.ideal import ROOT, IdealTree

TOLERANCE = 0.05
"""The service of a flow counts as fair if it differs from the flow's share by at most this part of
the share.
"""

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage and demand from this moment until the next moment of the series.

    `running` is the cost of each leaf's slots, `demand` is the cost of the leaf's slots and waiting
    requests together, and `capacity` is the total capacity.
    """

    at_s: float
    capacity: float
    running: Mapping[str, float]
    demand: Mapping[str, float]


class Comparison:
    """Compares a run with the ideal schedule: received and due service of each flow, over any
    interval.

    The comparison has all flows of the tree that ever had demand: leaves, and the flows above the
    leaves.
    """

    def __init__(self, tree: IdealTree, usages: Iterable[Usage], end_s: float) -> None:
        """Computes running sums of service. So `received` and `due` cost O(log n).

        Args:
            tree: the flows.
            usages: the series, in order of time.
            end_s: end of the last usage.
        """
        steps = list(usages)
        self._tree = tree
        self._times = [each.at_s for each in steps] + [end_s]
        self._received: dict[str, list[float]] = {}
        self._due: dict[str, list[float]] = {}
        for index, (step, until) in enumerate(zip(steps, self._times[1:], strict=True)):
            lasts = until - step.at_s
            due = tree.shares(step.demand, step.capacity)
            received = self._with_those_above(step.running)
            for flow in due.keys() | received.keys():
                if flow not in self._due:
                    # A flow that appears later has received nothing so far.
                    self._due[flow] = [0.0] * (index + 1)
                    self._received[flow] = [0.0] * (index + 1)
            for flow, sums in self._due.items():
                sums.append(sums[-1] + due.get(flow, 0.0) * lasts)
                mine = self._received[flow]
                mine.append(mine[-1] + received.get(flow, 0.0) * lasts)

    def _with_those_above(self, leaves: Mapping[str, float]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for leaf, amount in leaves.items():
            flow = leaf
            while amount:
                sums[flow] = sums.get(flow, 0.0) + amount
                if flow == ROOT:
                    break
                flow = self._tree.flow(flow).parent
        return sums

    @property
    def flows(self) -> list[str]:
        """Ids of the flows that ever had demand, without the root, sorted."""
        return sorted(self._due.keys() - {ROOT})

    def received(self, flow: str, start_s: float, end_s: float) -> float:
        """Returns the service that a flow received in an interval, in capacity x seconds."""
        return self._between(self._received[flow], start_s, end_s)

    def due(self, flow: str, start_s: float, end_s: float) -> float:
        """Returns the service that the ideal schedule gives the flow in an interval."""
        return self._between(self._due[flow], start_s, end_s)

    def error(self, flow: str, start_s: float, end_s: float) -> float:
        """Returns the relative difference of received and due service; infinite if
        nothing was due.
        """
        due = self.due(flow, start_s, end_s)
        apart = abs(self.received(flow, start_s, end_s) - due)
        if due > 0:
            return apart / due
        return math.inf if apart > 0 else 0.0

    def errors(self, start_s: float, end_s: float) -> dict[str, float]:
        """Returns the error of each flow that was due any service in an interval."""
        return {
            flow: self.error(flow, start_s, end_s)
            for flow in self.flows
            if self.due(flow, start_s, end_s) > 0
        }

    def worst_error(self, start_s: float, end_s: float) -> float:
        """Returns the largest of the errors; 0 if no flow was due any service."""
        return max(self.errors(start_s, end_s).values(), default=0.0)

    def converged_after_s(
        self,
        change_s: float,
        until_s: float,
        *,
        window_s: float = WINDOW_S,
        tolerance: float = TOLERANCE,
    ) -> float | None:
        """Returns the seconds from a change until every flow stays within the tolerance.

        The result is the smallest T with this property: in all windows that begin at or after
        change + T and end at or before `until_s`, every flow is within the tolerance.

        Only windows that begin or end at a change of the run are checked. The error of a window
        between two such windows is at most the larger of their errors. So these windows suffice to
        find T.

        Args:
            change_s: time of the change.
            until_s: end of the interval that is examined.
            window_s: length of the windows.
            tolerance: the largest relative error.

        Returns:
            T. None: there is no window, or the last window is not within the tolerance.
        """
        last = until_s - window_s
        if last < change_s:
            return None
        inside = self._inside(change_s, until_s)
        # The slope of a window's error changes only where an edge of the window meets a change.
        begins = {change_s, last, *inside, *(each - window_s for each in inside)}
        converged = None
        # Search backwards from the end. The first window beyond the tolerance ends the search.
        for begin in sorted((each for each in begins if change_s <= each <= last), reverse=True):
            if self.worst_error(begin, begin + window_s) > tolerance:
                break
            converged = begin - change_s
        return converged

    def _inside(self, start_s: float, end_s: float) -> list[float]:
        first, after = bisect_right(self._times, start_s), bisect_left(self._times, end_s)
        return self._times[first:after]

    def _between(self, sums: Sequence[float], start_s: float, end_s: float) -> float:
        return self._at(sums, end_s) - self._at(sums, start_s)

    def _at(self, sums: Sequence[float], at_s: float) -> float:
        index = bisect_right(self._times, at_s) - 1
        if index < 0:
            return 0.0
        # At the end and later, the sums are complete.
        if index + 1 == len(self._times):
            return sums[-1]
        # Rates are constant between two moments, so sums grow linearly.
        part = (at_s - self._times[index]) / (self._times[index + 1] - self._times[index])
        return sums[index] + part * (sums[index + 1] - sums[index])

"""The ideal weighted fluid schedule: each flow's fair share if capacity were infinitely divisible.

The capacity of a node in the tree is divided among its children with demand, in proportion to their
weights. Capacity that a child cannot use is divided among the other children. The schedule has no
memory: an idle flow gains no credit.

This is generalized processor sharing (Parekh and Gallager, "A Generalized Processor Sharing
Approach to Flow Control in Integrated Services Networks", 1993). The nested form is from Bennett
and Zhang, "Hierarchical Packet Fair Queueing Algorithms", 1996.

All amounts are in the same unit of capacity (threads of capacity, cores or dominant share). Times
are in seconds, and service is in capacity x seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from finegrain.errors import InvalidArgument

ROOT = ""
"""Id of the flow above all others."""


@dataclass(frozen=True, slots=True)
class IdealFlow:
    """A resource group or a job: its parent, weight and limits.

    `minimum` is served first, as far as there is demand. `maximum` is never exceeded.
    """

    id: str
    parent: str = ROOT
    weight: float = 1.0
    minimum: float = 0.0
    maximum: float = math.inf


@dataclass(frozen=True, slots=True)
class Basin:
    """A flow in the water filling of `divide`: it gets at least `lower` and at most `upper`."""

    id: str
    weight: float
    lower: float
    upper: float


class IdealTree:
    """Flows below the root, at any depth. A flow without children is a leaf, and only leaves have
    demand.
    """

    def __init__(self, flows: Iterable[IdealFlow]) -> None:
        """Builds the tree.

        Raises:
            InvalidArgument: a weight is not positive, a parent is unknown, or there is a cycle.
        """
        self._flows = {each.id: each for each in flows}
        self._depth: dict[str, int] = {ROOT: 0}
        for each in self._flows.values():
            if not each.weight > 0:
                raise InvalidArgument(f"weight of {each.id}", str(each.weight), "more than 0")
            self._depth_of(each.id)

    def _depth_of(self, flow_id: str) -> int:
        path: list[str] = []
        while flow_id not in self._depth:
            flow = self._flows.get(flow_id)
            # A path that contains the same flow twice is a cycle.
            if flow is None or flow_id in path:
                expected = "a flow of the tree that is not below itself"
                raise InvalidArgument(f"parent of {path[-1]}", flow_id, expected)
            path.append(flow_id)
            flow_id = flow.parent
        depth = self._depth[flow_id]
        # Go from the flow with a known depth down to the requested flow.
        for each in reversed(path):
            depth += 1
            self._depth[each] = depth
        return depth

    def flow(self, flow_id: str) -> IdealFlow:
        """Returns the flow with this id."""
        return self._flows[flow_id]

    def shares(self, demands: Mapping[str, float], capacity: float) -> dict[str, float]:
        """Returns the share of `capacity` of each flow with demand: leaves, all flows above, and
        the root.

        Cost: O(n log n) for n flows with demand.

        Args:
            demands: the amount that each leaf could use.
            capacity: the capacity to divide.
        """
        below, upper = self._wanted(demands)
        found = {ROOT: min(capacity, upper.get(ROOT, 0.0))}
        # Parents come before children: the share of a child is a part of its parent's share.
        for flow_id in sorted(below, key=self._depth.__getitem__):
            basins = [
                Basin(
                    child,
                    self._flows[child].weight,
                    # A minimum without demand would take capacity that nothing uses.
                    min(self._flows[child].minimum, upper[child]),
                    upper[child],
                )
                for child in below[flow_id]
            ]
            found |= divide(found[flow_id], basins)
        return found

    def _wanted(
        self, demands: Mapping[str, float]
    ) -> tuple[dict[str, list[str]], dict[str, float]]:
        """Returns two things for each flow: its children with demand, and the largest amount that
        the flow can use.
        """
        below: dict[str, list[str]] = {}
        upper: dict[str, float] = {}
        leaves = {each: demand for each, demand in demands.items() if demand > 0}
        layers: dict[int, list[str]] = {}
        for each in leaves:
            layers.setdefault(self._depth[each], []).append(each)
        # Begin with the deepest layer. The children of a flow are then complete before the flow.
        for depth in range(max(layers, default=0), 0, -1):
            for each in layers.get(depth, ()):
                flow = self._flows[each]
                upper[each] = min(flow.maximum, upper.get(each, 0.0) + leaves.get(each, 0.0))
                # A parent is added to the layer above when its first child with demand is found.
                if flow.parent not in below:
                    below[flow.parent] = []
                    layers.setdefault(depth - 1, []).append(flow.parent)
                below[flow.parent].append(each)
                upper[flow.parent] = upper.get(flow.parent, 0.0) + upper[each]
        return below, upper


def divide(capacity: float, basins: Sequence[Basin]) -> dict[str, float]:
    """Divides capacity by water filling: each flow gets weight x level, but at least `lower` and at
    most `upper`.

    The level is chosen so that all of `capacity` is used. If this is impossible, every flow has its
    `upper`. If the lower bounds alone exceed the capacity, each flow gets the same fraction of its
    lower bound.

    Example: A (weight 1, upper 2), B (weight 1) and C (weight 2) share 10. The level is 2.67: A has
    2, B 2.67 and C 5.33.
    """
    # Sums of many floats must not depend on their order, so `fsum` rounds only once.
    lowest = math.fsum(each.lower for each in basins)
    if lowest > capacity:
        return {each.id: each.lower * capacity / lowest for each in basins}
    if math.fsum(each.upper for each in basins) <= capacity:
        return {each.id: each.upper for each in basins}
    level = _level(capacity - lowest, basins)
    return {each.id: max(each.lower, min(each.upper, each.weight * level)) for each in basins}


def _level(spare: float, basins: Sequence[Basin]) -> float:
    """Returns the level at which the flows use `spare` in addition to all lower bounds.

    Iterates over the levels at which the slope changes. The slope is the sum of the weights of all
    basins that are filling: a basin starts to fill at lower / weight and is full at upper / weight.
    In the example of `divide` the slope is 4 up to level 2, which takes 8 of the 10. Then A is full
    and the slope is 3, so the level is 2 + 2 / 3.
    """
    turns = sorted(
        turn
        for each in basins
        if each.upper > each.lower
        for turn in (
            (each.lower / each.weight, each.weight),
            (each.upper / each.weight, -each.weight),
        )
    )
    level = slope = 0.0
    for at, change in turns:
        # The level lies before this change of slope.
        if slope > 0 and spare <= slope * (at - level):
            return level + spare / slope
        spare -= max(0.0, slope) * (at - level)
        level = at
        slope += change
    return level


def _lasting(work: float, share: float) -> float:
    """Returns how long `work` takes with this share."""
    return work / share if share > 0 else math.inf


@dataclass(frozen=True, slots=True)
class FluidJob:
    """Work that arrives at a leaf. `work` is in capacity x seconds; the job uses at most `width` at
    a time.
    """

    flow: str
    arrives_s: float
    work: float
    width: float = math.inf


@dataclass(frozen=True, slots=True)
class FluidSegment:
    """An interval in which no share changes. It has the share of each flow."""

    start_s: float
    end_s: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FluidSchedule:
    """The whole schedule: its segments, and the time when each job is done."""

    segments: tuple[FluidSegment, ...]
    ends_s: Mapping[str, float]

    def share_at(self, flow_id: str, at_s: float) -> float:
        """Returns the share of a flow at a moment; 0 outside of the schedule."""
        for each in self.segments:
            if each.start_s <= at_s < each.end_s:
                return each.shares.get(flow_id, 0.0)
        return 0.0


def fluid_schedule(tree: IdealTree, jobs: Iterable[FluidJob], capacity: float) -> FluidSchedule:
    """Returns a schedule of the jobs as fluids, from the first arrival until the last job is
    done.

    There is one job per leaf. Unlike a real job, a fluid job can use its width until it is done. A
    fluid job has no last threads that leave capacity idle.

    Raises:
        InvalidArgument: the capacity is not positive, or a job never ends because a maximum is 0.
    """
    if not capacity > 0:
        raise InvalidArgument("capacity", str(capacity), "more than 0")
    # Sort the latest arrival first. Then pop() returns the next arrival.
    coming = sorted(jobs, key=lambda each: (-each.arrives_s, each.flow))
    widths = {each.flow: each.width for each in coming}
    left: dict[str, float] = {}
    ends: dict[str, float] = {}
    segments: list[FluidSegment] = []
    now = coming[-1].arrives_s if coming else 0.0
    while coming or left:
        while coming and coming[-1].arrives_s <= now:
            each = coming.pop()
            left[each.flow] = each.work
        shares = tree.shares({flow: widths[flow] for flow in left}, capacity)
        dry = [(_lasting(work, shares[flow]), flow) for flow, work in left.items()]
        lasts = min(dry)[0] if dry else math.inf
        until_next = coming[-1].arrives_s - now if coming else math.inf
        lasts = min(lasts, until_next)
        # Work without a share would never end.
        if math.isinf(lasts):
            raise InvalidArgument("maximum", 0, "more than 0 for every flow with work")
        # Use the exact time of the arrival, because `now + lasts` could differ by a rounding error.
        end = coming[-1].arrives_s if lasts == until_next else now + lasts
        if left:
            segments.append(FluidSegment(now, end, shares))
        for duration, flow in dry:
            # The ends of jobs that should end together can differ by rounding errors of floats. So
            # a job also ends here if its end differs from the segment's end by at most a relative
            # 10^-12.
            if duration <= lasts * (1 + 1e-12):
                del left[flow]
                ends[flow] = end
            else:
                left[flow] -= shares[flow] * lasts
        now = end
    return FluidSchedule(tuple(segments), ends)

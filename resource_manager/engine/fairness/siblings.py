"""Flows, and the order of the children of one group.

A group keeps two kinetic tournaments over its active children. Children below their guaranteed
minimum are in one of them, by the share of the minimum that they have; they come first. All others
are in the other one, by virtual time (see `flows.py`). A child that changes is only marked *stale*;
the tournaments are updated when the order is asked for next.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from finegrain.resources import Amounts
from resource_manager.engine.fairness.clock import Clock, Rescaling
from resource_manager.engine.fairness.quotas import fulfilment
from resource_manager.engine.fairness.tournament import Entry, Tournament

SortKey = tuple[bool, float, tuple[int, str]]
"""What siblings are compared by, the lesser first: whether the minimum is reached; the reached
share of the minimum or else the virtual time; the arrival number since which the flow waits, then
its id.
"""


@dataclass(slots=True, eq=False)
class Flow(Entry):
    """A group or a job.

    Service is kept *scaled*: multiplied by `Clock.scale` as of the moment when it was received.
    Scaled amounts compare with each other at one moment; `FlowTree.usage` returns real ones.

    Attributes:
        id: "group/NAME", "job/ID" or "root".
        name: the group's name, or the job's id.
        parent: None: it is the root.
        children: groups and jobs below a group; None: it is a job.
        weight: its share relative to its siblings'.
        maximum: limit of what its slots have booked, by dimension as in `quotas.counted`.
        minimum: guaranteed amounts, in the same form.
        service: scaled; what it received until `since`.
        raised: scaled; what was added when it began to wait.
        since: warped time up to which `service` is counted.
        rate: cost per second of all slots of its subtree that accrue.
        used: what all its slots have booked, from placement until nothing of them is left.
        running: number of these slots.
        waiting: pending requests of its subtree, including slots that wait to grow.
        active: of a job: 1 if it has an active queue, else 0. Of a group: number of active children
            that are not paused.
        moves: rises whenever one of the counts above changes.
        served_ms: when a slot of it was placed or reused last; None: not since the start.
        stale: it changed after its parent's tournaments were updated last.
        below_minimum: it is in the tournament of children below their minimum.
        paused: it is in no tournament, whatever is active in it.
        changed: its usage has changed since it was stored last.
    """

    id: str = ""
    name: str = ""
    parent: Flow | None = None
    children: Siblings | None = None
    weight: float = 1.0
    maximum: Amounts = field(default_factory=dict)
    minimum: Amounts = field(default_factory=dict)
    service: float = 0.0
    raised: float = 0.0
    since: float = 0.0
    rate: float = 0.0
    used: dict[str, int] = field(default_factory=dict)
    running: int = 0
    waiting: int = 0
    active: int = 0
    moves: int = 0
    served_ms: int | None = None
    # Kept for the tournaments of the parent, and for storing usage.
    stale: bool = False
    below_minimum: bool = False
    paused: bool = False
    changed: bool = False

    def __repr__(self) -> str:
        return f"<{self.id}>"

    def ancestors(self) -> Iterator[Flow]:
        """Yields the groups that contain it, the nearest first, the root last."""
        flow = self.parent
        while flow is not None:
            yield flow
            flow = flow.parent

    def service_at(self, tau: float) -> float:
        """Returns the usage until a moment, scaled."""
        return self.service + self.rate * (tau - self.since)

    def settle(self, tau: float) -> None:
        """Adds what accrued until now to `service`; call it before the rate changes."""
        self.service, self.since = self.service_at(tau), tau


@dataclass(frozen=True, slots=True)
class FlowUsage:
    """What a flow has used, as of one moment, in cost times seconds."""

    service: float  # received, decayed
    raised: float  # added when it began to wait, decayed
    lookahead: float  # what the slots that run now add
    weight: float

    @property
    def total(self) -> float:
        """Usage: service plus what was added when the flow began to wait."""
        return self.service + self.raised

    @property
    def key(self) -> float:
        """Virtual time: what the flow is compared with its siblings by."""
        return (self.service + self.raised + self.lookahead) / self.weight


class Siblings:
    """The children of a group, and which of them is served next.

    Attributes:
        by_id: all children.
        fair: active children that have reached their minimum, by virtual time.
        below_minimum: active children below their minimum, by the share of it that they have.
        last_served: scaled; usage per weight of the child that was served last, as of then.
    """

    __slots__ = (
        "_clock",
        "_lookahead_s",
        "_stale",
        "below_minimum",
        "by_id",
        "fair",
        "last_served",
    )

    def __init__(self, clock: Clock, lookahead_s: float) -> None:
        self.by_id: dict[str, Flow] = {}
        self.fair: Tournament[Flow] = Tournament()
        self.below_minimum: Tournament[Flow] = Tournament()
        self.last_served = 0.0
        self._clock = clock
        self._lookahead_s = lookahead_s
        self._stale: list[Flow] = []

    def first(self) -> Flow | None:
        """Returns the child that is served next; None: none is active."""
        if self._stale:
            self.freshen()
        tournament = self.below_minimum if self.below_minimum.count else self.fair
        return tournament.least(self._clock.tau)

    def second(self) -> Flow | None:
        """Returns the child that would be next if the first were not there; None: there is none."""
        if self._stale:
            self.freshen()
        tau = self._clock.tau
        if not self.below_minimum.count:
            return self.fair.runner_up(tau)
        # If only the first is below its minimum, the next one is the best of all others.
        return self.below_minimum.runner_up(tau) or self.fair.least(tau)

    def least(self) -> Flow | None:
        """Returns the child with the least virtual time of those that have reached their
        minimum.
        """
        if self._stale:
            self.freshen()
        # Children below their minimum are ordered by shares, which are no level of usage.
        return self.fair.least(self._clock.tau) if self.fair.count else None

    def changed(self, flow: Flow) -> None:
        """Marks a flow as stale, if it is in a tournament or belongs into one."""
        # An inactive flow without a seat is in no tournament, before and after.
        if not flow.stale and (flow.active or flow.seat >= 0):
            flow.stale = True
            self._stale.append(flow)

    def freshen(self) -> None:
        """Updates the tournaments with all flows that have changed."""
        tau = self._clock.tau
        for flow in self._stale:
            flow.stale = False
            seated = flow.seat >= 0
            reached = fulfilment(flow.used, flow.minimum) if flow.minimum else inf
            below_minimum = reached < 1
            active = flow.active and not flow.paused
            # Leaves its tournament if it is inactive now or has to be in the other one.
            if seated and (not active or below_minimum != flow.below_minimum):
                (self.below_minimum if flow.below_minimum else self.fair).unseat(flow, tau)
                seated = False
            if not active:
                continue
            if below_minimum:
                # The share changes with bookings only, not with time: a level line.
                flow.level, flow.slope = reached, 0.0
            else:
                self._draw(flow)
            flow.below_minimum = below_minimum
            tournament = self.below_minimum if below_minimum else self.fair
            if seated:
                tournament.moved(flow, tau)
            else:
                tournament.seat(flow, tau)
        self._stale.clear()

    def rescale(self, rescaling: Rescaling) -> None:
        """Applies a move of the clock's landmark; the flows themselves are rescaled before."""
        for flow in self.by_id.values():
            # Below the minimum, lines are shares of amounts, which time does not scale.
            if flow.seat >= 0 and not flow.below_minimum:
                self._draw(flow)
        self.last_served *= rescaling.factor
        # Both are judged again, since their times are those of the old landmark.
        self.fair.rebuild(self._clock.tau)
        self.below_minimum.rebuild(self._clock.tau)

    def _draw(self, flow: Flow) -> None:
        """Sets the line `level + slope * tau` of a flow's virtual time.

        The scaled lookahead is `lookahead * rate * g`, and g = 1 + bend * tau (`clock.py`), so it
        is a straight line in tau, too.
        """
        rate, lookahead = flow.rate, self._lookahead_s
        level = flow.service - rate * flow.since + flow.raised + lookahead * rate
        flow.level = level / flow.weight
        flow.slope = rate * (1.0 + lookahead * self._clock.bend) / flow.weight

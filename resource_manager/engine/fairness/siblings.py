"""Defines flows, and orders the children of one group.

A group has two kinetic tournaments over its active children. The first tournament contains the
children below their guaranteed minimum, ordered by the reached part of the minimum. These children
come before all other children. The second tournament contains all other groups, ordered by virtual
time (see `flows.py`). If a child changes, it is only marked as *stale*. The next read of the order
updates the tournaments.

Jobs have a tournament for each priority, also ordered by virtual time. Only the active jobs with
the highest priority take part in the order. All other jobs of the group are skipped until no job
with a higher priority is active. So a priority changes which job of a group is served, but not how
often the group or another group is served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from finegrain.resources import Amounts
from resource_manager.engine.fairness.clock import Clock, Rescaling
from resource_manager.engine.fairness.quotas import fulfilment
from resource_manager.engine.fairness.tournament import Entry, Tournament

SortKey = tuple[bool, int, float, tuple[int, str]]
"""The key that orders siblings. The flow with the lowest key comes first. The key has four parts:

1. True if the minimum is reached.
2. For a job, the negative of its priority. For a group, the negative of the highest priority among
   the active sibling jobs.
3. The virtual time if the minimum is reached, otherwise the reached part of the minimum.
4. The tie breaker of the flow.
"""


@dataclass(slots=True, eq=False)
class Flow(Entry):
    """A group or a job.

    Usage is stored *scaled*: each amount was multiplied by the value of `Clock.scale` at the time
    when the flow received the amount (see `clock.py`). Scaled amounts can only be compared with
    each other. `FlowTree.usage` returns amounts that are not scaled.

    Attributes:
        id: the id of the flow: "group/NAME", "job/ID" or "root".
        name: the name of the group, or the id of the job.
        parent: the flow of the group that contains this flow. None if this flow is the root.
        children: the groups and jobs in a group. None if this flow is a job.
        weight: the usage to which the flow is entitled, relative to its siblings.
        maximum: the largest amounts that the flow's slots may book, in the form of
            `quotas.counted`.
        minimum: the guaranteed amounts, in the form of `quotas.counted`.
        service: the service up to `since`, scaled.
        raised: the usage that was added to the flow when it began to wait (its raises, see
            `flows.py`), summed and scaled.
        since: the time up to which `service` is counted, in warped time (see `clock.py`).
        rate: the cost per second of all slots in the flow's subtree that accrue usage.
        used: the amounts that all slots in the flow's subtree have booked, from placement to
            deletion. For groups, the amounts are in the form of `quotas.counted`.
        running: the number of slots in the flow's subtree.
        waiting: the number of pending requests in the flow's subtree, including slots that wait to
            grow.
        active: for a job, the number is 1 if the job has an active queue, and 0 otherwise. For a
            group, it is the number of active children that are not paused.
        moves: a counter that increases whenever `rate`, `used`, `running`, `waiting` or `active`
            changes.
        served_ms: the time at which one of the flow's slots was last placed or reused. None if no
            slot was placed or reused since this process started.
        stale: True if the flow has changed after the last update of its parent's tournaments.
        below_minimum: True if the flow is in the tournament of children below their minimum.
        paused: True if the flow must be in no tournament, even if its children are active.
        changed: True if the flow's usage has changed since it was last stored.
        priority: the priority of a job within its group. Jobs with the highest priority come first.
            It is 0 for groups.
        owner: the identity that owns the job.
        user: the flow of the owner (see `users.py`). None if the owner has no maximum.
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
    # The next fields are for the tournaments of the parent, and for the storing of usage.
    stale: bool = False
    below_minimum: bool = False
    paused: bool = False
    changed: bool = False
    # The next fields are only for jobs.
    priority: int = 0
    owner: str = ""
    user: Flow | None = None

    def __repr__(self) -> str:
        return f"<{self.id}>"

    def ancestors(self) -> Iterator[Flow]:
        """Yields the groups that contain the flow, from its parent to the root."""
        flow = self.parent
        while flow is not None:
            yield flow
            flow = flow.parent

    def service_at(self, tau: float) -> float:
        """Returns the scaled service of the flow up to a warped time."""
        return self.service + self.rate * (tau - self.since)

    def settle(self, tau: float) -> None:
        """Adds the usage up to `tau` to `service`. This method must be called before each change of
        the rate.
        """
        self.service, self.since = self.service_at(tau), tau


@dataclass(frozen=True, slots=True)
class FlowUsage:
    """The usage of a flow at one time, in cost times seconds."""

    service: float  # decayed
    raised: float  # the sum of the raises, decayed
    lookahead: float  # the expected further usage of the running slots
    weight: float

    @property
    def total(self) -> float:
        """The usage: service plus raises."""
        return self.service + self.raised

    @property
    def key(self) -> float:
        """The virtual time, by which the flow is compared with its siblings."""
        return (self.service + self.raised + self.lookahead) / self.weight


class Siblings:
    """The children of a group, in the order in which they are served.

    Attributes:
        by_id: all children, by id.
        fair: the active groups that have reached their minimum, by virtual time.
        levels: for each priority, the active jobs with this priority, by virtual time.
        below_minimum: the active children below their minimum, by the reached part of the minimum.
        last_served: the usage per weight (scaled) of the child that was served last, at the time
            when this child was served.
    """

    __slots__ = (
        "_clock",
        "_lookahead_s",
        "_stale",
        "below_minimum",
        "by_id",
        "fair",
        "last_served",
        "levels",
    )

    def __init__(self, clock: Clock, lookahead_s: float) -> None:
        self.by_id: dict[str, Flow] = {}
        self.fair: Tournament[Flow] = Tournament()
        self.below_minimum: Tournament[Flow] = Tournament()
        self.levels: dict[int, Tournament[Flow]] = {0: Tournament()}
        self.last_served = 0.0
        self._clock = clock
        self._lookahead_s = lookahead_s
        self._stale: list[Flow] = []

    def first(self) -> Flow | None:
        """Returns the child that is served next. The result is None if no child is active."""
        if self._stale:
            self.freshen()
        tau = self._clock.tau
        if self.below_minimum.count:
            return self.below_minimum.least(tau)
        top = self._top()
        if top is None or not self.fair.count:
            return (top if top is not None else self.fair).least(tau)
        return min(_present(self.fair.least(tau), top.least(tau)), key=_order_at(tau))

    def second(self) -> Flow | None:
        """Returns the child that comes second in order. The result is None if fewer than two
        children are active.
        """
        if self._stale:
            self.freshen()
        tau, top = self._clock.tau, self._top()
        if self.below_minimum.count > 1:
            return self.below_minimum.runner_up(tau)
        # If only one child is below its minimum, the second child in order is the first of all
        # other children.
        at = 0 if self.below_minimum.count else 1
        if not self.fair.count or top is None:
            only = top if top is not None else self.fair
            return only.runner_up(tau) if at else only.least(tau)
        found = [self.fair.least(tau), self.fair.runner_up(tau), top.least(tau), top.runner_up(tau)]
        return sorted(_present(*found), key=_order_at(tau))[at]

    def least(self, flow: Flow) -> Flow | None:
        """Returns the child with the lowest virtual time among the children that have reached their
        minimum. Of the jobs, only jobs with one priority count. If `flow` is a job and jobs with
        its priority are active, this priority counts. Otherwise the highest priority of an active
        job counts.
        """
        if self._stale:
            self.freshen()
        tau = self._clock.tau
        own = self.levels.get(flow.priority) if flow.children is None else None
        level = own if own is not None and (own.count or len(self.levels) == 1) else self._top()
        # Children below their minimum are left out, because they are not ordered by usage.
        groups = self.fair
        if level is None or not groups.count:
            level = groups if level is None else level
            return level.least(tau) if level.count else None
        return min(_present(groups.least(tau), level.least(tau)), key=_order_at(tau))

    def level_of(self, flow: Flow) -> int:
        """Returns the second part of the sort key of a child; see `SortKey`."""
        if flow.children is None:
            return -flow.priority
        # All jobs of the group have the priority 0.
        if len(self.levels) == 1:
            return 0
        if self._stale:
            self.freshen()
        return -max((each for each, among in self.levels.items() if among.count), default=0)

    def has_level_of(self, flow: Flow) -> bool:
        """Returns False if no active job has the priority of this child any more, while active jobs
        with other priorities exist.
        """
        if flow.children is not None or len(self.levels) < 2:
            return True
        if self._stale:
            self.freshen()
        return self.levels[flow.priority].count > 0 or self._top() is None

    def seated(self) -> int:
        """Returns the number of children in tournaments."""
        levels = sum(among.count for among in self.levels.values())
        return self.fair.count + self.below_minimum.count + levels

    def changed(self, flow: Flow) -> None:
        """Marks a flow as stale if the flow is in a tournament, or must be added to a
        tournament.
        """
        # An inactive flow without a seat is in no tournament, and must not be added to one.
        if not flow.stale and (flow.active or flow.seat >= 0):
            flow.stale = True
            self._stale.append(flow)

    def freshen(self) -> None:
        """Updates the tournaments with all flows that have changed."""
        tau = self._clock.tau
        for flow in self._stale:
            flow.stale = False
            seated = flow.seat >= 0
            reached = fulfilment(flow.used, flow.running, flow.minimum) if flow.minimum else inf
            below_minimum = reached < 1
            active = flow.active and not flow.paused
            others = self.fair
            if flow.children is None:
                level = self.levels.get(flow.priority)
                others = level if level is not None else self._new_level(flow.priority)
            # The flow leaves its tournament if it is inactive now, or now belongs to another
            # tournament.
            if seated and (not active or below_minimum != flow.below_minimum):
                (self.below_minimum if flow.below_minimum else others).unseat(flow, tau)
                seated = False
            if not active:
                continue
            if below_minimum:
                # The reached part does not change as time passes, so the slope is 0.
                flow.level, flow.slope = reached, 0.0
            else:
                self._draw(flow)
            flow.below_minimum = below_minimum
            tournament = self.below_minimum if below_minimum else others
            if seated:
                tournament.moved(flow, tau)
            else:
                tournament.seat(flow, tau)
        self._stale.clear()

    def rescale(self, rescaling: Rescaling) -> None:
        """Applies a move of the landmark, the time from which the clock counts (see `clock.py`).

        The caller has already rescaled the flows.
        """
        for flow in self.by_id.values():
            # Flows below their minimum are compared by a ratio of amounts, which is not scaled.
            if flow.seat >= 0 and not flow.below_minimum:
                self._draw(flow)
        self.last_served *= rescaling.factor
        # All tournaments are built again, because the times in them count from the old landmark.
        for tournament in (self.fair, self.below_minimum, *self.levels.values()):
            tournament.rebuild(self._clock.tau)

    def _new_level(self, priority: int) -> Tournament[Flow]:
        level = self.levels[priority] = Tournament()
        return level

    def _top(self) -> Tournament[Flow] | None:
        """Returns the tournament of the active jobs with the highest priority. The result is None
        if no job is active.
        """
        levels = self.levels
        if len(levels) == 1:
            (level,) = levels.values()
            return level if level.count else None
        highest = max((each for each, among in levels.items() if among.count), default=None)
        return levels[highest] if highest is not None else None

    def _draw(self, flow: Flow) -> None:
        """Sets the line `level + slope * tau` of a flow's virtual time.

        The scaled lookahead is `lookahead * rate * g`, with g = 1 + bend * tau (`clock.py`). So the
        lookahead is a straight line in tau, too.
        """
        rate, lookahead = flow.rate, self._lookahead_s
        level = flow.service - rate * flow.since + flow.raised + lookahead * rate
        flow.level = level / flow.weight
        flow.slope = rate * (1.0 + lookahead * self._clock.bend) / flow.weight


def _present(*flows: Flow | None) -> list[Flow]:
    return [flow for flow in flows if flow is not None]


def _order_at(tau: float) -> Callable[[Flow], tuple[float, tuple[int, str]]]:
    """Returns the function that orders flows of different tournaments."""
    return lambda flow: (flow.at(tau), flow.tie)

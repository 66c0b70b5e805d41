"""Flows, what they have received, and which of those below one group comes first.

Decides by what siblings are compared, the lines that their keys are (see `flows.py`). A group keeps
two kinetic tournaments over its children that may have a turn: of those who lack some of their
minimum, who come first, by how far it is reached, and of all others by key. Whoever has changed is
*stale* until somebody asks who is first.

Refuses to know what changes a flow, and when.
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
"""By what siblings are compared, the lesser first: whether the minimum is reached, how far it is or
else the key, who has waited longer.
"""


@dataclass(slots=True, eq=False)
class Flow(Entry):
    """A group or a job. Amounts of service that are *scaled* are compared at one moment only; see
    `FlowTree.usage` for what they are now.

    Attributes:
        id: "group/NAME", "job/ID" or "root".
        name: the group's name, or the job's id.
        parent: None: it is the root.
        children: of a group, groups and jobs; None: it is a job.
        weight: its share is in proportion to it.
        maximum: what its slots may have at most, by dimension as `limits.counted`.
        minimum: what they are to have at least.
        service: scaled: received until `since` (warped).
        raised: scaled: what was added as it began to wait.
        rate: cost of all slots of its subtree that accrue.
        used: what all its slots have booked, from placing until nothing of them is left.
        running: how many those are.
        waiting: requests of its subtree that wait, and slots that wait to grow.
        active: something of it may have a turn; of a group: so many children.
        served_ms: when something of it was placed or handed on last; None: not in this incarnation.
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
    served_ms: int | None = None
    # What its parent's tournaments know of it.
    stale: bool = False
    below_minimum: bool = False  # it is in that of those who lack their minimum
    paused: bool = False  # it takes part in neither, whatever is active in it
    changed: bool = False  # since its tally was stored last

    def __repr__(self) -> str:
        return f"<{self.id}>"

    def ancestors(self) -> Iterator[Flow]:
        """The groups it is in, the nearest first, the root last."""
        flow = self.parent
        while flow is not None:
            yield flow
            flow = flow.parent

    def service_at(self, tau: float) -> float:
        """Scaled: received until then."""
        return self.service + self.rate * (tau - self.since)

    def settle(self, tau: float) -> None:
        """Notes what it has received by now: its rate may change."""
        self.service, self.since = self.service_at(tau), tau


@dataclass(frozen=True, slots=True)
class FlowUsage:
    """What a flow has received, as of one moment, in cost times seconds."""

    service: float  # received, decayed
    raised: float  # added as it began to wait, decayed
    lookahead: float  # what its present rate adds
    weight: float

    @property
    def total(self) -> float:
        """What counts as received."""
        return self.service + self.raised

    @property
    def key(self) -> float:
        """What it is compared by with its siblings."""
        return (self.service + self.raised + self.lookahead) / self.weight


class Siblings:
    """The children of a group.

    Attributes:
        by_id: all of them.
        fair: those that may have a turn and have their minimum, by key.
        below_minimum: those that may have a turn and lack some of their minimum, by how far it is
            reached.
        last_served: scaled: tally per weight of whom was served last, then.
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
        """Who is to be served next; None: nobody has a turn."""
        if self._stale:
            self.freshen()
        tournament = self.below_minimum if self.below_minimum.count else self.fair
        return tournament.least(self._clock.tau)

    def second(self) -> Flow | None:
        """Who would be next without the first."""
        if self._stale:
            self.freshen()
        tau = self._clock.tau
        if not self.below_minimum.count:
            return self.fair.runner_up(tau)
        return self.below_minimum.runner_up(tau) or self.fair.least(tau)

    def least(self) -> Flow | None:
        """Who has the least key of those who may have a turn and have their minimum."""
        if self._stale:
            self.freshen()
        return self.fair.least(self._clock.tau) if self.fair.count else None

    def changed(self, flow: Flow) -> None:
        """What the tournaments know of a flow is to be looked at."""
        if not flow.stale and (flow.active or flow.seat >= 0):
            flow.stale = True
            self._stale.append(flow)

    def freshen(self) -> None:
        """Tells the tournaments what has changed."""
        tau = self._clock.tau
        for flow in self._stale:
            flow.stale = False
            seated = flow.seat >= 0
            reached = fulfilment(flow.used, flow.minimum) if flow.minimum else inf
            below_minimum = reached < 1
            active = flow.active and not flow.paused
            if seated and (not active or below_minimum != flow.below_minimum):
                (self.below_minimum if flow.below_minimum else self.fair).unseat(flow, tau)
                seated = False
            if not active:
                continue
            if below_minimum:
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
        """The landmark was moved, and what the flows have received was scaled to it."""
        for flow in self.by_id.values():
            if flow.seat >= 0 and not flow.below_minimum:
                self._draw(flow)
        self.last_served *= rescaling.factor
        self.fair.rebuild(self._clock.tau)
        self.below_minimum.rebuild(self._clock.tau)

    def _draw(self, flow: Flow) -> None:
        """The key of a flow as a line."""
        rate, lookahead = flow.rate, self._lookahead_s
        level = flow.service - rate * flow.since + flow.raised + lookahead * rate
        flow.level = level / flow.weight
        flow.slope = rate * (1.0 + lookahead * self._clock.bend) / flow.weight

"""Plans queued requests and gangs on pending executors, and chooses new executors for the remaining
requests.

The input and the output are numbers, and equal input gives equal output. Requests that the previous
plan put on a pending executor stay on this executor. Gangs are planned first, because they need the
most capacity. Then new executors are chosen for the remaining requests (`cover.py`). If limits
allow too few new executors, all requests are planned again in order of arrival, so that the oldest
requests are served.

Example: the queue has 10 requests of 2 cpus. One pending executor has 8 cpus, so 4 requests are
planned on it, and 6 requests remain. There are two offers: executors with 16 cpus that cost 16, and
executors with 4 cpus that cost 4. Three executors with 4 cpus cost least (12), so the plan requests
three of them. If only 8 more cpus were allowed, the plan would request two of these executors, and
the last 2 requests would not be planned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.placement.elastic import Capacity
from resource_manager.engine.planning.cover import cover
from resource_manager.engine.planning.draft import Draft, Supply
from resource_manager.engine.planning.gangs import GangDemand, GangPlanner
from resource_manager.engine.planning.offers import Cover
from resource_manager.engine.planning.packing import Bin, Counts, Demand, Entry
from resource_manager.engine.planning.steps import Steps, finish

_ATTEMPTS_MAX = 8
"""If limits do not allow enough executors, the choice is repeated for fewer requests, at most this
many times.
"""

_LEFT_PART = 20
"""A choice of executors is accepted if it leaves at most one request for every 20 requests that it
serves. The requests that are left are planned afterwards, before any later requests.
"""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The input of a plan.

    Attributes:
        demands: the amounts that one request of each kind needs.
        queue: the queued requests, as (kind, number) in order of arrival.
        supplies: the kinds of executors that can be requested.
        pending: the executors that were requested and have not registered yet, by name. The oldest
            executor comes first.
        gangs: the queued gangs, in order of arrival.
        hosts: the free capacity of registered executors, by name. Only gangs are planned on these
            executors.
        limits: the largest amounts that all new executors together can have, by dimension.
        kept: the requests that the previous plan put on each pending executor.
    """

    demands: Sequence[Demand]
    queue: Sequence[Entry]
    supplies: Sequence[Supply]
    pending: Mapping[str, Capacity] = field(default_factory=dict)
    gangs: Sequence[GangDemand] = ()
    hosts: Mapping[str, Capacity] = field(default_factory=dict)
    limits: Amounts = field(default_factory=dict)
    kept: Mapping[str, Counts] = field(default_factory=dict)


@dataclass(slots=True)
class New:
    """An executor to request: the index of its supply, and the requests that it will serve."""

    supply: int
    content: Counts


@dataclass(slots=True)
class Plan:
    """The result of planning.

    Attributes:
        pending: the number of requests of each kind that are planned on each pending executor.
        new: the executors to request.
        left: the number of requests of each kind that are not planned on any executor.
        gangs: the indexes of the planned gangs in `Backlog.gangs`.
        counted_on: the registered executors on which gangs are planned.
    """

    pending: dict[str, Counts] = field(default_factory=dict)
    new: list[New] = field(default_factory=list)
    left: Counts = field(default_factory=dict)
    gangs: list[int] = field(default_factory=list)
    counted_on: set[str] = field(default_factory=set)


def make_plan(backlog: Backlog) -> Plan:
    """Makes a plan for a backlog."""
    return finish(plan_in_steps(backlog))


def plan_in_steps(backlog: Backlog) -> Steps[Plan]:
    """Makes a plan for a backlog. The computation can be paused (see `steps.py`)."""
    # Let the caller pause before the plan starts. The start takes as long as one cycle is allowed
    # to spend on planning, and the caller possibly has just spent this time on making the backlog.
    yield 2 * len(backlog.demands)
    planning = _Planning(backlog)
    yield 2 * len(backlog.demands)
    # Without pending executors and gangs, the previous plan has no places to keep.
    if backlog.pending or backlog.gangs:
        plan = yield from planning.keeping()
        if plan is not None:
            return plan
        # The failed attempt has changed its draft, so a new draft is needed.
        planning = _Planning(backlog)
        yield 2 * len(backlog.demands)
    return (yield from planning.from_scratch())


class _Planning:
    """One attempt at a plan."""

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._draft = Draft(
            backlog.demands,
            backlog.supplies,
            pending=backlog.pending,
            hosts=backlog.hosts,
            limits=backlog.limits,
        )
        self._gangs = GangPlanner(self._draft, backlog.demands)
        self._planned: list[int] = []
        self._left: Counts = {}

    def keeping(self) -> Steps[Plan | None]:
        """Makes a plan in which requests stay where the previous plan put them. Returns None if a
        request is not planned only because of limits.
        """
        self._gangs.keep(self._backlog.gangs, self._backlog.kept)
        for number in range(len(self._backlog.gangs)):
            yield from self._plan_gang(number)
        rest = yield from self._keep()
        rest = yield from self._draft.fill(self._open_bins(), rest)
        found = yield from cover(_counts(rest), self._draft.offers, self._draft.allowance)
        # `never` includes requests that would fit only on offers that limits exclude.
        if found.left or self._could_be_served(found.never):
            return None
        yield from self._draft.request(found)
        self._left = found.never
        return self._plan()

    def from_scratch(self) -> Steps[Plan]:
        """Plans all requests and gangs in order of arrival."""
        draft, queue, rest, at = self._draft, self._backlog.queue, list[Entry](), 0
        for number, gang in enumerate(self._backlog.gangs):
            # Plan each gang at its position in the queue, after the requests that arrived earlier.
            rest += yield from draft.fill(self._open_bins(), queue[at : gang.before])
            at = max(at, gang.before)
            yield from self._plan_gang(number)
        rest += yield from draft.fill(self._open_bins(), queue[at:])
        # Executors that were requested for later gangs possibly have room for earlier requests.
        if draft.opened:
            rest = yield from draft.fill(self._open_bins(), rest)
        yield from self._request_for(rest)
        return self._plan()

    def _keep(self) -> Steps[list[Entry]]:
        """Puts requests on the executors where the previous plan put them, and returns the
        remaining requests. Of equal requests, the oldest keep their places.
        """
        wanted = _counts(self._backlog.queue)
        for name, content in self._backlog.kept.items():
            if (into := self._draft.pending.get(name)) is not None:
                for kind, count in content.items():
                    if most := min(count, wanted.get(kind, 0)):
                        wanted[kind] -= self._draft.add(into, kind, most)
                yield len(content)
        rest = []
        # Iterate from the end, because the latest of several equal requests are those without a
        # place.
        for kind, count in reversed(self._backlog.queue):
            here = min(count, wanted[kind])
            wanted[kind] -= here
            rest.append((kind, here))
        rest.reverse()
        return rest

    def _plan_gang(self, number: int) -> Steps[None]:
        if (yield from self._gangs.plan(self._backlog.gangs[number])):
            self._planned.append(number)

    def _request_for(self, queue: list[Entry]) -> Steps[None]:
        """Requests executors for the oldest requests, as far as limits allow. Afterwards requests
        executors for later requests, as far as the remaining limits allow.
        """
        draft = self._draft
        while queue:
            first = queue
            for _ in range(_ATTEMPTS_MAX):
                found = yield from cover(_counts(first), draft.offers, draft.allowance)
                if sum(found.left.values()) * _LEFT_PART <= sum(found.served.values()):
                    break
                first = _first(first, found)
            self._left.update(_counts(entry for entry in queue if entry[0] in found.never))
            yield from draft.request(found)
            queue = _without(queue, found)
            yield len(queue)
            # The free capacity of these executors is possibly enough for later requests.
            queue = yield from draft.fill([each for _, each in draft.opened], queue)

    def _could_be_served(self, counts: Counts) -> bool:
        """Returns whether any of these requests could be served without limits."""
        return any(offer.fits(kind) for kind in counts for offer in self._draft.offers)

    def _open_bins(self) -> list[Bin]:
        """Returns the bins for queued requests."""
        return [*self._draft.pending.values(), *(each for _, each in self._draft.opened)]

    def _plan(self) -> Plan:
        draft = self._draft
        return Plan(
            {name: each.content for name, each in draft.pending.items() if each.content},
            [New(supply, each.content) for supply, each in draft.opened],
            self._left,
            self._planned,
            {name for name, each in draft.hosts.items() if each.content},
        )


def _counts(queue: Iterable[Entry]) -> Counts:
    counts: Counts = {}
    for kind, count in queue:
        counts[kind] = counts.get(kind, 0) + count
    return counts


def _first(queue: Sequence[Entry], cover: Cover) -> list[Entry]:
    """Returns the oldest requests, up to the worth of the requests that a cover serves. The result
    has at least one request.
    """
    worth = cover.worth
    value = sum([worth[kind] * count for kind, count in cover.served.items()])
    first: list[Entry] = []
    for kind, count in queue:
        if kind in worth:
            fit = min(count, value // worth[kind]) if worth[kind] else count
            value -= worth[kind] * fit
            # Take at least one request, because an attempt without requests would be useless.
            first.append((kind, fit if first else max(1, fit)))
            if fit < count:
                break
    return first


def _without(queue: Sequence[Entry], cover: Cover) -> list[Entry]:
    """Returns the requests that a cover does not serve. Requests that fit on no offer are left out.
    Of each kind, the oldest requests count as served.
    """
    served = dict(cover.served)
    rest = []
    for kind, count in queue:
        here = min(count, served.get(kind, 0))
        if here:
            served[kind] -= here
        if here < count and kind not in cover.never:
            rest.append((kind, count - here))
    return rest

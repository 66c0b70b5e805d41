"""Compares a request with all hosts. For each host, the survey computes how much the host lacks for
the request. The survey also collects the free and total amounts of all usable hosts.

Hosts that differ only in their free amounts are compared as a group, one dimension after the other,
so a survey takes about two microseconds per host. Costly constraints are checked on at most
`COSTLY_CHECKS_MAX` hosts, and only on hosts that meet all other constraints or lack only labels.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import compress, repeat

from finegrain.resources import Amounts, total_of_shared
from finegrain.values.explanations import Dimension
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.constraint import (
    Blocker,
    Constraint,
    HostView,
    Obstacle,
)
from resource_manager.engine.placement.fit import AMOUNTS, AVAILABLE, LABELS, Fit, Verdict
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

COSTLY_CHECKS_MAX = 200
"""The largest number of hosts on which costly constraints are checked. On any further host, the
request counts as not fitting. This assumption is almost always right: the request is still queued,
so the scheduling cycle has found no host for it.
"""

_USABLE_IF = (AVAILABLE, LABELS)

Distance = tuple[int, int, str]
"""A measure of how much a host lacks to serve the request. The host with the lowest distance is
nearest. A distance has three parts:

1. The number of obstacles that would remain even if all slots of the host ended.
2. The lack of the dimension that lacks most, in millionths of the requested amount.
3. The id of the host, so that the order of hosts is always the same.

Example: a request needs 4 cpus. Host a has 8 cpus, but only 3 of them are free. Host b has 4 free
cpus, but is draining. Host a is nearer, because the obstacle on b would remain when slots end.
"""


@dataclass(slots=True)
class Survey:
    """The comparison of a scheduling class with hosts.

    A host is usable if new slots can be placed on it and it carries the required labels.

    Attributes:
        fit: the constraints of the class.
        hosts: the hosts, by id.
        own: the ids of hosts that have capacity reserved for the request.
        distances: the distance of each host.
        usable: the number of usable hosts.
        fitting: the number of hosts on which the request fits now.
        refused: True if a usable host has refused an equal request recently.
        promising: the distance of the nearest usable host that is large enough, has not refused an
            equal request, and is not reserved for other requests. None if there is no such host.
        blocked_only_by: for each constraint, the hosts on which this constraint is the only
            obstacle.
        unchecked: the number of hosts on which costly constraints were not checked.
    """

    fit: Fit
    hosts: dict[str, Host]
    own: Collection[str] = ()
    distances: list[Distance] = field(default_factory=list)
    usable: int = 0
    fitting: int = 0
    refused: bool = False
    promising: Distance | None = None
    blocked_only_by: defaultdict[Constraint, list[Distance]] = field(
        default_factory=lambda: defaultdict(list)
    )
    unchecked: int = 0
    _checked: int = 0
    _candidates: set[str] = field(default_factory=set)
    _dimensions: dict[str, Dimension] = field(default_factory=dict)

    @classmethod
    def of(
        cls, hosts: Iterable[Host], scheduling_class: SchedulingClass, own: Collection[str] = ()
    ) -> Survey:
        """Compares a class with hosts.

        Args:
            hosts: the hosts to compare.
            scheduling_class: the class of the request.
            own: the ids of hosts that have capacity reserved for the request.
        """
        survey = cls(Fit(scheduling_class), {host.host_id: host for host in hosts}, own)
        apart: dict[str, tuple[Obstacle, ...]] = {}
        for requested, group in survey.fit.groups(survey.hosts.values()):
            apart |= survey._compare_group(group, requested)
        # Costly checks are made last, in the order of `hosts`.
        for host in survey.hosts.values() if apart else ():
            if host.host_id in apart:
                survey._check(host, apart[host.host_id])
        return survey

    @property
    def candidates(self) -> list[Host]:
        """The hosts without obstacles, including those of `unchecked`, in the order of `hosts`."""
        found = self._candidates
        return [host for host in self.hosts.values() if host.host_id in found] if found else []

    def view(self, host_id: str) -> HostView:
        """Returns the view of a host. Capacity that is reserved for the request counts as free."""
        return HostView.now(self.hosts[host_id], owns_reservation=host_id in self.own)

    def verdict(self, host_id: str) -> Verdict:
        """Returns the result of the comparison of the request with one host, with all obstacles."""
        return self.fit.verdict(self.view(host_id))

    def nearest(self, most: int) -> list[Verdict]:
        """Returns the verdicts of the nearest hosts, the nearest host first."""
        return [self.verdict(host_id) for _, _, host_id in heapq.nsmallest(most, self.distances)]

    def is_for_others(self, host_id: str) -> bool:
        """Returns True if capacity of a host is reserved for another request."""
        return self.hosts[host_id].reserved is not None and host_id not in self.own

    def dimensions(self) -> list[Dimension]:
        """Returns the requested dimensions, each with the amounts of all usable hosts.

        Hosts can book different amounts for the same request. The smallest of these amounts then
        counts as the requested amount.
        """
        return list(self._dimensions.values())

    def _compare_group(
        self, hosts: list[Host], requested: Amounts
    ) -> dict[str, tuple[Obstacle, ...]]:
        """Compares the hosts of a group, except for hosts that need costly checks. Returns the ids
        of these hosts, each with its other obstacles.
        """
        fit, first, count = self.fit, hosts[0], len(hosts)
        frees = [host.free() for host in hosts]
        free = {name: [each.get(name, 0) for each in frees] for name in requested}
        obstacles = fit.obstacles_besides_amounts(self.view(first.host_id))
        if _is_usable(obstacles):
            self.usable += count
            total = total_of_shared([host.total for host in hosts])
            for name, asked in requested.items():
                known = self._dimensions.get(name, Dimension(name, asked, 0, 0, 0))
                self._dimensions[name] = Dimension(
                    name,
                    min(asked, known.asked),
                    known.free + sum(free[name]),
                    max(known.largest_hole, *free[name]),
                    known.total + total.get(name, 0),
                )
        lacks = AMOUNTS.lacks(fit.request, requested, free, count)
        if min(lacks) >= 0:
            self._record(hosts, lacks, obstacles)
            return {}
        short = [lack >= 0 for lack in lacks]
        if any(short):
            self._record(list(compress(hosts, short)), list(compress(lacks, short)), obstacles)
        enough = [host for host, lack in zip(hosts, lacks, strict=True) if lack < 0]
        apart: dict[str, tuple[Obstacle, ...]] = {}
        # Costly checks are made in two cases: there is no other obstacle, or missing labels are the
        # only obstacle. In the second case, the explanation can say whether the request would fit
        # with other labels.
        if all(each.constraint is LABELS for each in obstacles):
            apart = {host.host_id: obstacles for host in enough if fit.has_costly_checks(host)}
            enough = [host for host in enough if host.host_id not in apart]
        if enough:
            self._record(enough, [-1] * len(enough), obstacles)
        return apart

    def _check(self, host: Host, obstacles: tuple[Obstacle, ...]) -> None:
        """Checks the costly constraints of a host that has enough free amounts. `obstacles` are the
        other obstacles.
        """
        if self._checked < COSTLY_CHECKS_MAX:
            self._checked += 1
            costly = self.fit.costly_obstacles(self.view(host.host_id))
            self._record([host], [-1], obstacles + costly)
        else:
            self.unchecked += 1
            self._record([host], [-1], obstacles, is_known=False)

    def _record(
        self,
        hosts: list[Host],
        lacks: list[int],
        obstacles: tuple[Obstacle, ...],
        *,
        is_known: bool = True,
    ) -> None:
        """Adds hosts to the lists of hosts.

        Args:
            hosts: hosts of one group. Either all or none of them lack amounts.
            lacks: the largest lack of amounts of each host; -1 if the host does not lack amounts.
            obstacles: all obstacles besides amounts.
            is_known: False if costly constraints were not checked.
        """
        # An unchecked host gets the smallest possible lack, which is 1. So the host comes directly
        # after the hosts on which the request fits.
        least = max([int(not is_known), *(each.lack for each in obstacles)])
        hard = sum(not each.transient for each in obstacles)
        violated = {each.constraint for each in obstacles}
        if lacks[0] >= 0:
            violated.add(AMOUNTS)
            requested = self.fit.requested(hosts[0])
            hard += AMOUNTS.is_too_small(self.fit.request, requested, hosts[0].total)
        ids = [host.host_id for host in hosts]
        distances = list(zip(repeat(hard), map(max, lacks, repeat(least)), ids, strict=False))
        self.distances += distances
        if not violated:
            self._candidates.update(ids)
            self.fitting += len(hosts) * is_known
        # If a host was not checked, it is unknown whether the request fits on it, so the host is
        # not counted.
        elif is_known and len(violated) == 1:
            self.blocked_only_by[violated.pop()] += distances
        if not _is_usable(obstacles):
            return
        # The end of slots helps only on a host that is large enough and not reserved for other
        # requests.
        if hard:
            self.refused = self.refused or any(o.blocker == Blocker.REFUSED for o in obstacles)
        elif not self.is_for_others(ids[0]):
            self.promising = min([*distances, *filter(None, [self.promising])])


def _is_usable(obstacles: tuple[Obstacle, ...]) -> bool:
    return all(each.constraint not in _USABLE_IF for each in obstacles)

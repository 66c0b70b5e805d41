"""Compares a request with all hosts. For each host, the survey computes how much the host lacks for
the request. The survey also collects the free and total amounts of all usable hosts.

A survey takes a few microseconds per host. Costly constraints are checked on at most
`COSTLY_CHECKS_MAX` hosts, and only on hosts that meet all other constraints or lack only labels.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from finegrain.resources import Amounts, total_of_shared
from finegrain.values.explanations import Dimension
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.constraint import (
    NO_OBSTACLE,
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
        candidates: the hosts without obstacles, including those of `unchecked`.
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
    candidates: list[Host] = field(default_factory=list)
    _checked: int = 0
    # the usable hosts and their free amounts, by the id of the amounts that the request books there
    _amounts: dict[int, tuple[list[Host], list[Amounts]]] = field(default_factory=dict)

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
        for host in survey.hosts.values():
            survey._compare(host)
        return survey

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
        merged: dict[str, Dimension] = {}
        for hosts, frees in self._amounts.values():
            total = total_of_shared([host.total for host in hosts])
            for name, asked in self.fit.requested(hosts[0]).items():
                free = [each.get(name, 0) for each in frees]
                known = merged.get(name, Dimension(name, asked, 0, 0, 0))
                merged[name] = Dimension(
                    name,
                    min(asked, known.asked),
                    known.free + sum(free),
                    max(known.largest_hole, *free),
                    known.total + total.get(name, 0),
                )
        return list(merged.values())

    def _compare(self, host: Host) -> None:
        fit, host_id, free = self.fit, host.host_id, host.free()
        requested = fit.requested(host)
        # Missing amounts are compared without objects, because most hosts lack only amounts.
        shortage = AMOUNTS.shortage(fit.request, requested, free, host.total)
        obstacles = self._obstacles_besides_amounts(host)
        too_small, lack = shortage or (False, 0)
        is_known = True
        # Costly checks are made in two cases: there is no other obstacle, or missing labels are the
        # only obstacle. In the second case, the explanation can say whether the request would fit
        # with other labels.
        if shortage is None and (
            (not obstacles or obstacles[0].constraint is LABELS is obstacles[-1].constraint)
            and fit.has_costly_checks(host)
        ):
            is_known = self._checked < COSTLY_CHECKS_MAX
            if is_known:
                self._checked += 1
                obstacles += fit.costly_obstacles(self.view(host_id))
            else:
                self.unchecked += 1
                # An unchecked host gets the smallest possible lack, which is 1. So the host comes
                # directly after the hosts on which the request fits.
                lack = 1
        hard, is_usable = int(too_small), True
        for each in obstacles:
            if not each.transient:
                hard += 1
                is_usable = is_usable and each.constraint not in _USABLE_IF
            lack = max(lack, each.lack)
        distance = hard, lack, host_id
        self.distances.append(distance)
        if shortage is not None:
            if not obstacles:
                self.blocked_only_by[AMOUNTS].append(distance)
        elif not obstacles:
            self.candidates.append(host)
            self.fitting += is_known
        # If a host was not checked, it is unknown whether the request fits on it, so the host is
        # not counted. Obstacles are sorted by constraint, so the first and the last obstacle show
        # whether all obstacles have the same constraint.
        elif is_known and obstacles[0].constraint is obstacles[-1].constraint:
            self.blocked_only_by[obstacles[0].constraint].append(distance)
        if not is_usable:
            return
        self.usable += 1
        # Hosts that book equal amounts for the request share one entry: equal amounts are one dict.
        kind = id(requested)
        hosts, frees = self._amounts.get(kind) or self._amounts.setdefault(kind, ([], []))
        hosts.append(host)
        frees.append(free)
        # The end of slots helps only on a host that is large enough and not reserved for other
        # requests.
        if hard:
            self.refused = self.refused or any(o.blocker == Blocker.REFUSED for o in obstacles)
        elif (self.promising is None or distance < self.promising) and not self.is_for_others(
            host_id
        ):
            self.promising = distance

    def _obstacles_besides_amounts(self, host: Host) -> tuple[Obstacle, ...]:
        if self.fit.only_amounts_matter(host):
            return NO_OBSTACLE
        return self.fit.obstacles_besides_amounts(self.view(host.host_id))

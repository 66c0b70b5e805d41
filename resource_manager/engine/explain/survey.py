"""Compares a request with all hosts: how far each is from serving it, and what they have together.

Costs a few microseconds for each host. Costly constraints are checked only on hosts that meet all
others, and on a limited number of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.constraint import Blocker, Constraint, HostView
from resource_manager.engine.placement.fit import AVAILABLE, LABELS, Fit, Verdict
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

COSTLY_CHECKS_MAX = 200
"""On how many hosts costly constraints are checked. The others count as if they did not fit: the
scheduling cycle has checked them all.
"""

_USABLE_IF = (AVAILABLE, LABELS)

Distance = tuple[int, int, str]
"""How far a host is from serving the request: number of obstacles that stay when slots end there,
the largest lack in millionths, executor's id.
"""


class DimensionSums(NamedTuple):
    """One dimension of what is requested, and what each usable host has of it."""

    name: str
    asked: int
    free: list[int]
    total: list[int]


@dataclass(slots=True)
class Survey:
    """How a scheduling class compares with hosts. Usable hosts are available and carry the labels.

    Attributes:
        fit: compares the class with one host.
        hosts: the hosts, by id.
        own: hosts with capacity that is reserved for the request.
        distances: of all hosts.
        usable: number of usable hosts.
        fitting: number of hosts where the request fits now.
        refused: a usable host refused an equal request lately.
        promising: the nearest usable host that is large enough and not reserved for others.
        blocked_only_by: hosts where all obstacles are of one constraint, by constraint.
        unchecked: hosts where costly constraints were not checked.
    """

    fit: Fit
    hosts: dict[str, Host]
    own: Collection[str] = ()
    distances: list[Distance] = field(default_factory=list)
    usable: int = 0
    fitting: int = 0
    refused: bool = False
    promising: Distance | None = None
    blocked_only_by: dict[Constraint, list[Distance]] = field(default_factory=dict)
    unchecked: int = 0
    _checked: int = 0
    _sums: dict[int, list[DimensionSums]] = field(default_factory=dict)  # by what a slot books

    @classmethod
    def of(
        cls, hosts: Iterable[Host], scheduling_class: SchedulingClass, own: Collection[str] = ()
    ) -> Survey:
        """Compares a class with hosts.

        Args:
            hosts: the hosts.
            scheduling_class: what is requested.
            own: hosts with capacity that is reserved for the request.
        """
        survey = cls(Fit(scheduling_class), {host.host_id: host for host in hosts}, own)
        for host_id in survey.hosts:
            survey._look(host_id)
        return survey

    def view(self, host_id: str) -> HostView:
        """Returns a host as the request sees it."""
        return HostView.now(self.hosts[host_id], owns_reservation=host_id in self.own)

    def verdict(self, host_id: str) -> Verdict:
        """Returns all that stands between the request and one host."""
        return self.fit.verdict(self.view(host_id))

    def nearest(self, most: int) -> list[Verdict]:
        """Returns the hosts that are nearest to serving the request, nearest first."""
        return [self.verdict(host_id) for _, _, host_id in heapq.nsmallest(most, self.distances)]

    def is_for_others(self, host_id: str) -> bool:
        """Returns True if capacity of a host is reserved for another request."""
        return self.hosts[host_id].reserved is not None and host_id not in self.own

    def dimensions(self) -> list[DimensionSums]:
        """Returns what is requested, at least, and what usable hosts have, by dimension."""
        merged: dict[str, DimensionSums] = {}
        for name, asked, free, total in chain.from_iterable(self._sums.values()):
            if free:
                known = merged.get(name, DimensionSums(name, asked, [], []))
                merged[name] = DimensionSums(
                    name, min(asked, known.asked), known.free + free, known.total + total
                )
        return list(merged.values())

    def _look(self, host_id: str) -> None:
        at, fit = self.view(host_id), self.fit
        obstacles = fit.cheap_obstacles(at)
        is_known = True
        # Costly checks only where nothing else stands in the way. Labels do not count here: whether
        # other labels would help is a question of its own.
        if (not obstacles or obstacles[0].constraint is LABELS is obstacles[-1].constraint) and (
            fit.has_costly_checks(at.host)
        ):
            is_known = self._checked < COSTLY_CHECKS_MAX
            if is_known:
                self._checked += 1
                obstacles += fit.costly_obstacles(at)
            else:
                self.unchecked += 1
        # An unchecked host counts as lacking a little, so it comes after all that fit for sure.
        hard, lack, is_usable = 0, 0 if is_known else 1, True
        for each in obstacles:
            if not each.transient:
                hard += 1
                is_usable = is_usable and each.constraint not in _USABLE_IF
            lack = max(lack, each.lack)
        distance = hard, lack, host_id
        self.distances.append(distance)
        # A host that was not fully checked proves neither that it fits nor what alone blocks it.
        if is_known:
            if not obstacles:
                self.fitting += 1
            elif obstacles[0].constraint is obstacles[-1].constraint:
                # Obstacles come in the order of their constraints, so equal ends mean one
                # constraint.
                self.blocked_only_by.setdefault(obstacles[0].constraint, []).append(distance)
        if not is_usable:
            return
        self.usable += 1
        self._add_up(at)
        # Only the end of slots on a host that is large enough and not reserved for others can help.
        if hard:
            self.refused = self.refused or any(o.blocker == Blocker.REFUSED for o in obstacles)
        elif not self.is_for_others(host_id) and (
            self.promising is None or distance < self.promising
        ):
            self.promising = distance

    def _add_up(self, at: HostView) -> None:
        """Adds what a usable host has. Hosts where a slot books the same share the lists."""
        host, scheduling_class = at.host, self.fit.request
        own = host.default_booking if scheduling_class.profile is None else None
        # A default slot books what the host says. Hosts with the same dict book the same.
        kind = id(own) if own is not None else int(host.separate_pools)
        sums = self._sums.get(kind)
        if sums is None:
            sums = self._sums[kind] = [
                DimensionSums(name, amount, [], [])
                for name, amount in host.booking_for(scheduling_class).items()
            ]
        for name, _, free, total in sums:
            free.append(at.free.get(name, 0))
            total.append(host.total.get(name, 0))

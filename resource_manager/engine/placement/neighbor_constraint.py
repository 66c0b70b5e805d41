"""Checks the rules of a request about neighbors. Neighbors are slots of the same job that the slot
of the request must be near to or apart from.

The rules and the present slots decide which cpus of a host a slot is allowed to have
(`cpus/neighbors.py`). This constraint finds hosts on which no cpus are left. On the remaining
hosts, `CpusSuit` chooses the cpus with the same code. So placement, explanations and the search for
gangs agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from finegrain.neighbors import NeighborRule
from finegrain.resources import Amounts
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.neighbors import zones_of
from resource_manager.engine.cpus.request import CpuBlocker, CpuRequest
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest, cpu_request_of
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.constraint import (
    NO_OBSTACLE,
    Blocker,
    Constraint,
    HostView,
    Obstacle,
    Remedy,
)

_BLOCKERS = (CpuBlocker.NOT_NEAR, CpuBlocker.NOT_APART)


class NearAndApart(Constraint):
    """The present slots of the host allow what the rules about neighbors require."""

    costly = True
    remedies_sought_on = 5

    def applies(self, request: ResourceRequest) -> bool:
        """See `Constraint`. A slot that has only labels is subject to rules of other slots."""
        return request.cpus is not None and bool(request.cpus[0].neighbor_job)

    def matters_on(self, host: Host, request: ResourceRequest) -> bool:
        """See `Constraint`."""
        return self.applies(request)

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        ledger = at.cpus()
        # If the cores of the host are not known, `CpusSuit` reports the obstacle.
        if ledger is None or not self.applies(request):
            return NO_OBSTACLE
        wanted = _wanted(request, at)
        preferred = [rule for rule in wanted.policy.neighbors if not rule.required]
        found = zones_of(ledger, wanted, preferred)
        if not isinstance(found, HostRefusal):
            return NO_OBSTACLE
        # If the request must be apart from a present slot, the end of this slot helps. If a
        # neighbor is missing, the end of other slots does not help.
        is_apart = found.blocker is CpuBlocker.NOT_APART
        blocker = Blocker.NOT_APART if is_apart else Blocker.NOT_NEAR
        return (Obstacle(self, blocker, is_apart, 1, host_refusal=found),)

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        return obstacle.host_refusal.text if obstacle.host_refusal is not None else ""

    def remedies(
        self, request: ResourceRequest, at: HostView, settings: EngineSettings
    ) -> Iterator[Remedy]:
        """Yields a remedy for each required rule with which the slot would fit if the rule were
        only preferred.
        """
        ledger = at.cpus()
        if ledger is None:
            return
        wanted = _wanted(request, at)
        for rule in wanted.policy.neighbors:
            if rule.required and not isinstance(
                assign(ledger, _with_preferred(wanted, rule)), HostRefusal
            ):
                name = "apart" if rule.apart else "near"
                text = f"if the rule {rule} were preferred instead of required"
                yield Remedy(1, text, relaxed=(name,))


NEIGHBORS = NearAndApart()


def is_about_neighbors(refusal: HostRefusal) -> bool:
    """Returns True if a host refused a slot because of rules about neighbors."""
    return refusal.blocker in _BLOCKERS


def _wanted(request: ResourceRequest, at: HostView) -> CpuRequest:
    booked = at.host.booking_for(request)
    return cpu_request_of(request, booked, at.without_neighbor(request))


def _with_preferred(wanted: CpuRequest, rule: NeighborRule) -> CpuRequest:
    policy = wanted.policy
    rules = tuple(
        replace(each, required=False) if each is rule else each for each in policy.neighbors
    )
    return replace(wanted, policy=replace(policy, neighbors=rules))

"""Gives cpus and NUMA nodes to slots tentatively, to find out whether the slots fit.

The search changes only copies of the hosts' cpu ledgers. Slots get cpus in the copies, in the order
of the calls of `take`. If the caller later books the slots in this order, the slots get the same
cpus. The hosts' own ledgers do not change. The caller must check amounts and the number of slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import CpuPolicy
from finegrain.errors import InvariantBroken
from resource_manager.engine.cpus.assign import assign, assign_many
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest, cpu_request_of
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.labeled_slots import near_rules

StartOf = Callable[[Host], CpuLedger | None]
"""A function that returns the cpu ledger of a host at the start of the search. It returns None if
the host does not report its cpus.
"""

_KEY = "\0"
"""The allocation id of all tentative slots."""


def as_they_are(host: Host) -> CpuLedger | None:
    """Returns the cpu ledger of a host with all its slots."""
    return host.cpus


def as_if_empty(host: Host) -> CpuLedger | None:
    """Returns the cpu ledger of a host without its slots."""
    return host.cpus.empty() if host.cpus is not None else None


class TentativeCpus:
    """The cpus of all hosts, including the cpus that tentative slots took."""

    def __init__(self, start_of: StartOf = as_they_are) -> None:
        self._start_of = start_of
        # the changed ledger of each host; None: no cpus are taken on the host
        self._changed: dict[str, CpuLedger | None] = {}
        self._journal: list[tuple[str, CpuLedger | None]] = []
        self._policies: list[
            CpuPolicy
        ] = []  # for each entry of the journal, the policy of its slots
        # for each host or kind of hosts, the number of slots that were tried, and how many of them
        # fit
        self._known: dict[object, tuple[int, int]] = {}

    def mark(self) -> int:
        """Returns a mark to which the changes can be rolled back."""
        return len(self._journal)

    def roll_back(self, mark: int = 0) -> None:
        """Gives back the cpus that were taken since a mark."""
        while len(self._journal) > mark:
            host_id, before = self._journal.pop()
            self._policies.pop()
            self._changed[host_id] = before

    def fit(self, request: ResourceRequest, host: Host, most: int) -> int:
        """Returns the number of slots, at most `most`, for which the cpus and NUMA nodes of a host
        are sufficient.
        """
        if not most or not host.needs_topology(request):
            return most
        changed = self._changed.get(host.host_id)
        wanted = self._wanted(request, host)
        # If no slot took cpus on the host, the host caches the result for its present state. The
        # cached result does not count tentative slots on other hosts, which are possibly neighbors.
        own = host.without_neighbor(request)
        if host.cpus is None or (
            changed is None and self._start_of is as_they_are and own == wanted.without_neighbor
        ):
            return len(host.assign_many(request, most))
        if changed is not None:
            return _count(changed, wanted, most)
        # Hosts of one kind are equal when empty, so one computation is enough for all hosts of the
        # kind.
        alike = self._start_of is as_if_empty
        key = host.cpu_kind if alike else host.host_id, wanted
        known, fitting = self._known.get(key, (0, 0))
        # If all slots of the last try fit, more slots possibly fit. Otherwise a try with more slots
        # would not find more room.
        if known < most and known == fitting:
            start = self._start_of(host)
            fitting = _count(start, wanted, most) if start is not None else 0
            self._known[key] = most, fitting
        return min(most, fitting)

    def fit_all(self, members: Sequence[tuple[ResourceRequest, int]], host: Host) -> bool:
        """Returns True if the cpus of a host are sufficient for all members, which get cpus in the
        order of the list. Each item is a request and the number of its members.
        """
        if not any(host.needs_topology(request) for request, _ in members):
            return True
        mark = self.mark()
        try:
            for at, (request, count) in enumerate(members, 1):
                if self.fit(request, host, count) < count:
                    return False
                if at < len(members):  # no check follows after the last request
                    self.take(request, host, count)
            return True
        finally:
            self.roll_back(mark)

    def unmet(self, request: ResourceRequest, host: Host) -> int:
        """Returns the number of preferred policies that a slot would miss on a host that has
        room.
        """
        changed = self._changed.get(host.host_id)
        if changed is None:
            return host.unmet(request)
        found = assign(changed, self._wanted(request, host))
        return len(found.notes) if isinstance(found, CpuAssignment) else 0

    def take(self, request: ResourceRequest, host: Host, count: int) -> None:
        """Gives cpus on a host to some slots.

        Args:
            request: the request of the slots.
            host: the host.
            count: the number of slots.

        Raises:
            InvariantBroken: the host's cpus are not sufficient for the slots. The caller must check
                with `fit` before that the cpus are sufficient.
        """
        before = self._changed.get(host.host_id)
        start = before if before is not None else self._start_of(host)
        if start is None:
            return
        # Change a copy, so that `roll_back` can restore `before`.
        ledger, wanted = start.scratch(), self._wanted(request, host)
        given = CpuAssignment(request.cpus[0].qos) if request.cpus is not None else None
        for _ in range(count):
            if host.needs_topology(request):
                found = assign(ledger, wanted)
                if not isinstance(found, CpuAssignment):
                    raise InvariantBroken(
                        f"{request.key} does not fit on {host.host_id}: {found.text}"
                    )
                given = found
            # The copy only gains slots, so the number of slots is a unique key.
            ledger.add((_KEY, len(ledger.holdings)), given, wanted.policy)
        self._journal.append((host.host_id, before))
        self._policies.append(wanted.policy)
        self._changed[host.host_id] = ledger

    def _wanted(self, request: ResourceRequest, host: Host) -> CpuRequest:
        booked = host.booking_for(request)
        if request.cpus is None or not request.cpus[0].neighbors:
            return cpu_request_of(request, booked)
        policy = request.cpus[0]
        # On an empty host, other slots can start first, so a neighbor is never missing there.
        if self._start_of is as_if_empty:
            return cpu_request_of(request, booked, near_rules(policy))
        alone = tuple(
            rule
            for rule in host.without_neighbor(request)
            if not any(
                other.neighbor_job == policy.neighbor_job and rule.selects(other.slot_labels)
                for other in self._policies
            )
        )
        return cpu_request_of(request, booked, alone)


def _count(ledger: CpuLedger, wanted: CpuRequest, most: int) -> int:
    found = assign_many(ledger, repeat(wanted, most))
    return sum(isinstance(each, CpuAssignment) for each in found)

"""Counts how many more slots of a scheduling class fit now, on each executor and in total.

The result is the number of slots that the placer would place under two assumptions: no other
requests are queued, and no group has a maximum. Reserved capacity does not count as free, even if
it is reserved for this request.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from resource_manager.engine.explain.survey import COSTLY_CHECKS_MAX
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.tentative import Members, TentativePlacer
from resource_manager.engine.queue.gangs import MemberRequest
from resource_manager.engine.queue.scheduling_classes import SchedulingClass

MOST = 1 << 31
"""The number of slots to try on a host where only amounts matter. No host has room for so high a
number of slots.
"""

CHOSEN_MAX = 2_000
"""The largest number of slots, on all hosts together, for which cpus, NUMA nodes or devices are
chosen. Each choice takes about 50 us, and the resource manager handles no events in this time.
"""


@dataclass(slots=True)
class MoreFit:
    """The numbers of further slots of a class that fit now.

    Attributes:
        by_host: the number of slots on each executor, without zeros.
        is_complete: True if all executors were counted completely. If it is False, more slots
            possibly fit.
    """

    by_host: dict[str, int] = field(default_factory=dict)
    is_complete: bool = True

    @property
    def total(self) -> int:
        """The sum of `by_host`."""
        return sum(self.by_host.values())


def count_more(hosts: Hosts, among: Iterable[Host], wanted: SchedulingClass) -> MoreFit:
    """Returns how many more slots of a class fit now.

    Args:
        hosts: all hosts; their indexes must be up to date.
        among: the hosts to count.
        wanted: the scheduling class.
    """
    request = MemberRequest(wanted.profile, wanted.labels, 1, cpus=wanted.cpus)
    members = Members.of(0, request, ())
    placer = TentativePlacer(hosts, [members])
    found, checks, left = MoreFit(), 0, CHOSEN_MAX
    try:
        for host in among:
            needs_topology = host.needs_topology(wanted)
            # If a host with a reservation needs a check of cpus, the placer does not use this host,
            # because it is unknown which cpus the owner of the reservation needs.
            if needs_topology and host.reserved is not None:
                continue
            if needs_topology and (checks >= COSTLY_CHECKS_MAX or not left):
                found.is_complete = False
                break
            # If the amounts do not fit, the result is 0, and cpus are not checked.
            room = placer.room(members, host.host_id, left if needs_topology else MOST)
            if room:
                found.by_host[host.host_id] = room
            if room and needs_topology:
                checks += 1
                left -= room
                # If the limit is reached, the host possibly has room for more slots.
                found.is_complete = left > 0
    finally:
        placer.drop()
    return found

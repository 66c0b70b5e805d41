"""Collects the free capacity of known executors for the plan of new executors. The plan can put
some members of a waiting gang on known executors, and the other members on new executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from finegrain.values.states import GangPlacement
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.scheduling_key import SLOTS, in_grains
from resource_manager.engine.placement.elastic import Capacity
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.planning.gangs import GangDemand
from resource_manager.engine.planning.packing import Demand
from resource_manager.engine.planning.steps import Steps
from resource_manager.engine.planning.topology import amounts_of, with_counts

_WORK_PER_HOST = 10
"""The work of reading one host, in units of `Steps`."""


def free_hosts(
    hosts: Hosts,
    demands: list[Demand],
    gangs: list[GangDemand],
    constrained: Mapping[int, ResourceRequest],
) -> Steps[dict[str, Capacity]]:
    """Returns the free capacity of known executors that have room for at least one gang member.

    For each kind of members, the plan needs at most as many executors as there are members. But for
    a gang whose members need the same label value, the result contains all executors with room.

    Args:
        hosts: all hosts, with indexes that are up to date.
        demands: the amounts that a request of each kind needs, by kind.
        gangs: the waiting gangs.
        constrained: the requests of the topology-constrained kinds, by kind.

    Returns:
        The free capacity of each host.
    """
    index = hosts.indexes.main
    members = sum(sum(gang.members.values()) for gang in gangs)
    # Find the hosts that have room for a member in the index.
    found: set[str] = set()
    for gang in gangs:
        most = None if gang.placement is GangPlacement.SAME_LABEL else members
        for kind in gang.members:
            demand, before = demands[kind], len(found)
            with_room = (
                index.ids[at]
                # The index has no columns for the extra dimensions (see `planning/topology.py`), so
                # `suits` compares the cpus.
                for at in index.covering([amounts_of(demand.pooled), amounts_of(demand.separate)])
                if hosts[index.ids[at]].carries(demand.labels)
                and (kind not in constrained or hosts[index.ids[at]].suits(constrained[kind]))
            )
            found.update(islice(with_room, most))
            yield _WORK_PER_HOST + len(found) - before
    # Read the free capacity of these hosts, as numbers for the planner.
    counted_together = [gang.members for gang in gangs]
    free: dict[str, Capacity] = {}
    for host_id in sorted(found):
        host = hosts.get(host_id)
        # The computation possibly paused, so the host has possibly been deleted or changed.
        if host is not None and host.eligible and (slots := host.spare_slots()):
            free[host_id] = with_counts(_free_of(host, slots), host, constrained, counted_together)
            yield _WORK_PER_HOST
    return free


def _free_of(host: Host, slots: int) -> Capacity:
    return Capacity(
        {**in_grains(host.spare()), SLOTS: slots},
        host.default_need,
        host.labels,
        host.separate_pools,
    )

"""Decides whether a gang could ever be placed as a whole, on known or new executors.

The check runs the search that places gangs, and the planner, as if all executors were empty. If the
search is cut off, the gang counts as possible: it waits, and is not rejected by mistake.

Example: a gang has 3 members of 8 cpus and the placement "spread". There are two known executors
with 16 cpus each, so the gang never fits on known executors alone. But a provider can start
executors with 8 cpus. So the gang is possible: two members fit on known executors, and one member
fits on a new executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from finegrain.resources import ResourceProfile, extended_items, shared_booking, total_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS, in_grains
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity, Elastic
from resource_manager.engine.placement.feasibility import Feasibility
from resource_manager.engine.placement.gangs import GangSearch, seek
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.planning.draft import Supply
from resource_manager.engine.planning.gangs import GangDemand
from resource_manager.engine.planning.packing import Demand
from resource_manager.engine.planning.planning import Backlog, make_plan
from resource_manager.engine.planning.topology import counted, empty_like, together, with_counts
from resource_manager.engine.queue.gangs import MemberRequest, Where

KINDS_MIN = 8
"""If a gang has fewer kinds of members than this, a search for its members is as cheap as a search
for equal members.
"""


def gang_feasibility(
    hosts: Hosts,
    elastic: Elastic,
    provisions: Container[str],
    where: Where,
    members: Sequence[MemberRequest],
) -> Feasibility:
    """Returns whether a gang could be placed as a whole on empty executors. The indexes must be up
    to date.

    Args:
        hosts: all known executors.
        elastic: the state of scaling, with the executors that can be requested.
        provisions: the ids of executors that were requested from providers. These executors can be
            given back before the gang is placed.
        where: the rule for the hosts of the members, such as SPREAD.
        members: the requests of the members.
    """
    provided = bool(elastic.provisioning)
    if not hosts and not provided:
        return Feasibility.POSSIBLE
    # If a gang has many kinds of members, first search for equal members: the same number of
    # members, each as large as the largest member in every dimension. This search is cheaper,
    # because it has only one kind of member, and the equal members nearly always fit.
    alike = None if hosts.indexes.aligning else as_the_largest(members)
    if alike is not None and seek(hosts, where, [alike], prefix=ONLINE) is not None:
        return Feasibility.POSSIBLE
    online = GangSearch(hosts, where, members, prefix=ONLINE)
    # If the search was cut off, the gang waits, because it could be wrong to reject the gang.
    if online.find() is not None or online.cut_off:
        return Feasibility.POSSIBLE
    if provided and _could_be_provided(hosts, elastic, provisions, where, members):
        return Feasibility.POSSIBLE
    if seek(hosts, where, members, prefix=KNOWN) is not None:
        return Feasibility.OFFLINE
    return Feasibility.NEVER


def as_the_largest(members: Sequence[MemberRequest]) -> MemberRequest | None:
    """Returns a request of equal members, each as large as the largest member in every dimension.
    If the equal members fit together, the real members fit, too.

    Example: the gang has 4 members of 1 cpu and 8 GiB, and 4 members of 2 cpus and 4 GiB. The
    result is 8 members of 2 cpus and 8 GiB.

    Returns None if there are few kinds, or if a member needs more than amounts.
    """
    labels, profiles = members[0].labels, [each.profile for each in members if each.profile]
    if len(members) < KINDS_MIN or len(profiles) < len(members):
        return None
    if any(each.labels != labels or each.cpus is not None for each in members):
        return None
    if any(each.devices or each.isolation for each in profiles):
        return None
    extended = Counter[str]()
    for each in profiles:
        extended |= Counter(dict(each.extended))  # keeps the larger amount of each resource
    largest = ResourceProfile(
        cpu_milli=max(each.cpu_milli for each in profiles),
        task_heap_memory_bytes=max(each.task_heap_memory_bytes for each in profiles),
        task_off_heap_memory_bytes=max(each.task_off_heap_memory_bytes for each in profiles),
        managed_memory_bytes=max(each.managed_memory_bytes for each in profiles),
        network_memory_bytes=max(each.network_memory_bytes for each in profiles),
        extended=extended_items(extended),
    )
    return MemberRequest(largest, labels, sum(each.count for each in members))


def demand_of(member: MemberRequest) -> Demand:
    """Returns the demand of equal members of a gang."""
    if member.profile is None:
        need = {DEFAULT_SLOTS: 1}
        return Demand(need, need, member.labels)
    pooled, separate = (
        {**in_grains(shared_booking(member.profile, pools, member.best_effort)), SLOTS: 1}
        for pools in (False, True)
    )
    return Demand(pooled, separate, member.labels)


def _could_be_provided(
    hosts: Hosts,
    elastic: Elastic,
    provisions: Container[str],
    where: Where,
    members: Sequence[MemberRequest],
) -> bool:
    """Returns whether all members fit together on new executors and on executors that stay. An
    executor stays if no provider started it. All executors count as empty.
    """
    gang = GangDemand(
        {kind: each.count for kind, each in enumerate(members)}, where.placement, where.label
    )
    constrained: dict[int, ResourceRequest] = {
        kind: each
        for kind, each in enumerate(members)
        # If some known executors align every slot to NUMA nodes, new executors possibly do this,
        # too.
        if each.topology_constrained or hosts.indexes.aligning
    }
    demands = [demand_of(each) for each in members]
    capacities = {
        name: with_counts(capacity, elastic.seen.get(name), constrained, together([gang]))
        for name, capacity in elastic.capacities.items()
    }
    # The backlog contains only this gang, because feasibility depends only on the sizes of
    # executors.
    backlog = Backlog(
        demands=[
            counted(each, kind) if kind in constrained else each
            for kind, each in enumerate(demands)
        ],
        queue=[],
        supplies=[
            Supply(capacities[name], each.total, each.cost, each.count_max or UNBOUNDED)
            for name, each in elastic.shapes.items()
        ],
        gangs=[gang],
        limits=_room_below_maximum(hosts, elastic, provisions),
    )
    # First make a plan with only new executors, which are usually sufficient. A plan with the known
    # executors, of which there can be many, would take longer.
    if make_plan(backlog).gangs:
        return True
    staying = _staying(hosts, provisions, gang, demands, constrained)
    return bool(staying) and bool(make_plan(replace(backlog, hosts=staying)).gangs)


def _room_below_maximum(
    hosts: Hosts, elastic: Elastic, provisions: Container[str]
) -> dict[str, int]:
    """Returns the amounts that are allowed to be requested: the maximum without the amounts of the
    executors that stay.
    """
    limits = elastic.provisioning.total_max
    there = total_of(
        host.executor.registration.total
        for name, host in (hosts.items() if limits else ())
        if host.online and name not in provisions
    )
    # No provider started the executors that stay. So the maximum does not limit them, and their
    # amounts can be above the maximum.
    return {name: max(0, most - there.get(name, 0)) for name, most in limits.items()}


def _staying(
    hosts: Hosts,
    provisions: Container[str],
    gang: GangDemand,
    demands: Sequence[Demand],
    constrained: Mapping[int, ResourceRequest],
) -> dict[str, Capacity]:
    """Returns executors that stay and could serve a member when they are empty. For each kind of
    members, the search stops when it has found as many executors as the gang has members.
    """
    if gang.placement is GangPlacement.SAME_EXECUTOR:
        return {}
    index = hosts.indexes.main
    same_label = gang.placement is GangPlacement.SAME_LABEL
    most = None if same_label else sum(gang.members.values())
    found: set[str] = set()
    for demand in demands:
        needs = [
            {ONLINE + name: amount for name, amount in need.items()}
            for need in (demand.pooled, demand.separate)
        ]
        able = (
            index.ids[at]
            for at in index.covering(needs)
            if index.ids[at] not in provisions and hosts[index.ids[at]].carries(demand.labels)
        )
        found.update(islice(able, most))
    return {name: _empty(hosts[name], constrained, gang) for name in sorted(found)}


def _empty(host: Host, constrained: Mapping[int, ResourceRequest], gang: GangDemand) -> Capacity:
    slots = host.executor.registration.slots_max or UNBOUNDED
    capacity = Capacity(
        {**in_grains(host.total), SLOTS: slots},
        host.default_need,
        host.labels,
        host.separate_pools,
    )
    if not constrained:
        return capacity
    return with_counts(
        capacity, empty_like(host, host.operator_policy), constrained, [gang.members]
    )

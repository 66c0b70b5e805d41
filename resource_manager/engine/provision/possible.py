"""Whether a gang could be placed as a whole, if executors were asked for."""

from __future__ import annotations

from collections.abc import Sequence

from finegrain.resources import booking, total_of
from resource_manager.engine.gang_books import Where
from resource_manager.engine.gang_books import Wish as GangMembers
from resource_manager.engine.host import Host
from resource_manager.engine.provision.exact import UNBOUNDED
from resource_manager.engine.provision.gang_planning import GangWish
from resource_manager.engine.provision.packing import Capacity, Wish
from resource_manager.engine.provision.planning import Backlog, Supply, make_plan
from resource_manager.engine.queue import DEFAULT_SLOTS, SLOTS, in_grains
from resource_manager.engine.state import State


def gang_could_be_provided(state: State, where: Where, members: Sequence[GangMembers]) -> bool:
    """True if all members could be placed on new executors and on those that are there, were all of
    them empty, and those gone that had been asked for.
    """
    elastic = state.elastic
    hosts = {
        name: host
        for name, host in state.hosts.items()
        if host.online and name not in state.provisions
    }
    there = total_of(host.executor.registration.total for host in hosts.values())
    wish = GangWish(
        {kind: each.count for kind, each in enumerate(members)}, where.placement, where.label
    )
    plan = make_plan(
        Backlog(
            wishes=[wish_of(each) for each in members],
            line=[],
            supplies=[
                Supply(elastic.capacities[n], shape.total, shape.cost, shape.count_max or UNBOUNDED)
                for n, shape in elastic.shapes.items()
            ],
            gangs=[wish],
            hosts={name: _empty(host) for name, host in sorted(hosts.items())},
            limits={
                name: max(0, most - there.get(name, 0))
                for name, most in elastic.provisioning.total_max.items()
            },
        )
    )
    return bool(plan.gangs)


def wish_of(members: GangMembers) -> Wish:
    """Equal members of a gang, as numbers."""
    if members.profile is None:
        need = {DEFAULT_SLOTS: 1}
        return Wish(need, need, members.labels)
    pooled, separate = (
        {**in_grains(booking(members.profile, separate_pools=pools)), SLOTS: 1}
        for pools in (False, True)
    )
    return Wish(pooled, separate, members.labels)


def _empty(host: Host) -> Capacity:
    registration = host.executor.registration
    return Capacity(
        {**in_grains(registration.total), SLOTS: registration.slots_max or UNBOUNDED},
        host.default_need,
        host.labels,
        host.separate_pools,
    )

"""Could a gang ever be placed as a whole, on hosts that are there or on executors to ask for?

Asks the same search that places gangs, about what hosts could give when empty.

Members that differ are placed largest first, so that a gang of such may be called impossible that
somebody could fit in by hand: it would not be placed either.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from finegrain.resources import total_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.hosts.bookings import shared_booking
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import KNOWN, ONLINE, Host
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS, in_grains
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity, Elastic
from resource_manager.engine.placement.feasibility import Feasibility
from resource_manager.engine.placement.gang_search import seek
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.indexes import carries
from resource_manager.engine.planning.exactness import counted, empty_like, offering, together
from resource_manager.engine.planning.gang_planning import GangWish
from resource_manager.engine.planning.packing import Wish
from resource_manager.engine.planning.planning import Backlog, Supply, make_plan
from resource_manager.engine.queue.gangs import MemberRequest, Where
from resource_manager.engine.queue.gangs import MemberRequest as GangMembers


def gang_could_be_provided(
    hosts: Hosts,
    elastic: Elastic,
    provisions: Container[str],
    where: Where,
    members: Sequence[GangMembers],
) -> bool:
    """True if all members could be placed on new executors and on those that are there, were all of
    them empty, and those gone that had been asked for. The indexes must be fresh.
    """
    gang = GangWish(
        {kind: each.count for kind, each in enumerate(members)}, where.placement, where.label
    )
    exact: dict[int, ResourceRequest] = {
        kind: each
        for kind, each in enumerate(members)
        if each.topology_constrained or hosts.indexes.aligning
    }
    wishes = [wish_of(each) for each in members]
    backlog = Backlog(
        wishes=[counted(w, kind) if kind in exact else w for kind, w in enumerate(wishes)],
        line=[],
        supplies=[
            Supply(
                offering(elastic.capacities[n], elastic.seen.get(n), exact, together([gang])),
                shape.total,
                shape.cost,
                shape.count_max or UNBOUNDED,
            )
            for n, shape in elastic.shapes.items()
        ],
        gangs=[gang],
        limits=_room_beside_those_there(hosts, elastic, provisions),
    )
    if make_plan(backlog).gangs:  # most often, and the hosts may be many
        return True
    retained_total = _staying(hosts, provisions, gang, wishes, exact)
    return bool(retained_total) and bool(make_plan(replace(backlog, hosts=retained_total)).gangs)


def wish_of(members: GangMembers) -> Wish:
    """Equal members of a gang, as numbers."""
    if members.profile is None:
        need = {DEFAULT_SLOTS: 1}
        return Wish(need, need, members.labels)
    pooled, separate = (
        {**in_grains(shared_booking(members.profile, pools, members.best_effort)), SLOTS: 1}
        for pools in (False, True)
    )
    return Wish(pooled, separate, members.labels)


def _room_beside_those_there(
    hosts: Hosts, elastic: Elastic, provisions: Container[str]
) -> dict[str, int]:
    limits = elastic.provisioning.total_max
    if not limits:
        return {}
    there = total_of(
        host.executor.registration.total
        for name, host in hosts.items()
        if host.online and name not in provisions
    )
    return {name: max(0, most - there.get(name, 0)) for name, most in limits.items()}


def _staying(
    hosts: Hosts,
    provisions: Container[str],
    gang: GangWish,
    wishes: Sequence[Wish],
    exact: Mapping[int, ResourceRequest],
) -> dict[str, Capacity]:
    """Executors that stay and could serve a member when empty: as many as there are members are
    enough, unless they have to share a label. (None where all go to one: whoever asks has looked
    at those by themselves.)
    """
    if gang.placement is GangPlacement.SAME_EXECUTOR:
        return {}
    index = hosts.indexes.main
    same_label = gang.placement is GangPlacement.SAME_LABEL
    most = None if same_label else sum(gang.members.values())
    found: set[str] = set()
    for wish in wishes:
        needs = [
            {ONLINE + name: amount for name, amount in need.items()}
            for need in (wish.pooled, wish.separate)
        ]
        able = (
            index.ids[at]
            for at in index.covering(needs)
            if index.ids[at] not in provisions and carries(hosts[index.ids[at]], wish.labels)
        )
        found.update(islice(able, most))
    return {name: _empty(hosts[name], exact, gang) for name in sorted(found)}


def _empty(host: Host, exact: Mapping[int, ResourceRequest], gang: GangWish) -> Capacity:
    registration = host.executor.registration
    capacity = Capacity(
        {**in_grains(host.total), SLOTS: registration.slots_max or UNBOUNDED},
        host.default_need,
        host.labels,
        host.separate_pools,
    )
    if not exact:
        return capacity
    return offering(capacity, empty_like(host, host.operator_policy), exact, [gang.members])


def gang_feasibility(
    hosts: Hosts,
    elastic: Elastic,
    provisions: Container[str],
    where: Where,
    wishes: Sequence[MemberRequest],
) -> Feasibility:
    """What the sizes of the hosts, and of those that could be asked for, say about a gang as a
    whole; the indexes must be fresh.

    Args:
        hosts: all of them.
        elastic: what can be asked for.
        provisions: hosts that were asked for, and may be gone by then.
        where: members go in relation to each other.
        wishes: what they ask for.
    """
    provided = bool(elastic.provisioning)
    if not hosts and not provided:
        return Feasibility.POSSIBLE
    if seek(hosts, where, wishes, prefix=ONLINE) is not None:
        return Feasibility.POSSIBLE
    if provided and gang_could_be_provided(hosts, elastic, provisions, where, wishes):
        return Feasibility.POSSIBLE
    if seek(hosts, where, wishes, prefix=KNOWN) is not None:
        return Feasibility.OFFLINE
    return Feasibility.NEVER

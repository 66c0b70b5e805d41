"""Explains why a gang waits. The explanation has the number of members that fit together now, the
places where they fit, and the changes with which all members would fit.

The explanation uses the search that places gangs (`placement/gangs.py`), but also accepts a result
with only some of the members. If the members differ and not all of them fit, two searches are made:
one with the largest members first, and one with the smallest members first. The explanation shows
the better result.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from finegrain.resources import shortfall
from finegrain.values.explanations import GangSpot
from finegrain.values.states import GangPlacement
from resource_manager.engine.model.entities import GangSpec, Request
from resource_manager.engine.model.scheduling_key import cpu_key
from resource_manager.engine.model.texts import amount_text
from resource_manager.engine.placement.cpu_constraint import required_policies, with_preferred
from resource_manager.engine.placement.feasibility import Feasibility
from resource_manager.engine.placement.gangs import STEPS_MAX, GangSearch, seek
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.queue.gangs import MemberRequest, WaitingGang, Where
from resource_manager.engine.state import State

SPOTS_MAX = 5
"""The largest number of places (executors or label values) that are shown. The best place comes
first.
"""

SPOTS_SEARCHED_MAX = 200
"""The largest number of places (executors or label values) that are searched. Places with room for
the largest numbers of members of the smallest size are searched first.
"""

SEARCHES_MAX = 2_000
"""The product of two numbers is at most this: the number of searched places, and the number of
kinds of members. In each place, each kind needs a search, and the engine handles no events during
these searches. Example: if a gang has 100 kinds of members, 20 places are searched.
"""


@dataclass(frozen=True, slots=True)
class GangExplanation:
    """The explanation of a gang. This class mirrors the message of the same name in the protocol.

    Attributes:
        placeable: the number of members that fit together now, in the best place.
        deadline_time_ms: the wall clock time at which the gang times out. None if the gang has no
            timeout.
    """

    gang: GangSpec
    members: int
    placeable: int
    spots: list[GangSpot] = field(default_factory=list)
    summary: str = ""
    deadline_time_ms: int | None = None


def explain_gang(state: State, request: Request) -> GangExplanation | None:
    """Explains the gang of a request. The result is None if the request has no gang, or if its gang
    is not queued.
    """
    waiting = state.gangs.waiting.get(request.spec.gang_id)
    if waiting is None:
        return None
    # Capacity that is reserved for this gang counts as free.
    reservation = state.reservations.by_number.get(waiting.gang.arrival_number)
    with _without_own_reservation(state.hosts, reservation):
        return _explained(state, waiting)


@contextmanager
def _without_own_reservation(all_hosts: Hosts, reservation: Reservation | None) -> Iterator[None]:
    """Makes the capacity that is reserved for a gang count as free inside the `with` block.

    The function skips hosts that have changed since the last refresh of the indexes. If the
    function updated the indexes for such a host, the next cycle would not notice that the host has
    more free capacity.
    """
    names = reservation.hosts if reservation is not None else ()
    hosts = [all_hosts[name] for name in names if name not in all_hosts.touched]
    # All values are read before the first value is changed, so that `finally` can restore each
    # value.
    holds = [host.reserved for host in hosts]
    # The values are restored in `finally`, because the scheduling cycle must find the hosts
    # unchanged even after an error.
    try:
        for host in hosts:
            host.reserved = None
            all_hosts.indexes.follow(host)
        yield
    finally:
        for host, hold in zip(hosts, holds, strict=True):
            host.reserved = hold
            all_hosts.indexes.follow(host)


def _explained(state: State, waiting: WaitingGang) -> GangExplanation:
    """Searches for free capacity for a queued gang, and describes the result."""
    gang, requests = waiting.gang, state.gang_moves.current_requests(waiting)
    search = GangSearch(state.hosts, waiting.kind.where, requests)
    try:
        spots = _spots(state.hosts, search, gang.spec)
    finally:
        # Give back the capacity that the search has taken tentatively in the shared indexes.
        search.drop()
    deadline_time_ms = None
    # The deadline is for people, so it is a wall clock time.
    if gang.spec.timeout_ms is not None:
        deadline_time_ms = gang.waiting_since_time_ms + gang.spec.timeout_ms
    return GangExplanation(
        gang=gang.spec,
        members=len(waiting.members),
        placeable=spots[0].placeable if spots else 0,
        spots=spots,
        summary=_status_text(state, waiting, spots)
        or _summary(state.hosts, waiting.kind.where, requests, spots, unknown=search.cut_off),
        deadline_time_ms=deadline_time_ms,
    )


def _spots(hosts: Hosts, search: GangSearch, spec: GangSpec) -> list[GangSpot]:
    """Returns the places where the largest numbers of members fit together, the best place first.
    Leaves out a place where no member fits.
    """
    # At least two places are searched, even if the gang has very many kinds of members.
    most = max(2, min(SPOTS_SEARCHED_MAX, SEARCHES_MAX // len(search.members)))
    match spec.placement:
        case GangPlacement.ANYWHERE | GangPlacement.SPREAD:
            found = [GangSpot("", search.most_within())]
        case GangPlacement.SAME_EXECUTOR:
            # Each search is costly. So only the executors with room for the largest numbers of
            # members of the smallest size are searched.
            hosts_with_room = heapq.nlargest(
                most, search.hosts_with_room(), key=lambda each: each[1]
            )
            found = [GangSpot(name, search.most_on(name)) for name, _ in hosts_with_room]
        case GangPlacement.SAME_LABEL:
            room = Counter[str]()
            for name, fitting in search.hosts_with_room():
                if (value := hosts[name].labels.get(spec.label)) is not None:
                    room[value] += fitting
            found = [
                GangSpot(value, search.most_within(((spec.label, value),)))
                for value in heapq.nlargest(most, room, key=room.__getitem__)
            ]
    # Equally good places are ordered by name, so that the same state always gives the same result.
    best = heapq.nsmallest(SPOTS_MAX, found, key=lambda spot: (-spot.placeable, spot.name))
    return [spot for spot in best if spot.placeable]


def _status_text(state: State, waiting: WaitingGang, spots: Sequence[GangSpot]) -> str:
    """Describes why a gang waits, if the cause is not a lack of capacity. The result is empty if
    the cause is a lack of capacity.
    """
    # The scheduling cycle checks these causes in the same order.
    if not waiting.tried:
        return "has just arrived and was not considered yet"
    verdict = state.waiting_reasons.kind_feasibility(waiting.kind)
    if verdict is Feasibility.NEVER:
        return "could not be placed as a whole even if all known executors were empty"
    if verdict is Feasibility.OFFLINE:
        return "could be placed only with executors that are lost, draining or unreachable"
    members = len(waiting.members)
    if state.dependencies.awaited(waiting.gang.job_id):
        return f"all {members} members wait, because their job waits for other jobs"
    # A quota is the cause only if all members fit.
    if spots and spots[0].placeable == members and state.quotas.gang_block(waiting) is not None:
        where = _where(waiting.kind.where, spots)
        return (
            f"all {members} members fit now{where}, but the maximum of a resource group blocks them"
        )
    return ""


def _summary(
    hosts: Hosts,
    where: Where,
    member_requests: Sequence[MemberRequest],
    spots: Sequence[GangSpot],
    *,
    unknown: bool,
) -> str:
    """Describes how many members fit now, and the changes with which all members would fit.

    Args:
        hosts: all hosts.
        where: the rule for the hosts of the members, such as SPREAD.
        member_requests: the requests of the members.
        spots: the places where the largest numbers of members fit, the best place first.
        unknown: True if the search was cut off. It is then unknown whether all members fit.
    """
    members = sum(each.count for each in member_requests)
    placeable = spots[0].placeable if spots else 0
    at = _where(where, spots)
    parts = [f"{placeable} of {members} members fit now{at}" if placeable else "no member fits now"]
    if placeable == members:
        parts = [
            f"all {members} members fit now{at}; the next scheduling cycle tries to place them"
        ]
    else:
        if unknown:
            parts.append(
                f"whether all {members} fit is unknown: the search ended after {STEPS_MAX} steps"
            )
        parts += _remedies(hosts, where, member_requests, spots)
    if any(member.elsewhere for member in member_requests):
        parts.append("executors that still have older slots of its members are left out")
    if any(hosts[name].refuses(each) for name in hosts.refusing for each in member_requests):
        parts.append("an executor that refused an equal slot recently is tried again later")
    return "; ".join(parts)


def _where(where: Where, spots: Sequence[GangSpot]) -> str:
    if not spots:
        return ""
    match where.placement:
        case GangPlacement.SAME_EXECUTOR:
            return f" on {spots[0].name}, the best executor"
        case GangPlacement.SAME_LABEL:
            return f" with {where.label}={spots[0].name}, the best value"
        case GangPlacement.SPREAD:
            return ", each on a separate executor"
        case GangPlacement.ANYWHERE:
            return ""


def _remedies(
    hosts: Hosts,
    where: Where,
    member_requests: Sequence[MemberRequest],
    spots: Sequence[GangSpot],
) -> list[str]:
    """Describes changes with which all members would fit."""
    missing = sum(each.count for each in member_requests) - (spots[0].placeable if spots else 0)
    found = []
    match where.placement:
        case GangPlacement.SPREAD:
            more = "1 more executor" if missing == 1 else f"{missing} more executors each"
            found.append(f"all would fit if {more} had room for one member")
        case GangPlacement.SAME_EXECUTOR:
            found += _lack(hosts, member_requests, spots)
        case _:
            more = "1 more member" if missing == 1 else f"{missing} more members"
            label = _label_text(where, spots)
            found.append(f"all would fit if there were room for {more}{label}")
    if where.placement is not GangPlacement.ANYWHERE:
        # One more search for the whole gang is costly, so it is made only if the placement rule
        # restricts the gang.
        anywhere = Where(GangPlacement.ANYWHERE)
        if seek(hosts, anywhere, member_requests) is not None:
            found.append("all would fit now if each member could be on any executor")
    return found + _with_preferred_policies(hosts, where, member_requests)


def _with_preferred_policies(
    hosts: Hosts, where: Where, member_requests: Sequence[MemberRequest]
) -> list[str]:
    """Describes one required policy that is the only obstacle. If this policy were only preferred,
    all members would fit now. If there are several such policies, the text describes the first
    policy.
    """
    required = [
        required_policies(member.cpus[0]) for member in member_requests if member.cpus is not None
    ]
    # One policy is changed at a time, to find the smallest change.
    for name in dict.fromkeys(name for names in required for name in names):
        if (
            seek(hosts, where, [_with_preferred(member, name) for member in member_requests])
            is not None
        ):
            return [f"all would fit now if {name} were preferred instead of required"]
    return []


def _with_preferred(member: MemberRequest, name: str) -> MemberRequest:
    if member.cpus is None:
        return member
    policy, limit = member.cpus
    return replace(member, cpus=cpu_key(with_preferred(policy, [name]), limit))


def _label_text(where: Where, spots: Sequence[GangSpot]) -> str:
    return f" with {where.label}={spots[0].name}" if where.label and spots else ""


def _lack(
    hosts: Hosts, member_requests: Sequence[MemberRequest], spots: Sequence[GangSpot]
) -> list[str]:
    """Describes the capacity that the best executor lacks for all members."""
    if not spots:
        return []
    host = hosts[spots[0].name]
    needed: dict[str, int] = {}
    for member in member_requests:
        booked = host.booking_for(member)
        for name, amount in booked.items():
            needed[name] = needed.get(name, 0) + amount * member.count
    # The caller knows that not all members fit, so a comparison of sums is enough to find missing
    # amounts.
    missing = shortfall(needed, host.free())
    texts = [f"{amount_text(name, amount)} more" for name, amount in missing.items()]
    slots = sum(member.count for member in member_requests) - host.slots_left()
    texts += [f"room for {slots} more slots"] if slots > 0 else []
    if texts:
        return [f"all would fit if {host.host_id} had {' and '.join(texts)}"]
    # All amounts are free, so the cpus must be the obstacle.
    if any(host.needs_topology(member) for member in member_requests):
        return [f"{host.host_id} has the amounts, but no cpus and NUMA nodes that suit all members"]
    return []

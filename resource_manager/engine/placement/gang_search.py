"""Hosts for all members of a gang, or for none.

- SAME_EXECUTOR: one search for the sum of all members.
- SPREAD: a bipartite matching of members and hosts (`gang_matching.py`), so it is exact.
- ANYWHERE: exact where all members take the same (the same matching, with as many places on a host
  as fit there); else first-fit decreasing, largest first (D. S. Johnson, 1973), which may miss a
  way to fit in what is nearly full.
- SAME_LABEL: ANYWHERE on the hosts of one value of the label, value by value. Only values that have
  room for as many of the smallest are tried, those first that have the least room to spare
  ("spread": the most).

A search in vain costs what the hosts with room for a member cost, and is remembered with the
gang's kind: until a host grows that has room for a member, gangs of the kind are passed by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from finegrain.resources import larger_of
from finegrain.values.states import GangPlacement
from resource_manager.engine.model.scheduling_key import SLOTS
from resource_manager.engine.placement.gang_matching import Candidates, Matching
from resource_manager.engine.placement.gang_room import Ask, Room, Share
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.search import GROWN_CHECKED_ONE_BY_ONE
from resource_manager.engine.queue.gangs import (
    FailedSearch,
    GangKind,
    MemberRequest,
    WaitingGang,
    Where,
)

VALUES_LOOKED_FURTHER = 128
"""Hosts with room that are looked at for a better value of the label, once one is found."""


def passed_by(hosts: Hosts, kind: GangKind) -> bool:
    """True if gangs of this kind were looked for in vain, and nothing grew since that helps."""
    grown = _grown_since(hosts, kind.failed_search)
    if grown is None or _helps(hosts, kind, grown):
        return False
    kind.failed_search = _now(hosts)
    return True


def find_together(
    hosts: Hosts, waiting: WaitingGang, wishes: tuple[MemberRequest, ...]
) -> list[Share] | None:
    """Hosts for all members of a gang that waits, as a pass has left them; None: there are none.

    `wishes` are those of its kind, or the same with the hosts that hold older slots of the members.
    Takes nothing. The indexes must be fresh but for what the pass has taken.
    """
    kind = waiting.kind
    if wishes == kind.member_requests:
        grown = _grown_since(hosts, kind.failed_search)
        found = seek(hosts, kind.where, wishes, among=grown, may_build=True)
        kind.failed_search = _now(hosts) if found is None else None
        return found
    if waiting.failed_search is not None and waiting.failed_search[0] == wishes:
        grown = _grown_since(hosts, waiting.failed_search[1])
        if grown is not None and not _helps(hosts, kind, grown):
            return None
    found = seek(hosts, kind.where, wishes, may_build=True)
    waiting.failed_search = (wishes, _now(hosts)) if found is None else None
    return found


def seek(
    hosts: Hosts,
    where: Where,
    wishes: Sequence[MemberRequest],
    *,
    prefix: str = "",
    among: Iterable[str] | None = None,
    may_build: bool = False,
    barred: Sequence[frozenset[str]] = (),
) -> list[Share] | None:
    """Hosts for as many slots as are wished for, or None.

    Args:
        hosts: all of them; nothing is changed.
        where: they go in relation to each other.
        wishes: what is asked for.
        prefix: of the index's columns: empty for what is free now, else `KNOWN` or `ONLINE`.
        among: without these hosts there is no way, as is known.
        may_build: hosts of labels may get an index of their own.
        barred: hosts that must not be chosen, by wish, beside those that each bars itself.
    """
    room = Room(hosts, prefix, may_build=may_build)
    asks = [room.ask(number, wish) for number, wish in enumerate(wishes)]
    for ask, those in zip(asks, barred, strict=False):
        ask.barred |= those
    try:
        placed = _placed(room, asks, where, among)
        return list(room.shares) if placed == wanted(asks) else None
    finally:
        room.put_back()


def _placed(room: Room, asks: list[Ask], where: Where, among: Iterable[str] | None) -> int:
    match where.placement:
        case GangPlacement.SAME_EXECUTOR:
            return on_one_host(room, asks)
        case GangPlacement.SPREAD:
            return spread_out(room, asks, room.hosts)
        case GangPlacement.SAME_LABEL:
            return _within_a_value(room, asks, where.label, among)
        case GangPlacement.ANYWHERE:
            return together(room, asks, room.hosts)


def wanted(asks: Iterable[Ask]) -> int:
    """How many slots are asked for."""
    return sum(ask.count for ask in asks)


def on_one_host(room: Room, asks: list[Ask]) -> int:
    """Takes room for all on one host, or nothing. Answers with how many were placed."""
    whole = sum_of(asks)
    if whole is None:
        return 0
    best = room.best(whole, room.hosts(whole))
    if not best:
        return 0
    for ask in asks:
        room.take(ask, best[0], ask.count)
    return wanted(asks)


def spread_out(room: Room, asks: list[Ask], hosts: Candidates) -> int:
    """Takes room for each on a host of its own, for as many as possible."""
    if len(asks) > 1:
        return _match(room, asks, hosts, one_each=True)
    ask = asks[0]
    chosen = room.best(ask, hosts(ask), ask.count)[: ask.count]
    for host_id in chosen:
        room.take(ask, host_id, 1)
    return len(chosen)


def together(room: Room, asks: list[Ask], hosts: Candidates) -> int:
    """Takes room for all wherever it is; fewer, if it is not there."""
    if len(asks) == 1:
        return _fill(room, asks[0], hosts(asks[0]))
    first = asks[0]
    if all(_takes_the_same(each, first) for each in asks):
        return _match(room, asks, hosts)
    largest_first = sorted(asks, key=room.size, reverse=True)
    compared = room.compared
    placed = sum(_fill(room, ask, hosts(ask)) for ask in largest_first)
    if placed < wanted(asks) and compared > 1:  # what suits best may be in the way: as fits first
        room.put_back()
        room.compared = 1
        placed = sum(_fill(room, ask, hosts(ask)) for ask in largest_first)
        room.compared = compared
    return placed


def _takes_the_same(one: Ask, other: Ask) -> bool:
    """True if both may change places on any host."""
    if (one.pooled, one.separate) != (other.pooled, other.separate):
        return False
    return [wish.cpus for wish, _ in one.wishes] == [wish.cpus for wish, _ in other.wishes]


def _within_a_value(room: Room, asks: list[Ask], label: str, among: Iterable[str] | None) -> int:
    for value in _values(room, asks, label, among):
        carried = label, value
        placed = together(room, asks, lambda ask, at=carried: room.hosts_with(ask, at))  # type: ignore[misc]
        if placed == wanted(asks):
            return placed
        room.put_back()
    return 0


def _values(room: Room, asks: list[Ask], label: str, among: Iterable[str] | None) -> Iterator[str]:
    """Values of the label that have room for as many of the smallest, some at a time and of those
    the best first.
    """
    least = least_of(asks)
    patience = 1 if room.any_will_do else VALUES_LOOKED_FURTHER
    if among is not None:
        grown = {room.host(each).labels.get(label) for each in among if room.fit(least, each)}
        yield from sorted(value for value in grown if value is not None)
        return
    most = wanted(asks)
    fits: dict[str, int] = {}
    promising: dict[str, None] = {}
    tried: set[str] = set()
    looked_further = 0
    for host_id in room.hosts(least):
        value = room.host(host_id).labels.get(label)
        if value is None or value in tried:
            continue
        fits[value] = fits.get(value, 0) + room.fit(least, host_id)
        if fits[value] >= most:
            promising[value] = None
        looked_further += bool(promising)
        if len(promising) > room.compared or looked_further == patience:
            yield from _in_order(room, promising, fits)
            tried.update(promising)
            promising.clear()
            looked_further = 0
    yield from _in_order(room, promising, fits)


def _in_order(room: Room, values: Iterable[str], fits: dict[str, int]) -> list[str]:
    sign = -1 if room.spreads else 1
    return sorted(values, key=lambda value: (sign * fits[value], value))


def _fill(room: Room, ask: Ask, hosts: Iterable[str]) -> int:
    """As many as fit on each host, those that suit best first. "spread": one on each, and again."""
    left = ask.count
    with_room = iter(hosts)
    if room.spreads:
        some = list(islice(with_room, left))
        while left and (some := [each for each in some if room.fit(ask, each)]):
            for host_id in some[:left]:
                room.take(ask, host_id, 1)
            left -= min(left, len(some))
        return ask.count - left
    while left and (window := room.best(ask, with_room)):
        for host_id in window:
            if share := min(left, room.fit(ask, host_id)):
                room.take(ask, host_id, share)
                left -= share
    return ask.count - left


def _match(room: Room, asks: list[Ask], hosts: Candidates, *, one_each: bool = False) -> int:
    matching = Matching(room, asks, hosts, one_each=one_each)
    matching.run()
    room.put_back()
    for host_id, here in matching.on.items():
        for at, count in here.items():
            room.take(asks[at], host_id, count)
    return sum(share.count for share in room.shares)


def sum_of(asks: Sequence[Ask]) -> Ask | None:
    """All of them as one; None: no host can carry all the labels."""
    labels = dict(each for ask in asks for each in ask.labels)
    if any(labels[name] != value for ask in asks for name, value in ask.labels):
        return None
    pooled: dict[str, int] = {}
    separate: dict[str, int] = {}
    for ask in asks:
        for whole, need in ((pooled, ask.pooled), (separate, ask.separate)):
            for name, amount in need.items():
                whole[name] = whole.get(name, 0) + amount * ask.count
    defaults = sum(ask.defaults * ask.count for ask in asks)
    barred = frozenset[str]().union(*(ask.barred for ask in asks))
    at_least: dict[str, int] = {}
    for ask in asks:
        at_least = larger_of(at_least, ask.at_least)
    wishes = tuple((wish, each * ask.count) for ask in asks for wish, each in ask.wishes)
    carried = tuple(sorted(labels.items()))
    return Ask(0, 1, pooled, separate, defaults, carried, barred, at_least, wishes)


def least_of(asks: Sequence[Ask]) -> Ask:
    """The smallest in every dimension, by amounts: where it does not fit, none of them does."""
    labels = set(asks[0].labels).intersection(*(ask.labels for ask in asks))
    barred = frozenset(asks[0].barred).intersection(*(ask.barred for ask in asks))
    return Ask(
        0,
        wanted(asks),
        _least([ask.pooled for ask in asks]),
        _least([ask.separate for ask in asks]),
        min(ask.defaults for ask in asks),
        tuple(sorted(labels)),
        barred,
    )


def _least(needs: Sequence[dict[str, int]]) -> dict[str, int]:
    common = set(needs[0]).intersection(*needs[1:])
    return {name: min(need[name] for need in needs) for name in sorted(common)} or {SLOTS: 1}


def _now(hosts: Hosts) -> FailedSearch:
    main = hosts.indexes.main
    return FailedSearch(main.version, len(main.grown))


def _grown_since(hosts: Hosts, in_vain: FailedSearch | None) -> list[str] | None:
    """Hosts that grew since a search in vain; None: it was never searched, or they are too many."""
    main = hosts.indexes.main
    if in_vain is None or in_vain.version != main.version:
        return None
    grown = set(main.grown[in_vain.log_length :])
    if len(grown) > GROWN_CHECKED_ONE_BY_ONE:
        return None
    return [main.ids[at] for at in sorted(grown)]


def _helps(hosts: Hosts, kind: GangKind, grown: Sequence[str]) -> bool:
    """True if one of these hosts has room for a member; for all, where they go to one host."""
    if not grown:
        return False
    room = Room(hosts)
    asks = [room.ask(number, wish) for number, wish in enumerate(kind.member_requests)]
    if kind.where.placement is GangPlacement.SAME_EXECUTOR:
        whole = sum_of(asks)
        return whole is not None and any(room.fit(whole, each) for each in grown)
    least = least_of(asks)
    return any(room.fit(least, each) for each in grown)

"""Two exact algorithms that place members of a gang that compete for hosts.

`Matching` is for hosts on which members take one place each: with one member a host, or with equal
members. `Packing` is for members of different sizes that share hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.ledger import Mark
from resource_manager.engine.placement.tentative import Members, TentativePlacer
from resource_manager.engine.queue.gangs import Share


class Matching:
    """Places as many members as possible on hosts with a number of places each.

    Each member takes a place that is left. One that finds none looks for a chain of members that
    move on, each to a host that can have it, until the last one finds a place that is left: an
    augmenting path (H. W. Kuhn, "The Hungarian method for the assignment problem", 1955). If there
    is none, no matching has more members.

    Example: A fits only host 1, B fits hosts 1 and 2, and B is on host 1. A takes the place of B,
    which moves on to host 2.

    Hosts without a place left are closed, so that no search looks at them again.
    """

    def __init__(
        self, placer: TentativePlacer, members: Sequence[Members], *, one_each: bool
    ) -> None:
        """Begins.

        Args:
            placer: places tentatively.
            members: those with the least choice first.
            one_each: a host takes one member. Otherwise all members are equal but for their labels
                and barred hosts, and a host takes as many as fit.
        """
        self._placer = placer
        self._members = members
        self._one_each = one_each
        self._start = placer.mark()
        self._hosts = [placer.hosts(each) for each in members]
        self._left: dict[str, int] = {}  # places left on hosts that have members
        self._on: dict[str, Counter[int]] = {}  # members by host, by position in `_members`

    def run(self, *, partly: bool) -> list[Share]:
        """Returns hosts for as many members as possible; if not `partly`, for none or all."""
        # Ends at the first member without a place, unless a part of them is wanted.
        found = all(
            self._place(at) or self._place_instead(at) or partly
            for at, members in enumerate(self._members)
            for _ in range(members.count)
        )
        # The caller gets only shares; what was closed for this search is given back.
        self._placer.reopen()
        return [
            Share(self._members[at].number, host_id, count)
            for host_id, here in (self._on.items() if found else ())
            for at, count in here.items()
            if count
        ]

    def _place(self, at: int) -> bool:
        """Places a member on a host with a place left. Returns False if there is none."""
        host_id = self._free_host(at)
        if host_id is None:
            return False
        self._on[host_id][at] += 1
        self._left[host_id] -= 1
        if not self._left[host_id]:
            # Without room, it is found by no search for other members.
            del self._left[host_id]
            self._placer.close(host_id)
        return True

    def _place_instead(self, start: int) -> bool:
        """Places a member by moving others along a chain. Returns False if there is no chain."""
        self._placer.roll_back(self._start)  # `room` must tell what hosts had at first
        came: dict[int, tuple[int, str]] = {}  # which member takes the place of another, and where
        to_try, seen, unseen = [start], {start}, dict.fromkeys(self._on)
        # Breadth first: the list grows while it is iterated.
        for at in to_try:
            if self._place(at):
                moved = at
                # Backwards along the chain, each member takes the place of the one that moved on.
                while moved != start:
                    before, host_id = came[moved]
                    self._on[host_id][moved] -= 1
                    self._on[host_id][before] += 1
                    moved = before
                return True
            for host_id in [each for each in unseen if self._could_have(each, at)]:
                # Once a host was reached, all its members are listed, so a second visit adds none.
                del unseen[host_id]
                for other, count in self._on[host_id].items():
                    if count and other not in seen:
                        seen.add(other)
                        came[other] = at, host_id
                        to_try.append(other)
        return False

    def _free_host(self, at: int) -> str | None:
        for host_id in self._left:
            if self._could_have(host_id, at):
                return host_id
        for host_id in self._hosts[at]:
            if host_id not in self._on:
                self._left[host_id] = self._places(host_id, at)
                self._on[host_id] = Counter()
                return host_id
        return None

    def _places(self, host_id: str, at: int) -> int:
        if self._one_each:
            return 1
        most = sum(each.count for each in self._members)
        return self._placer.room(self._members[at], host_id, most)

    def _could_have(self, host_id: str, at: int) -> bool:
        """Returns True if a member could be on a host instead of another one."""
        if self._one_each:
            return self._placer.room(self._members[at], host_id, 1) == 1
        return self._placer.admits(self._members[at], host_id)


class Packing:
    """Places members of different sizes, exactly: depth-first search with backtracking.

    Equal members go to hosts in order, and of hosts that are alike only the first is tried, so that
    no arrangement is tried twice. The problem is NP-hard, so the search is bounded by a number of
    steps; a step is one host tried for one member.

    Attributes:
        steps_left: steps that it may still make.
        cut_off: True if the search used up its steps: whether all members fit is unknown.
    """

    def __init__(self, placer: TentativePlacer, members: Sequence[Members], steps: int) -> None:
        """Begins.

        Args:
            placer: places tentatively; nothing is taken.
            members: the largest first.
            steps: upper limit of steps.
        """
        self.steps_left = steps
        self.cut_off = False
        self._placer = placer
        self._members = [each for each in members for _ in range(each.count)]
        self._able: dict[Members, list[str]] = {}  # hosts with room at the start
        self._served_by: dict[str, tuple[int, ...]] = {}  # which members could go to a host

    def run(self) -> list[Share]:
        """Returns hosts for all members; empty: there are none, or that is unknown."""
        if not self._is_possible():
            return []
        placer, members = self._placer, self._members
        chosen: list[str] = []
        marks: list[Mark] = []
        choices = [self._choices(0, "")]
        while choices:
            if len(chosen) == len(choices):  # everything that follows the last choice was tried
                placer.roll_back(marks.pop())
                chosen.pop()
            host_id = next(choices[-1], None)
            if host_id is None:
                choices.pop()
                continue
            # Books before the next member is tried, so that each choice depends on those before.
            marks.append(placer.mark())
            placer.take(members[len(chosen)], host_id, 1)
            chosen.append(host_id)
            if len(chosen) == len(members):
                pairs = zip(members, chosen, strict=True)
                return [Share(each.number, name, 1) for each, name in pairs]
            choices.append(self._choices(len(chosen), host_id))
        return []

    def _choices(self, at: int, before: str) -> Iterator[str]:
        """Yields the hosts to try for a member, given that of the one before it."""
        members = self._members[at]
        hosts = self._able[members]
        # Only this host and later ones: the same members in another order are the same choice.
        if at and self._members[at - 1] is members:
            hosts = hosts[hosts.index(before) :]
        tried = set[object]()
        for host_id in hosts:
            if not self._step():
                return
            # Hosts are alike if the same members could go there and the same is left.
            state = self._served_by[host_id], self._placer.state(host_id)
            if state not in tried and self._placer.room(members, host_id, 1):
                tried.add(state)
                yield host_id

    def _step(self) -> bool:
        self.steps_left -= 1
        self.cut_off = self.cut_off or self.steps_left < 0
        return not self.cut_off

    def _is_possible(self) -> bool:
        """Finds the hosts that have room for each member. Returns False if some have room nowhere,
        or if all together need more than is free, or if that takes too many steps.
        """
        placer = self._placer
        # The sums come first: they are cheap, and often show that there is no way.
        if not self._is_enough():
            return False
        for members in dict.fromkeys(self._members):
            able, room = self._able.setdefault(members, []), 0
            for host_id in placer.hosts(members):
                if not self._step():
                    return False
                able.append(host_id)
                self._served_by[host_id] = (*self._served_by.get(host_id, ()), members.number)
                # The list of hosts must be complete, but room is counted only until it is enough.
                if room < members.count:
                    room += placer.room(members, host_id, members.count)
            if room < members.count:
                return False
        return True

    def _is_enough(self) -> bool:
        """Returns False if all members together need more than all hosts have free."""
        hosts: list[str] = []
        for host_id, _ in self._placer.roomy(self._members):
            if not self._step():
                return False
            hosts.append(host_id)
        kinds = {self._placer.host(host_id).separate_pools for host_id in hosts}
        needed = Counter[str]()
        for each in self._members if hosts else ():
            needs = [needs_of(each.wanted).amounts[separate] for separate in kinds]
            # Where both kinds of memory pools occur, the lesser need counts: a sum over different
            # hosts must never rule out what fits.
            for name in set(needs[0]).intersection(*needs[1:]):
                needed[name] += min(need[name] for need in needs)
        return bool(hosts) and all(
            sum(self._placer.free(host_id, name) for host_id in hosts) >= amount
            for name, amount in needed.items()
        )

"""Places members of a gang with two exact algorithms when the members compete for the same hosts.

`Matching` is used if each host has a fixed number of places. There is one place per host, or all
members have equal sizes. `Packing` is used if members of different sizes share hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.ledger import Mark
from resource_manager.engine.placement.tentative import Members, TentativePlacer
from resource_manager.engine.queue.gangs import Share


class Matching:
    """Places as many members as possible on hosts. Each host has a fixed number of places.

    Each member takes a free place. If a member finds no free place, the algorithm searches for an
    augmenting path (H. W. Kuhn, "The Hungarian method for the assignment problem", 1955). An
    augmenting path is a chain of members: each member moves to the place of the next member, and
    the last member moves to a free place. If no augmenting path exists, the matching has as many
    members as possible.

    Example: A fits only on host 1. B fits on hosts 1 and 2, and is on host 1. A takes the place of
    B, and B moves to host 2.

    A host without a free place is closed, so that no search visits the host again.
    """

    def __init__(
        self, placer: TentativePlacer, members: Sequence[Members], *, one_each: bool
    ) -> None:
        """Starts the algorithm. No member is placed yet.

        Args:
            placer: the placer that books members tentatively.
            members: the members. The members that fit on the fewest hosts come first.
            one_each: if true, a host takes one member. Otherwise a host takes as many members as
                fit, and all members must have the same size. Their labels and barred hosts can
                differ.
        """
        self._placer = placer
        self._members = members
        self._one_each = one_each
        self._start = placer.mark()
        self._hosts = [placer.hosts(each) for each in members]
        self._left: dict[str, int] = {}  # number of free places, by host that has members
        # by host: the number of members on it, by the position of their entry in `_members`
        self._on: dict[str, Counter[int]] = {}

    def run(self, *, partly: bool) -> list[Share]:
        """Returns hosts for as many members as possible. If `partly` is False, returns hosts for
        all members, or an empty list.
        """
        # If `partly` is False, the search ends at the first member that gets no place.
        found = all(
            self._place(at) or self._place_instead(at) or partly
            for at, members in enumerate(self._members)
            for _ in range(members.count)
        )
        # The hosts were closed only for this search, so open them again.
        self._placer.reopen()
        return [
            Share(self._members[at].number, host_id, count)
            for host_id, here in (self._on.items() if found else ())
            for at, count in here.items()
            if count
        ]

    def _place(self, at: int) -> bool:
        """Places a member on a host with a free place. Returns False if no such host exists."""
        host_id = self._free_host(at)
        if host_id is None:
            return False
        self._on[host_id][at] += 1
        self._left[host_id] -= 1
        if not self._left[host_id]:
            # Close the host, so that searches for other members do not find it.
            del self._left[host_id]
            self._placer.close(host_id)
        return True

    def _place_instead(self, start: int) -> bool:
        """Places a member by moving other members along an augmenting path. Returns False if no
        such path exists.
        """
        # The following calls of `room` must compute with the capacity at the start of the search.
        self._placer.roll_back(self._start)
        # for each member: the other member that would take its place, and the host of the place
        parent: dict[int, tuple[int, str]] = {}
        to_try, seen, unseen = [start], {start}, dict.fromkeys(self._on)
        # Search breadth first: the list grows while the loop iterates over it.
        for at in to_try:
            if self._place(at):
                moved = at
                # Go back along the path: each member takes the place of the next member.
                while moved != start:
                    before, host_id = parent[moved]
                    self._on[host_id][moved] -= 1
                    self._on[host_id][before] += 1
                    moved = before
                return True
            for host_id in [each for each in unseen if self._could_have(each, at)]:
                # The following loop lists all members of the host, so a second visit would add no
                # member.
                del unseen[host_id]
                for other, count in self._on[host_id].items():
                    if count and other not in seen:
                        seen.add(other)
                        parent[other] = at, host_id
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
        """Returns True if a member could take the place of another member on a host."""
        if self._one_each:
            return self._placer.room(self._members[at], host_id, 1) == 1
        return self._placer.admits(self._members[at], host_id)


class Packing:
    """Places members of different sizes, by depth-first search with backtracking (Knuth, "The Art
    of Computer Programming", volume 4B, section 7.2.2). The search is exact.

    Two rules prevent the search from trying equal arrangements twice. First, equal members go to
    hosts in the order of the hosts. Second, of several hosts in the same state, only the first host
    is tried. The problem is NP-hard, so the number of steps is limited. Each step tries one host
    for one member.

    Attributes:
        steps_left: the number of steps that the search is still allowed to make.
        cut_off: True if the search used up its steps, so that it is unknown whether all members
            fit.
    """

    def __init__(self, placer: TentativePlacer, members: Sequence[Members], steps: int) -> None:
        """Starts the algorithm. No member is placed yet.

        Args:
            placer: the placer that books members tentatively. The placer must have booked nothing
                yet.
            members: the members, the largest first.
            steps: the largest number of steps of the search.
        """
        self.steps_left = steps
        self.cut_off = False
        self._placer = placer
        self._members = [each for each in members for _ in range(each.count)]
        self._able: dict[Members, list[str]] = {}  # hosts with room at the start
        # For each host, the members that it could serve.
        self._served_by: dict[str, tuple[int, ...]] = {}

    def run(self) -> list[Share]:
        """Returns hosts for all members. The result is empty if no arrangement exists, or if the
        search was cut off.
        """
        if not self._is_possible():
            return []
        placer, members = self._placer, self._members
        chosen: list[str] = []
        marks: list[Mark] = []
        choices = [self._choices(0, "")]
        while choices:
            if len(chosen) == len(choices):  # all arrangements with the last choice were tried
                placer.roll_back(marks.pop())
                chosen.pop()
            host_id = next(choices[-1], None)
            if host_id is None:
                choices.pop()
                continue
            # Take the capacity now, so that the next member finds only the remaining capacity.
            marks.append(placer.mark())
            placer.take(members[len(chosen)], host_id, 1)
            chosen.append(host_id)
            if len(chosen) == len(members):
                pairs = zip(members, chosen, strict=True)
                return [Share(each.number, name, 1) for each, name in pairs]
            choices.append(self._choices(len(chosen), host_id))
        return []

    def _choices(self, at: int, before: str) -> Iterator[str]:
        """Yields the hosts to try for a member. `before` is the host of the previous member."""
        members = self._members[at]
        hosts = self._able[members]
        # The order of equal members makes no difference. So each member goes to the host of the
        # previous equal member, or to a later host.
        if at and self._members[at - 1] is members:
            hosts = hosts[hosts.index(before) :]
        tried = set[object]()
        for host_id in hosts:
            if not self._step():
                return
            # Two hosts have the same state if the same members fit on them and they have the same
            # capacity left.
            state = self._served_by[host_id], self._placer.state(host_id)
            if state not in tried and self._placer.room(members, host_id, 1):
                tried.add(state)
                yield host_id

    def _step(self) -> bool:
        self.steps_left -= 1
        self.cut_off = self.cut_off or self.steps_left < 0
        return not self.cut_off

    def _is_possible(self) -> bool:
        """Finds the hosts that have room for each member. Returns False in three cases: a member
        fits on no host, all members together need more than the free capacity, or the search has
        used up its steps.
        """
        placer = self._placer
        # The comparison of sums comes first, because it is cheap and often shows that the members
        # do not fit.
        if not self._is_enough():
            return False
        for members in dict.fromkeys(self._members):
            able, room = self._able.setdefault(members, []), 0
            for host_id in placer.hosts(members):
                if not self._step():
                    return False
                able.append(host_id)
                self._served_by[host_id] = (*self._served_by.get(host_id, ()), members.number)
                # The list of hosts must be complete, but the counting of places can stop when
                # enough places were found.
                if room < members.count:
                    room += placer.room(members, host_id, members.count)
            if room < members.count:
                return False
        return True

    def _is_enough(self) -> bool:
        """Returns False if all members together need more than all hosts have free."""
        hosts: list[str] = []
        for host_id, _ in self._placer.hosts_with_room(self._members):
            if not self._step():
                return False
            hosts.append(host_id)
        kinds = {self._placer.host(host_id).separate_pools for host_id in hosts}
        needed = Counter[str]()
        for each in self._members if hosts else ():
            needs = [needs_of(each.wanted).amounts[separate] for separate in kinds]
            # If some hosts have one memory pool and other hosts have separate pools, the lower need
            # counts. So the check never rejects members that would fit.
            for name in set(needs[0]).intersection(*needs[1:]):
                needed[name] += min(need[name] for need in needs)
        return bool(hosts) and all(
            sum(self._placer.free(host_id, name) for host_id in hosts) >= amount
            for name, amount in needed.items()
        )

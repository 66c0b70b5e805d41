"""Members of a gang on hosts that have few places each: as many as possible, exactly.

First each takes the best place that is left, those with the least choice first. Whoever finds none
then looks for a way along which others move on, each to a host that can have it instead, until
somebody comes to a host with a place left: an augmenting path (H. W. Kuhn, "The Hungarian method
for the assignment problem", 1955). Where there is none, no matching has more.

A host with a place left is found by the index. Only hosts that are taken are gone through, each
once for a path, so that the cost follows the members, not the hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from resource_manager.engine.placement.gang_room import Ask, Room
from resource_manager.engine.placement.indexes import carries

Candidates = Callable[[Ask], Iterable[str]]
"""Hosts with room for one, in order of preference, as the room is when they are asked for."""


class Matching:
    """Members, by position of their ask, on hosts.

    `one_each`: a host takes one member; else as many as fit, and all asks take the same there.
    """

    def __init__(self, room: Room, asks: list[Ask], hosts: Candidates, *, one_each: bool) -> None:
        self.on: dict[str, dict[int, int]] = {}  # members by host and position of the ask
        self._room = room
        self._asks = asks
        self._hosts = hosts
        self._one_each = one_each
        self._before: dict[str, dict[str, int]] = {}  # what a host had that is taken now

    def run(self) -> None:
        """Places as many as possible; where only all are of use, none more after one was not."""
        asks = self._asks
        order = sorted(
            range(len(asks)),
            key=lambda at: (len(asks[at].labels), self._room.size(asks[at]), len(asks[at].barred)),
            reverse=True,
        )
        missing = {at: self._greedy(at) for at in order}
        for at in order:
            while missing[at] and self._augment(at):
                missing[at] -= 1
            if missing[at] and not self._room.partly:
                return

    def _greedy(self, at: int) -> int:
        ask, missing = self._asks[at], self._asks[at].count
        found = iter(self._hosts(ask))
        while missing and (window := self._room.best(ask, found)):
            for host_id in window:
                if share := min(missing, 1 if self._one_each else self._room.fit(ask, host_id)):
                    self._occupy(at, host_id, share)
                    missing -= share
        return missing

    def _occupy(self, at: int, host_id: str, count: int) -> None:
        if self._one_each:
            self._before[host_id] = self._room.columns_of(host_id)
        self._room.take(self._asks[at], host_id, count)
        if self._one_each:
            self._room.shut(host_id)
        self._put(at, host_id, count)

    def _put(self, at: int, host_id: str, count: int) -> None:
        here = self.on.setdefault(host_id, {})
        here[at] = here.get(at, 0) + count
        if not here[at]:
            del here[at]

    def _augment(self, start: int) -> bool:
        """Finds a place for one more, by letting others move on."""
        came: dict[int, tuple[int, str]] = {}  # ask to who takes its place, and where
        line, seen, unseen = [start], {start}, dict.fromkeys(self.on)
        for at in line:
            free = next(iter(self._hosts(self._asks[at])), None)
            if free is not None:
                self._move_on(start, at, free, came)
                return True
            for host_id in [each for each in unseen if self._could_have(at, each)]:
                del unseen[host_id]
                for other in self.on[host_id]:
                    if other not in seen:
                        seen.add(other)
                        came[other] = (at, host_id)
                        line.append(other)
        return False

    def _could_have(self, at: int, host_id: str) -> bool:
        """True if a member could be on this host in place of another one."""
        ask, host = self._asks[at], self._room.host(host_id)
        if host_id in ask.barred or not carries(host, ask.labels):
            return False
        if not self._one_each:
            return True
        before = self._before[host_id]
        need = ask.need(host)
        if not need or any(before.get(name, 0) < need[name] for name in need):
            return False
        return self._room.suits_instead(ask, host_id)

    def _move_on(self, start: int, at: int, free: str, came: dict[int, tuple[int, str]]) -> None:
        self._occupy(at, free, 1)
        while at != start:
            before, left = came[at]
            self._put(at, left, -1)
            self._put(before, left, 1)
            at = before

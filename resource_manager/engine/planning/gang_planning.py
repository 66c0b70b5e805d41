"""Gangs in a plan: all members somewhere, or none anywhere.

Each gang is tried on its own, with the room that those before it left: executors that are there,
those that were asked for, those that were chosen for gangs before it, and new ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from finegrain.values.states import GangPlacement
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity
from resource_manager.engine.planning.cover import cover
from resource_manager.engine.planning.exact import Offer
from resource_manager.engine.planning.packing import Counts, Room, Space


@dataclass(frozen=True, slots=True)
class GangWish:
    """A gang: its members by kind, where they are to go, and its place in line. No other gang and
    nobody else has one of its kinds.
    """

    members: Mapping[int, int]
    placement: GangPlacement
    label: str = ""
    before: int = 0  # the entry of the line that it stands before


@dataclass(slots=True)
class New:
    """An executor to ask for: which supply, and what is to be served there."""

    supply: int
    content: Counts


@dataclass(slots=True)
class _Attempt:
    """What was taken for a gang so far, so that it can be given back."""

    taken: list[tuple[Room, int, int]]
    opened: int  # length of the list before
    limits: list[int]
    most: list[int]


class GangPlanner:
    """Rooms and what is left of limits while gangs are planned.

    Attributes:
        opened: new executors for gangs, as (supply, room).
        limits: what may still be asked for, by dimension.
    """

    def __init__(
        self,
        space: Space,
        rooms: Mapping[str, Room],
        *,
        hosts: Mapping[str, Room],
        capacities: Sequence[Capacity],
        offers: Sequence[Offer],
        limits: Sequence[int],
    ) -> None:
        self._space = space
        self._named = rooms
        self._hosts = hosts
        self._capacities = capacities
        self._offers = offers
        self._most = [offer.most for offer in offers]
        self._joined: dict[int, Mapping[int, int]] = {}
        self._reserved: dict[int, tuple[list[tuple[Room, int, int]], Counts]] = {}
        self.limits = list(limits)
        self.opened: list[tuple[int, Room]] = []

    def offers_left(self) -> list[Offer]:
        """The offers, with how many more there may be."""
        return [
            Offer(offer.total, offer.needs, offer.cost, most)
            for offer, most in zip(self._offers, self._most, strict=True)
        ]

    def apart(self, content: Mapping[int, int]) -> Counts:
        """The same, with members by themselves where they were joined."""
        counts: Counts = {}
        for kind, count in content.items():
            for member, number in self._joined.get(kind, {kind: 1}).items():
                counts[member] = counts.get(member, 0) + number * count
        return counts

    def counted_on(self) -> set[str]:
        """Executors that are there and that gangs are planned on."""
        return {name for name, room in self._hosts.items() if room.content}

    def reserve(self, gangs: Sequence[GangWish], kept: Mapping[str, Counts]) -> None:
        """Keeps for all gangs what was planned for them before, so that none takes what another
        one was promised. Each gives it back if that does not do for all of its members.
        """
        for gang in gangs:
            attempt = self._begin()
            left = dict(gang.members)
            for name, content in kept.items():
                for kind in sorted(left.keys() & content.keys()):
                    if (room := self._named.get(name)) is not None:
                        most = min(left[kind], content[kind])
                        left[kind] -= self._take(attempt, room, kind, most)
            if attempt.taken:
                self._reserved[id(gang)] = attempt.taken, {k: n for k, n in left.items() if n}

    def plan(self, gang: GangWish) -> bool:
        """Plans a gang; where it was planned before, if that is still possible. False: it cannot
        be planned, and nothing has changed.
        """
        if id(gang) in self._reserved and self._complete(gang):
            return True
        counts: Mapping[int, int] = gang.members
        if gang.placement is GangPlacement.SAME_EXECUTOR:
            joined = self._space.joined(dict(counts))
            self._joined[joined] = counts
            counts = {joined: 1}
        if gang.placement is GangPlacement.SAME_LABEL:
            return self._with_one_label(gang)
        spread = gang.placement is GangPlacement.SPREAD
        return self._try(counts, spread=spread) is not None

    def _complete(self, gang: GangWish) -> bool:
        """Finds room for the members for whom none is reserved; else gives back what is."""
        taken, left = self._reserved.pop(id(gang))
        rooms = list(dict.fromkeys(room for room, _, _ in taken))
        done = True
        if left and gang.placement is GangPlacement.SAME_EXECUTOR:
            done = False
        elif left:
            label = None
            if gang.placement is GangPlacement.SAME_LABEL:
                label = (gang.label, rooms[0].capacity.labels.get(gang.label, ""))
            spread = gang.placement is GangPlacement.SPREAD
            others = set(rooms) if spread else set()
            done = self._try(left, spread=spread, label=label, without=others) is not None
        if not done:
            for room, kind, count in taken:
                self._space.give_back(room, kind, count)
        return done

    def _with_one_label(self, gang: GangWish) -> bool:
        """The value of the label for which new executors cost least, then the one for which least
        is taken of those that are still to come (others count on them), then the first one.
        """
        rooms: dict[str, list[Room]] = {
            capacity.labels[gang.label]: []
            for capacity in self._capacities
            if gang.label in capacity.labels
        }
        for room in self._rooms():
            if gang.label in (labels := room.capacity.labels):
                rooms.setdefault(labels[gang.label], []).append(room)
        to_come = set(self._named.values())
        best: tuple[int, int, str] | None = None
        for value in sorted(rooms):
            attempt = self._try(gang.members, label=(gang.label, value), rooms=rooms[value])
            if attempt is None:
                continue
            cost = sum(self._offers[at].cost for at, _ in self.opened[attempt.opened :])
            awaited = sum(count for room, _, count in attempt.taken if room in to_come)
            self._undo(attempt)
            if best is None or (cost, awaited, value) < best:
                best = (cost, awaited, value)
        if best is None:
            return False
        value = best[2]
        return self._try(gang.members, label=(gang.label, value), rooms=rooms[value]) is not None

    def _try(
        self,
        counts: Mapping[int, int],
        *,
        spread: bool = False,
        label: tuple[str, str] | None = None,
        without: Collection[Room] = (),
        rooms: Sequence[Room] | None = None,
    ) -> _Attempt | None:
        """What was taken for these; None: it cannot be done. `rooms`: those with the label, where
        they are known.
        """
        attempt = self._begin()
        if rooms is None:
            rooms = [
                room
                for room in self._rooms()
                if room not in without and _carries(room.capacity, label)
            ]
        left = self._into(attempt, rooms, counts, spread=spread)
        if left and not self._open(attempt, left, spread=spread, label=label):
            self._undo(attempt)
            return None
        return attempt

    def _rooms(self) -> list[Room]:
        return [*self._hosts.values(), *self._named.values(), *(room for _, room in self.opened)]

    def _into(
        self,
        attempt: _Attempt,
        rooms: Iterable[Room],
        counts: Mapping[int, int],
        *,
        spread: bool,
    ) -> Counts:
        """Puts members into rooms, large ones first; the rest."""
        left = {kind: count for kind, count in counts.items() if count}
        order = sorted(left, key=lambda kind: (-self._size(kind), kind))
        for room in rooms:
            for kind in order:
                if not left.get(kind):
                    continue
                taken = self._take(attempt, room, kind, 1 if spread else left[kind])
                left[kind] -= taken
                if not left[kind]:
                    del left[kind]
                if taken and spread:
                    break
            if not left:
                break
        return left

    def _open(
        self,
        attempt: _Attempt,
        left: Counts,
        *,
        spread: bool,
        label: tuple[str, str] | None,
    ) -> bool:
        """Chooses new executors for these members; False: it is not possible."""
        portions = [left]
        if spread:
            portions = [{kind: 1} for kind, count in left.items() for _ in range(count)]
        needs = self._space.needs_everywhere(self._capacities)
        for portion in portions:
            offers = [
                Offer(offer.total, each, offer.cost, most if _carries(capacity, label) else 0)
                for offer, each, most, capacity in zip(
                    self._offers, needs, self._most, self._capacities, strict=True
                )
            ]
            found = cover(portion, offers, self.limits)
            if found.left:
                return False
            for batch in found.batches:
                for _ in range(batch.copies):
                    self._open_one(attempt, batch.offer, batch.content)
        return True

    def _open_one(self, attempt: _Attempt, at: int, content: Counts) -> None:
        room = self._space.room(self._capacities[at])
        self.opened.append((at, room))
        if self._most[at] < UNBOUNDED:
            self._most[at] -= 1
        for each, limit in enumerate(self.limits):
            if limit < UNBOUNDED:
                self.limits[each] -= self._offers[at].total[each]
        for kind, count in content.items():
            self._take(attempt, room, kind, count)

    def _size(self, kind: int) -> int:
        """How large a wish is, where it is the same everywhere."""
        wish = self._space.wishes[kind]
        return max(wish.pooled.values(), default=0)

    def _begin(self) -> _Attempt:
        return _Attempt([], len(self.opened), self.limits[:], self._most[:])

    def _take(self, attempt: _Attempt, room: Room, kind: int, most: int) -> int:
        taken = self._space.take(room, kind, most)
        if taken:
            attempt.taken.append((room, kind, taken))
        return taken

    def _undo(self, attempt: _Attempt) -> None:
        for room, kind, count in attempt.taken:
            self._space.give_back(room, kind, count)
        del self.opened[attempt.opened :]
        self.limits[:] = attempt.limits
        self._most[:] = attempt.most


def _carries(capacity: Capacity, label: tuple[str, str] | None) -> bool:
    return label is None or capacity.labels.get(label[0]) == label[1]

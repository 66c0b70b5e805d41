"""Puts a line of requests into rooms, one behind the other, quickly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.packing import Need, Room, Space

_Needs = Sequence[Need | None]
_Entry = tuple[Room, _Needs, Need]
"""A room, what each kind needs there, and the least that any of similar kinds needs there."""

_NOWHERE: Need = ((0, UNBOUNDED + 1),)


@dataclass(slots=True)
class _Similar:
    """Kinds of about the same size, and the rooms that may have room for the smallest of them."""

    kinds: list[int] = field(default_factory=list)
    rooms: list[_Entry] = field(default_factory=list)

    def open(self, everywhere: Sequence[tuple[Room, _Needs]]) -> None:
        """To be called once all kinds are known."""
        least: dict[int, Need] = {}  # many rooms share what is needed there
        for room, needs in everywhere:
            if id(needs) not in least:
                least[id(needs)] = self._least_of(needs)
            self.rooms.append((room, needs, least[id(needs)]))

    def _least_of(self, needs: _Needs) -> Need:
        """The least that any of them needs, by dimension; nobody can have more rooms than that."""
        found = [need for kind in self.kinds if (need := needs[kind]) is not None]
        if not found:
            return _NOWHERE
        if len({tuple([at for at, _ in need]) for need in found}) == 1:
            return tuple([min(column) for column in zip(*found, strict=True)])
        shared = set.intersection(*[{at for at, _ in need} for need in found])
        return tuple([(at, min(dict(need)[at] for need in found)) for at in sorted(shared)])


def fill_rooms(
    space: Space, rooms: Sequence[Room], line: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Puts these into rooms, first fit; a room that is too full for the smallest of similar kinds
    is not looked at again for any of them.
    """
    if not rooms:
        return list(line)
    needs = space.needs_everywhere([room.capacity for room in rooms])
    everywhere = list(zip(rooms, needs, strict=True))
    by_size: dict[object, _Similar] = {}
    of_kind: dict[int, _Similar] = {}
    for kind, _ in line:
        if kind not in of_kind:
            of_kind[kind] = by_size.setdefault(space.rough_size(kind), _Similar())
            of_kind[kind].kinds.append(kind)
    for similar in by_size.values():
        similar.open(everywhere)
    rest: list[tuple[int, int]] = []
    for kind, count in line:
        if left := _fill(space, of_kind[kind].rooms, kind, count):
            rest.append((kind, left))
    return rest


def _fill(space: Space, rooms: list[_Entry], kind: int, wanted: int) -> int:
    """Puts so many of a kind into rooms; says how many there was no room for. Comparing amounts
    here, and not with `fits`, takes half the time.
    """
    at = 0
    while at < len(rooms):
        room, needs, least = rooms[at]
        left = room.left
        for each, amount in needs[kind] or _NOWHERE:
            if left[each] < amount:
                break
        else:
            wanted -= space.take(room, kind, wanted)
            if not wanted:
                return 0
        for each, amount in least:
            if left[each] < amount:
                del rooms[at]
                break
        else:
            at += 1
    return wanted

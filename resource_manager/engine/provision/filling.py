"""Puts a line of requests into rooms, one behind the other, quickly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from resource_manager.engine.provision.classes import fits
from resource_manager.engine.provision.exact import UNBOUNDED
from resource_manager.engine.provision.packing import Need, Room, Space


@dataclass(slots=True)
class _Similar:
    """Kinds of about the same size, and the rooms that may have room for the smallest of them."""

    rooms: list[tuple[Room, Sequence[Need | None]]]
    kinds: list[int] = field(default_factory=list)
    least: dict[int, Need] = field(default_factory=dict)

    def least_of(self, needs: Sequence[Need | None]) -> Need:
        """The least that any of them needs, by dimension; nobody can have more rooms than that."""
        if (known := self.least.get(id(needs))) is not None:
            return known
        least: dict[int, int] | None = None
        for kind in self.kinds:
            if (need := needs[kind]) is not None:
                amounts = dict(need)
                least = amounts if least is None else _smaller(least, amounts)
        found = tuple((least if least is not None else {0: UNBOUNDED + 1}).items())
        self.least[id(needs)] = found
        return found


def _smaller(one: dict[int, int], other: dict[int, int]) -> dict[int, int]:
    return {at: min(one[at], other[at]) for at in one.keys() & other.keys()}


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
            size = space.rough_size(kind)
            if size not in by_size:
                by_size[size] = _Similar(everywhere[:])
            of_kind[kind] = by_size[size]
            of_kind[kind].kinds.append(kind)
    rest: list[tuple[int, int]] = []
    for kind, count in line:
        similar, wanted, at = of_kind[kind], count, 0
        while wanted and at < len(similar.rooms):
            room, needed = similar.rooms[at]
            if fits(room.left, needed[kind]):
                wanted -= space.take(room, kind, wanted)
            elif not fits(room.left, similar.least_of(needed)):
                del similar.rooms[at]
                continue
            at += 1
        if wanted:
            rest.append((kind, wanted))
    return rest

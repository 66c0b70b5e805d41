"""Keeps the slots of a job: the places for slots in its plan, and the slots that were granted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from finegrain_client.graph.profiles import SlotProfile

SlotKind = tuple[SlotProfile, bool]
"""Profile of a slot, and whether the slot is revocable."""


class SlotPlace(NamedTuple):
    """A place for a slot in the plan: one of the slots of a slot sharing group."""

    group: str
    position: int


class TaskId(NamedTuple):
    """One attempt to run one subtask of a chain."""

    chain: str
    subtask: int
    attempt: int


@dataclass(frozen=True, slots=True)
class GrantedSlot:
    """A slot of the job.

    Attributes:
        number: identity of the slot within the job, which stays the same when the slot passes to
            another place.
        host: id of the executor of the slot.
    """

    number: int
    host: str


class Slots:
    """The slots of a job by place. A place has at most one slot.

    Args:
        kinds: slot profile of each group, and whether its slots are revocable.
    """

    def __init__(self, kinds: Mapping[str, SlotKind]) -> None:
        self._kinds = kinds
        self.at: dict[SlotPlace, GrantedSlot] = {}

    def copy(self) -> Slots:
        """Returns an independent copy."""
        copied = Slots(self._kinds)
        copied.at = dict(self.at)
        return copied

    def put(self, place: SlotPlace, slot: GrantedSlot) -> None:
        """Adds a slot at a place that has no slot."""
        self.at[place] = slot

    def move(self, start: SlotPlace, end: SlotPlace) -> GrantedSlot:
        """Moves a slot to another place, and returns the slot."""
        slot = self.at[end] = self.at.pop(start)
        return slot

    def take(self, place: SlotPlace) -> GrantedSlot:
        """Removes a slot, and returns the slot."""
        return self.at.pop(place)

    def on_host(self, host: str) -> list[SlotPlace]:
        """Returns the places whose slots are on this host."""
        return [place for place, slot in self.at.items() if slot.host == host]

    def with_number(self, number: int) -> list[SlotPlace]:
        """Returns the place of this slot; empty if the job does not have the slot."""
        return [place for place, slot in self.at.items() if slot.number == number]

    def cover(
        self, missing: Iterable[SlotPlace], idle: Iterable[SlotPlace]
    ) -> list[tuple[SlotPlace, SlotPlace]] | None:
        """Returns pairs: the place of an idle slot, and the missing place that this slot will
        serve. Returns None if some missing place would get no slot.

        A slot can serve any place of the same kind. If the slot of a missing place is idle,
        the place keeps this slot.
        """
        missing, idle = set(missing), set(idle)
        # Usually no slot is idle. In this case, skip the computation below.
        if len(missing) > len(idle):
            return None
        pairs = [(place, place) for place in sorted(missing & idle)]
        free: dict[SlotKind, Iterator[SlotPlace]] = {}
        by_kind: dict[SlotKind, list[SlotPlace]] = {}
        for place in sorted(idle - missing):
            by_kind.setdefault(self._kinds[place.group], []).append(place)
        for kind, places in by_kind.items():
            free[kind] = iter(places)
        for place in sorted(missing - idle):
            found = next(free.get(self._kinds[place.group], iter(())), None)
            if found is None:
                return None
            pairs.append((found, place))
        return pairs


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """An outstanding request for slots, granted as a whole or not at all.

    Attributes:
        number: identity of the request within the job.
        places: the places, in order of the slot numbers.
        first_slot: number of the first slot. The other slots have the numbers that follow.
    """

    number: int
    places: tuple[SlotPlace, ...]
    first_slot: int

    def granted(self, hosts: Iterable[str]) -> Iterator[tuple[SlotPlace, GrantedSlot]]:
        """Yields the granted slots with their places. `hosts` has each slot's host, in order."""
        for at, (place, host) in enumerate(zip(self.places, hosts, strict=True)):
            yield place, GrantedSlot(self.first_slot + at, host)

"""Stores requests by name and by arrival number, in maps that consist of many small dictionaries.
This module also finds ids by their last or first characters.

When a dictionary grows, Python moves all its entries. In a dictionary with a million requests, the
insertion that makes the dictionary grow would take 25 ms. Small dictionaries grow at different
times, and each of them grows quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice
from typing import Final

from sortedcontainers import SortedSet

from resource_manager.engine.model.entities import Request

_NUMBER_BITS = 12
"""Each dictionary contains the requests of 2 ** 12 consecutive arrival numbers."""

_NAME_PARTS = 256
"""The number of dictionaries for names. It must be a power of 2."""

_HASH_SHIFT = 48
"""The dictionary for a name is chosen by the bits of the name's hash from this bit on. The lower
bits are not used for the choice, because each dictionary needs names with different lower bits.
"""

END_LENGTH: Final = 4
"""The number of last characters by which ids are found. A search needs at least this many
characters.
"""

NAMES_MAX: Final = 256
"""The largest number of ids that are stored for the same last characters. With this limit, the time
of each change is limited, too.

Of a million random ids, about 15 have the same last characters. Ids that clients chose possibly all
have the same last characters. A search by last characters does not find the ids that exceed the
limit, but a search by first characters finds them.
"""

BEGINNINGS_MAX: Final = 1_000
"""The largest number of ids that a search by first characters returns."""

_AFTER_ALL: Final = "\U0010ffff"


class ByArrival:
    """Requests by arrival number, in order. A request that is added must have a higher number than
    all others.
    """

    def __init__(self) -> None:
        self._parts: dict[int, dict[int, Request]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for part in self._parts.values():
            yield from part.values()

    def __getitem__(self, number: int) -> Request:
        return self._parts[number >> _NUMBER_BITS][number]

    def get(self, number: int) -> Request | None:
        """Returns the request with this number, or None if there is no such request."""
        part = self._parts.get(number >> _NUMBER_BITS)
        return part.get(number) if part is not None else None

    def add(self, request: Request) -> None:
        """Adds a request."""
        number = request.arrival_number
        part = self._parts.get(number >> _NUMBER_BITS)
        if part is None:
            part = self._parts[number >> _NUMBER_BITS] = {}
        part[number] = request
        self._count += 1

    def pop(self, number: int) -> Request:
        """Removes a request and returns it."""
        part = self._parts[number >> _NUMBER_BITS]
        request = part.pop(number)
        if not part:
            del self._parts[number >> _NUMBER_BITS]
        self._count -= 1
        return request


class ByName:
    """Requests by allocation id, in no order."""

    def __init__(self) -> None:
        self._parts: tuple[dict[str, Request], ...] = tuple({} for _ in range(_NAME_PARTS))

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __contains__(self, name: object) -> bool:
        return name in self._parts[hash(name) >> _HASH_SHIFT & _NAME_PARTS - 1]

    def __getitem__(self, name: str) -> Request:
        return self._parts[hash(name) >> _HASH_SHIFT & _NAME_PARTS - 1][name]

    def __setitem__(self, name: str, request: Request) -> None:
        self._parts[hash(name) >> _HASH_SHIFT & _NAME_PARTS - 1][name] = request

    def get(self, name: str) -> Request | None:
        """Returns the request with this name, or None if there is no such request."""
        return self._parts[hash(name) >> _HASH_SHIFT & _NAME_PARTS - 1].get(name)

    def discard(self, name: str) -> None:
        """Removes the request with this name, if it exists."""
        self._parts[hash(name) >> _HASH_SHIFT & _NAME_PARTS - 1].pop(name, None)


class IdIndex:
    """The ids of requests and ranges, found by their last four characters or by their first
    characters.

    Both searches are needed: a UUIDv7 begins with the time, so all ids of one minute begin with the
    same characters, but the last 62 bits are random.
    """

    def __init__(self) -> None:
        self._by_end: dict[str, list[str]] = {}
        # The list consists of many short lists, so a change takes a few microseconds, even with a
        # million ids.
        self._sorted: SortedSet[str] = SortedSet()

    def add(self, name: str) -> None:
        """Adds an id."""
        self._sorted.add(name)
        names = self._by_end.setdefault(name[-END_LENGTH:], [])
        if len(names) < NAMES_MAX:
            names.append(name)

    def sort(self, names: Collection[str]) -> None:
        """Sorts many ids at once, before `add` is called for each of them. Sorting them one by one
        would take longer.
        """
        self._sorted.update(names)

    def discard(self, name: str) -> None:
        """Removes an id. If the id is not stored, nothing changes."""
        self._sorted.discard(name)
        key = name[-END_LENGTH:]
        names = self._by_end.get(key, [])
        if name in names:
            names.remove(name)
            if not names:
                del self._by_end[key]

    def find(self, part: str) -> list[str]:
        """Returns the ids that end with a text. If no id ends with the text, returns the ids that
        begin with it.

        The result is also empty if the text has fewer than four characters, or if more than
        `BEGINNINGS_MAX` ids begin with the text.
        """
        if len(part) < END_LENGTH:
            return []
        ends = [name for name in self._by_end.get(part[-END_LENGTH:], ()) if name.endswith(part)]
        if ends:
            return ends
        found = self._sorted.irange(part, part + _AFTER_ALL)
        names = list(islice(found, BEGINNINGS_MAX + 1))
        return names if len(names) <= BEGINNINGS_MAX else []

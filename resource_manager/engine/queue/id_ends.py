"""Finds ids by their end, because people type the end of an id.

UUIDv7 begin with the time, so all ids of a minute begin alike; their last 62 bits are random.
"""

from __future__ import annotations

from typing import Final

END_LENGTH: Final = 4
"""Shortest end that can be found, and the length of the keys."""

NAMES_MAX: Final = 256
"""Most ids that are kept for one key, so that each change takes a limited time.

With random ids, a million have about 15 for each key. Ids that a client chose may all end alike;
those beyond the limit are found by their beginning only.
"""


class IdEnds:
    """Ids by their last four characters."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def add(self, name: str) -> None:
        """Adds an id."""
        names = self._names.setdefault(name[-END_LENGTH:], [])
        if len(names) < NAMES_MAX:
            names.append(name)

    def discard(self, name: str) -> None:
        """Removes an id, if it is there."""
        key = name[-END_LENGTH:]
        names = self._names.get(key, [])
        if name in names:
            names.remove(name)
            if not names:
                del self._names[key]

    def find(self, end: str) -> list[str]:
        """Returns the ids that end with a text; none if the text has fewer than four characters."""
        if len(end) < END_LENGTH:
            return []
        return [name for name in self._names.get(end[-END_LENGTH:], ()) if name.endswith(end)]

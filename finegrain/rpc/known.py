"""Caches the decoded values of message parts that occur often. The key of a value is the bytes of
its part.

All callers share the cached values, so no caller must change a value.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

DATA_BYTES_MAX = 1_024  # longer parts are not cached, because remote callers choose the bytes


class Known(Generic[T]):
    """Caches up to `most` decoded values. If the cache is full, the next addition first empties it.

    Several threads can use the cache at once, because each access is a single dict operation.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[bytes, T] = {}
        # For speed, the dict's method is bound only once. So code can clear the dict, but must
        # never replace it.
        self.get = self._values.get

    def keep(self, data: bytes, value: T) -> None:
        """Adds a value that the caller has decoded from `data` and checked."""
        if len(data) > DATA_BYTES_MAX:
            return
        if len(self._values) >= self._most:
            # Remote callers choose the bytes, so limit the number of values that they can store.
            self._values.clear()
        self._values[data] = value

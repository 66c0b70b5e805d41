"""Caches the decoded values of message parts that occur often. The key is the bytes of the part.

All callers share the cached values, so they must not change them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

DATA_BYTES_MAX = 1_024  # longer parts are not cached, because remote callers choose the bytes


class Known(Generic[T]):
    """Caches up to `most` decoded values. If the cache is full, the next addition first empties it.

    Several threads may use the cache at once, because each access is a single dict operation.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[bytes, T] = {}
        # Checks the jobs on which a new job depends. A job waits until they have ended. Then it
        # continues, or it is ended.
        self.get = self._values.get

    def keep(self, data: bytes, value: T) -> None:
        """Adds a value that the caller has decoded from `data` and checked."""
        if len(data) > DATA_BYTES_MAX:
            return
        if len(self._values) >= self._most:
            # Remote callers choose the bytes, so limit the number of values that they can store.
            self._values.clear()
        self._values[data] = value

"""A cache of message parts that occur often, by their bytes, so that each is converted once.

The cached values are shared, so callers must not change them.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

DATA_BYTES_MAX = 1_024  # larger ones are not cached: callers choose these bytes


class Known(Generic[T]):
    """Up to `most` values by the bytes that they were decoded from; when it is full, it is emptied.

    Several threads may use it at once, because every operation is a single dict operation.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[bytes, T] = {}
        # Bound once for speed, so the dict may be cleared but never replaced.
        self.get = self._values.get

    def keep(self, data: bytes, value: T) -> None:
        """Adds a value that was checked."""
        if len(data) > DATA_BYTES_MAX:
            return
        if len(self._values) >= self._most:
            # Callers choose the bytes: a limit keeps them from filling the memory.
            self._values.clear()
        self._values[data] = value

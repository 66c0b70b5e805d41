"""Parts of messages that come again and again, converted and checked once.

Decides how long they are kept. Refuses to know what they are: whoever keeps something here promises
that nobody changes it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")

DATA_BYTES_MAX = 1_024  # what is larger is not kept: the bytes are the callers'


class Known(Generic[T]):
    """Up to `most` values by the bytes that they came as; beyond that it begins anew.

    Used by several threads at once: every operation is one of a dict.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: dict[bytes, T] = {}
        self.get = self._values.get

    def keep(self, data: bytes, value: T) -> None:
        """Remembers a value that was found sound."""
        if len(data) > DATA_BYTES_MAX:
            return
        if len(self._values) >= self._most:
            self._values.clear()
        self._values[data] = value

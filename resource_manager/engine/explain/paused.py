"""Reads of the state that may pause, because they look at too much for one step of the writer.

Such a read is a generator that yields where it may pause and returns its result. The state may
change during a pause. So it iterates over copies of keys, and skips what was deleted meanwhile.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Paused = Generator[None, None, T]
"""A read that yields at each pause and returns a `T`."""

PART = 100
"""Number of entries after which a read pauses."""


def at_once(read: Paused[T]) -> T:
    """Runs a read without pauses and returns its result."""
    while True:
        try:
            next(read)
        except StopIteration as end:
            result: T = end.value
            return result

"""Defines reads of the engine's state that pause, so that the engine can handle events during a
long read.

Such a read is a generator. The generator yields at each pause, and returns the result at the end.
The state can change during a pause. So the read iterates over copies of keys, and skips keys that
were deleted during a pause.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Paused = Generator[None, None, T]
"""A read that yields at each pause and returns a `T`."""

PART = 100
"""A read pauses after each `PART` entries."""


def at_once(read: Paused[T]) -> T:
    """Runs a read without pauses, and returns its result."""
    while True:
        try:
            next(read)
        except StopIteration as end:
            result: T = end.value
            return result

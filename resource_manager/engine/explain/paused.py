"""Some reads of the state take longer than one step of the writer may take. This module defines
such reads, which may pause.

Such a read is a generator. It yields where it may pause, and returns its result at the end. The
state may change during a pause. So the read iterates over copies of keys, and skips keys that were
deleted during a pause.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Paused = Generator[None, None, T]
"""A read that yields at each pause and returns a `T`."""

PART = 100
"""The number of entries after which a read pauses."""


def at_once(read: Paused[T]) -> T:
    """Runs a read without pauses, and returns its result."""
    while True:
        try:
            next(read)
        except StopIteration as end:
            result: T = end.value
            return result

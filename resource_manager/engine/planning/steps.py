"""Defines long computations that can be paused. Each computation is a generator that reports how
much work it has done.

The generator compares requests with executors. It yields the approximate number of comparisons
since its last yield, and returns its result at the end. The caller can pause after each yield and
continue later.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[int, None, T]


def finish(steps: Steps[T]) -> T:
    """Runs a computation to its end, and returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def advance(steps: Steps[None], work: int) -> bool:
    """Continues a computation until `work` comparisons are done. Returns whether the computation
    has ended.
    """
    for done in steps:
        work -= done
        if work <= 0:
            return False
    return True

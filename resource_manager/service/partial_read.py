"""Runs a long read of the state in short slices, between the writer's batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.state import State

T = TypeVar("T")

SLICE_S = 0.003
"""A slice ends at the first pause after this time."""


class PartialRead(Generic[T]):
    """A long read that runs slice by slice.

    Args:
        begin: begins the read.
        clock: replaces the clock, for tests.
    """

    def __init__(
        self, begin: Callable[[State], Paused[T]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._begin = begin
        self._clock = clock
        self._read: Paused[T] | None = None
        self._epoch = 0

    def run_slice(self, state: State) -> tuple[T] | None:
        """Continues the read. Returns its result in a tuple; None: the read is not complete yet."""
        # After a failed commit the state is read again, at a higher epoch. The former state can
        # contain changes that never reached the disk. So the read begins again.
        if self._read is None or state.rm_epoch != self._epoch:
            self._read, self._epoch = self._begin(state), state.rm_epoch
        until = self._clock() + SLICE_S
        try:
            while True:
                next(self._read)
                if self._clock() >= until:
                    return None
        except StopIteration as end:
            return (end.value,)

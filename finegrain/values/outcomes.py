"""Describes the outcome of the items of a batched call, and of the threads of work in a slot."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value
from finegrain.values.states import ThreadEnd


@dataclass(frozen=True, slots=True)
class ItemOutcome(Value):
    """The outcome of one item of a batched call. `reason` is empty if the item succeeded."""

    id: str
    reason: str = ""
    message: str = ""
    details: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """True if the item was carried out, or if its work was started."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """What a job master reports about the threads of work that have run in a slot since the slot
    was granted or last reused.
    """

    end: ThreadEnd | None = None  # about the last thread; None: nothing is reported about it
    finished_before: int = 0  # number of threads that have finished before the last thread


NO_REPORT = ThreadReport()
"""The job master reports nothing."""

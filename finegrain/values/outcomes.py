"""Describes the outcome of the items of a batched call."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


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

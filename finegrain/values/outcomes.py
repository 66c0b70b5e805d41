"""What became of the items of a batch."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class ItemOutcome(Value):
    """What became of one item of a batch; `reason` is empty where it was done."""

    id: str
    reason: str = ""
    message: str = ""
    details: tuple[tuple[str, str], ...] = ()

    @property
    def ok(self) -> bool:
        """True where the item was done, or begun."""
        return not self.reason

"""One resource dimension in an explanation. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DimensionStatus:
    """One resource dimension: asked, free, largest hole on one executor, total."""

    dimension: str
    asked: int
    free: int
    largest_hole: int
    total: int

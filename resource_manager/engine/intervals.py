"""Sets of whole numbers, under the name by which the engine knows them."""

from finegrain.intervals import IntervalSet, Run

__all__ = ["IntervalSet", "Run"]

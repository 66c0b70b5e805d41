"""Defines parts of the explanation of why a request waits."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class Dimension(Value):
    """One resource dimension of an explanation."""

    dimension: str
    asked: int
    free: int
    largest_hole: int  # largest amount that is free on one executor
    total: int


@dataclass(frozen=True, slots=True)
class Counterfactual(Value):
    """A change of a request after which the request would fit now.

    The change lowers amounts (`free` of each entry is the amount that fits). Or the changed request
    no longer requires the policies in `relaxed` ("bind", "exclusive", "numa", "qos").
    """

    executor_id: str
    at_most: tuple[Dimension, ...]
    message: str
    relaxed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangSpot(Value):
    """A possible place for a gang: an executor, or a value of the gang's label."""

    name: str  # name of the place; empty: the whole cluster
    placeable: int  # number of the gang's members that fit there now

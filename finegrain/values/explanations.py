"""Parts of the explanation why a request waits."""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.mapping.value import Value


@dataclass(frozen=True, slots=True)
class Dimension(Value):
    """One resource dimension of an explanation."""

    dimension: str
    asked: int
    free: int
    largest_hole: int  # most that is free on one executor
    total: int


@dataclass(frozen=True, slots=True)
class Counterfactual(Value):
    """One change of a request with which it would fit now.

    Either amounts are lower (`free` of each entry is the amount that fits), or policies ("bind",
    "exclusive", "numa", "qos") are not required.
    """

    executor_id: str
    at_most: tuple[Dimension, ...]
    message: str
    relaxed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangSpot(Value):
    """One place where a gang could go: an executor, or a value of its label."""

    name: str  # empty: the whole cluster
    placeable: int  # number of members that fit there now

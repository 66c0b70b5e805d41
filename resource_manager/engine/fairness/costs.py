"""Computes the cost of a slot per second. The usage of a slot is its cost multiplied by seconds.

The cost depends on the capacity that the slot has booked. If the measure is the dominant share, the
cost also depends on the total of all executors that are not lost. The cost of a slot changes only
when its booking changes.

Example with the dominant share: the executors have 100 cores and 400 GiB in total. A slot has
booked 2 cores (2 %) and 4 GiB (1 %). Its cost is the larger share, 0.02 per second.
"""

from __future__ import annotations

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    MEMORY_BYTES,
    MEMORY_PARTS,
    Amounts,
)
from resource_manager.engine.fairness.quotas import counted
from resource_manager.engine.model.settings import Measure

_SHARE_STEPS = float(1 << 40)
_CORE_STEPS = float(1 << 20)
"""Costs are rounded to multiples of 1/2^40 (shares) or 1/2^20 (cores). So sums of costs are exact
in floats, and do not depend on the order of addition. Sums are exact up to 8,192 whole clusters, or
billions of cores.
"""

_KNOWN_MAX = 1_024
"""The largest number of costs that are cached."""


class Costs:
    """The costs of slots in one measure.

    Attributes:
        measure: the measure: "dominant", "slots" or "cpu".
        total: the sum of the capacities of all executors that are not lost, by dimension.
        separate_pools: True if some executor has a separate pool for each memory part.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.total: dict[str, int] = {}
        self.separate_pools = False
        self._counted: dict[str, Amounts] = {}
        self._memory_is_one = True
        # `total` in the form of the booked amounts that are divided by it
        self._compared: Amounts = {}
        # The key is the `id` of the amounts. The amounts are stored with the cost, so that no other
        # amounts can get the same `id`.
        self._known: dict[int, tuple[Amounts, float]] = {}

    def count(self, executor_id: str, total: Amounts) -> None:
        """Sets the total of an executor. An empty total means that the executor is lost or
        deleted.
        """
        before = self._counted.get(executor_id, {})
        if before == total:
            return
        # Only the difference is added, so that a registration does not have to sum over all
        # executors.
        for name, amount in before.items():
            self.total[name] -= amount
        for name, amount in total.items():
            self.total[name] = self.total.get(name, 0) + amount
        if total:
            self._counted[executor_id] = total
        else:
            del self._counted[executor_id]
        # Memory parts are separate dimensions only if every executor has them. Otherwise all memory
        # is one dimension.
        self.separate_pools = any(self.total.get(name) for name in MEMORY_PARTS)
        self._memory_is_one = bool(self.total.get(MEMORY_BYTES)) or not self.separate_pools
        self._compared = counted(self.total) if self._memory_is_one else self.total
        # All cached costs depend on the total, so they are outdated now.
        self._known.clear()

    def of(self, booked: Amounts) -> float:
        """Returns the cost per second of a slot that books these amounts."""
        if self.measure == "slots":
            return 1.0
        if self.measure == "cpu":
            cpu_milli = booked.get(CPU_MILLI, 0) + booked.get(BEST_EFFORT_CPU_MILLI, 0)
            return round(cpu_milli / 1_000 * _CORE_STEPS) / _CORE_STEPS
        known = self._known.get(id(booked))  # equal amounts usually share one dict
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[id(booked)] = booked, self._dominant_share(booked)
        return known[1]

    def _dominant_share(self, booked: Amounts) -> float:
        total = self._compared
        if self._memory_is_one:
            booked = counted(booked)
        # If all executors with a dimension are lost, the total does not contain the dimension. Such
        # a dimension is ignored.
        shares = [amount / total[name] for name, amount in booked.items() if total.get(name)]
        # The result is at least one step, because even a slot that books none of these amounts must
        # have a cost.
        return max(1.0, round(min(1.0, max(shares, default=0.0)) * _SHARE_STEPS)) / _SHARE_STEPS

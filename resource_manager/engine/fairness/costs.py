"""What a slot costs per second: its service is cost times time.

Decides by what the slot has booked and by the totals of the executors that are not lost. The cost
of a slot is fixed when it is placed; refuses to know when that is, and whom it is charged to.
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
"""Costs are whole numbers of such parts, so that sums of them are exact in any order: shares up to
8,192 clusters, and billions of cores.
"""

_KNOWN_MAX = 1_024
"""Costs remembered at once."""


class Costs:
    """Costs of slots in one measure, with the totals they are reckoned against.

    Attributes:
        total: of all executors counted, by dimension.
        separate_pools: some of them pool memory by part.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self.total: dict[str, int] = {}
        self.separate_pools = False
        self._counted: dict[str, Amounts] = {}
        self._memory_is_one = True
        self._compared: Amounts = {}  # the total as shares are reckoned of it
        # By identity of the amounts, which are kept so that it stays theirs.
        self._known: dict[int, tuple[Amounts, float]] = {}

    def count(self, executor_id: str, total: Amounts) -> None:
        """An executor has this total; empty: it is lost, or gone."""
        before = self._counted.get(executor_id, {})
        if before == total:
            return
        for name, amount in before.items():
            self.total[name] -= amount
        for name, amount in total.items():
            self.total[name] = self.total.get(name, 0) + amount
        if total:
            self._counted[executor_id] = total
        else:
            del self._counted[executor_id]
        # Where some executors pool memory by part and some do not, only all of it compares.
        self.separate_pools = any(self.total.get(name) for name in MEMORY_PARTS)
        self._memory_is_one = bool(self.total.get(MEMORY_BYTES)) or not self.separate_pools
        self._compared = counted(self.total) if self._memory_is_one else self.total
        self._known.clear()

    def of(self, booked: Amounts) -> float:
        """What a slot costs per second that books this."""
        if self.measure == "slots":
            return 1.0
        if self.measure == "cpu":
            cpu_milli = booked.get(CPU_MILLI, 0) + booked.get(BEST_EFFORT_CPU_MILLI, 0)
            return round(cpu_milli / 1_000 * _CORE_STEPS) / _CORE_STEPS
        known = self._known.get(id(booked))  # amounts that are alike are one dict as a rule
        if known is None:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[id(booked)] = booked, self._dominant_share(booked)
        return known[1]

    def _dominant_share(self, booked: Amounts) -> float:
        total = self._compared
        if self._memory_is_one:
            booked = counted(booked)
        shares = [amount / total[name] for name, amount in booked.items() if total.get(name)]
        return max(1.0, round(min(1.0, max(shares, default=0.0)) * _SHARE_STEPS)) / _SHARE_STEPS

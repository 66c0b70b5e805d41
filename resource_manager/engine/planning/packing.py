"""Vectors for bin packing: what requests need, and what executors have left.

Equal requests form one kind, and only their number is kept. A bin is one executor: pending,
registered, or one that could be requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity

Need = tuple[tuple[int, int], ...]
"""What one request takes: (dimension, amount), without amounts of zero.

A dimension is an index into the vectors of one `Space`.
"""

Counts = dict[int, int]
"""How many of each kind; a kind is an index into the demands of one `Space`."""

Entry = tuple[int, int]
"""(kind, how many)"""

_NOWHERE: Need = ((0, UNBOUNDED + 1),)

_SCANNED_WHOLE = 256
"""If there are at most this many entries, all of them are tried for every bin."""

_MISSES = 8
"""If there are more entries: when this many in a row do not fit, only every second one is tried;
when this many more do not fit, only every fourth, and so on. When one fits, all are tried again.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one of several equal requests needs, in columns of the capacity index.

    Memory is in units of 64 KiB. A request that gets the default slot has `DEFAULT_SLOTS` instead
    of amounts and `SLOTS`.

    Attributes:
        pooled: on an executor with one memory pool.
        separate: on an executor with a pool for each memory part.
        labels: those that the executor must have.
    """

    pooled: Amounts
    separate: Amounts
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class Bin:
    """An executor in a plan.

    Attributes:
        capacity: what it has in total, or has free if it is registered.
        left: amounts that are left, by dimension.
        needs: what one request of each kind takes here; None: it can never be here.
        content: what the plan puts here.
    """

    capacity: Capacity
    left: list[int]
    needs: Sequence[Need | None]
    content: Counts = field(default_factory=dict)

    def fit(self, kind: int, most: int) -> int:
        """Returns how many more of a kind fit, up to `most`."""
        need = self.needs[kind]
        if need is None:
            return 0
        return min([most, *[self.left[dimension] // amount for dimension, amount in need]])

    def add(self, kind: int, count: int) -> None:
        """Puts `count` more of a kind here; a negative count takes them out again."""
        for dimension, amount in self.needs[kind] or ():
            self.left[dimension] -= amount * count
        self.content[kind] = self.content.get(kind, 0) + count
        if not self.content[kind]:
            del self.content[kind]


class Space:
    """The demands and capacities of one plan, in the same dimensions."""

    def __init__(self, demands: Sequence[Demand], capacities: Iterable[Capacity]) -> None:
        self._demands = demands
        capacities = list(capacities)
        names = dict.fromkeys(
            name for each in capacities for name in (*each.amounts, *each.default)
        )
        # Default slots are no dimension: each executor converts them into what one takes there.
        names.pop(DEFAULT_SLOTS, None)
        # `SLOTS` is dimension 0, of which `_NOWHERE` needs more than anything has.
        self._dimensions = {name: at for at, name in enumerate({SLOTS: None, **names})}
        separate = any(each.separate for each in capacities)
        self._pooled = [self._need(demand.pooled) for demand in demands]
        self._separate = [self._need(each.separate) for each in demands] if separate else []
        self._defaults = [at for at, each in enumerate(demands) if DEFAULT_SLOTS in each.pooled]
        self._selectors = {demand.labels for demand in demands}
        self._known: dict[object, Sequence[Need | None]] = {}

    def bin(self, capacity: Capacity) -> Bin:
        """Returns an empty bin."""
        return Bin(capacity, self.vector(capacity.amounts), self.needs(capacity))

    def vector(self, amounts: Amounts) -> list[int]:
        """Returns amounts by dimension."""
        return [amounts.get(name, 0) for name in self._dimensions]

    def needs(self, capacity: Capacity) -> Sequence[Need | None]:
        """Returns what one request of each kind takes there; None: it can never be there.

        Capacities with the same needs share one list, because it has an item for every kind.
        """
        carried = capacity.labels
        foreign = {
            labels
            for labels in self._selectors
            if any(carried.get(name) != value for name, value in labels)
        }
        # What a default slot takes is defined by each executor.
        default = None
        if capacity.default and self._defaults:
            default = self._need({**capacity.default, SLOTS: 1})
        key = (capacity.separate, frozenset(foreign), default)
        if key not in self._known:
            needs = (self._separate if capacity.separate else self._pooled)[:]
            for kind in self._defaults:
                many = self._demands[kind].pooled[DEFAULT_SLOTS]
                # Without a default profile, such requests can be nowhere here.
                needs[kind] = default and tuple((at, amount * many) for at, amount in default)
            # Executors without the labels can never have requests of these kinds.
            if foreign:
                for kind, demand in enumerate(self._demands):
                    if demand.labels in foreign:
                        needs[kind] = None
            self._known[key] = needs
        return self._known[key]

    def _need(self, amounts: Amounts) -> Need | None:
        """Returns these amounts as a need; None if one is of a dimension that no capacity has."""
        dimensions = self._dimensions
        try:
            return tuple(
                [
                    (dimensions[name], amount)
                    for name, amount in amounts.items()
                    if amount and name != DEFAULT_SLOTS
                ]
            )
        except KeyError:
            return None


def fill(
    left: list[int], needs: Sequence[Need | None], entries: Sequence[Entry]
) -> tuple[list[Entry], int]:
    """Takes from the entries, in order, whatever still fits into one bin (first fit).

    Of very many entries not all are tried: where many in a row do not fit, more and more are
    skipped. What is skipped may fit all the same, and is left to another bin.

    Args:
        left: what the bin has left; what is taken is subtracted.
        needs: what one of each kind takes of it.
        entries: the requests; those with count 0 are skipped.

    Returns:
        (index of the entry, how many) of those that are taken, and how many entries were tried.
    """
    taken: list[Entry] = []
    at = misses = tried = 0
    step, end = 1, len(entries)
    patience = _MISSES if end > _SCANNED_WHOLE else end
    while at < end:
        here = at
        kind, count = entries[here]
        at += step
        if not count:
            continue
        tried += 1
        need = needs[kind] or _NOWHERE
        # Lowers the count to what fits in every dimension; `else` runs if that is at least one.
        for dimension, amount in need:
            if left[dimension] < amount * count:
                count = left[dimension] // amount
                if not count:
                    break
        else:
            for dimension, amount in need:
                left[dimension] -= amount * count
            taken.append((here, count))
            # Neighbours of what fits are likely to fit, so all are tried again.
            misses, step = 0, 1
            continue
        misses += 1
        if misses == patience:
            misses, step = 0, step * 2
    return taken, tried

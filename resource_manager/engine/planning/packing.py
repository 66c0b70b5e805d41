"""Converts requests and executors to vectors for bin packing.

Equal requests form one kind, and only their number is stored. A bin is one executor: a pending
executor, a registered executor, or an executor that could be requested.

Example: the dimensions are slots, cpu in thousandths, and memory in units of 64 KiB. A request of 2
cpus and 1 GiB is the vector (1, 2,000, 16,384). A bin with (10, 8,000, 49,152) has room for three
such requests, because the memory is sufficient for only three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity

Need = tuple[tuple[int, int], ...]
"""The amounts that one request takes, as pairs (dimension, amount), without amounts of 0. A
dimension is an index into the vectors of one `Space`.
"""

Counts = dict[int, int]
"""The number of requests of each kind. A kind is an index into the demands of one `Space`."""

Entry = tuple[int, int]
"""A pair: a kind, and a number of requests of this kind."""

_NOWHERE: Need = ((0, UNBOUNDED + 1),)

_SCANNED_WHOLE = 256
"""If there are at most this many entries, all entries are tried for every bin."""

_MISSES = 8
"""If there are more entries, some entries are skipped. When this many consecutive entries do not
fit, only every second entry is tried. When this many more entries do not fit, only every fourth
entry is tried, and so on. When an entry fits, the following entries are all tried again.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """The amounts that one request of a kind needs, in columns of the capacity index.

    Memory is in units of 64 KiB. A request for a default slot has the column `DEFAULT_SLOTS`
    instead of amounts and `SLOTS`.

    Attributes:
        pooled: the amounts that the request needs on an executor with one memory pool.
        separate: the amounts that the request needs on an executor with a separate pool for each
            memory part.
        labels: the labels that the executor must carry.
    """

    pooled: Amounts
    separate: Amounts
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class Bin:
    """An executor in a plan.

    Attributes:
        capacity: the free capacity of a registered executor, or the total capacity of any other
            executor.
        left: the amounts that are still free, by dimension.
        needs: for each kind, the amounts that one request takes on this executor, or None if the
            executor can never serve a request of the kind.
        content: the number of requests of each kind that the plan puts on this executor.
    """

    capacity: Capacity
    left: list[int]
    needs: Sequence[Need | None]
    content: Counts = field(default_factory=dict)

    def fit(self, kind: int, most: int) -> int:
        """Returns the number of further requests of a kind that fit. The result is at most
        `most`.
        """
        need = self.needs[kind]
        if need is None:
            return 0
        return min([most, *[self.left[dimension] // amount for dimension, amount in need]])

    def add(self, kind: int, count: int) -> None:
        """Adds `count` requests of a kind. A negative count removes requests."""
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
        # Default slots are not a dimension, because each executor defines the amounts that a
        # default slot needs on it.
        names.pop(DEFAULT_SLOTS, None)
        # `SLOTS` is dimension 0. The need `_NOWHERE` has more slots than any executor.
        self._dimensions = {name: at for at, name in enumerate({SLOTS: None, **names})}
        separate = any(each.separate for each in capacities)
        self._pooled = [self._need(demand.pooled) for demand in demands]
        self._separate = [self._need(each.separate) for each in demands] if separate else []
        self._defaults = [at for at, each in enumerate(demands) if DEFAULT_SLOTS in each.pooled]
        self._selectors = {demand.labels for demand in demands}
        self._known: dict[object, Sequence[Need | None]] = {}

    def bin(self, capacity: Capacity) -> Bin:
        """Returns an empty bin with this capacity."""
        return Bin(capacity, self.vector(capacity.amounts), self.needs(capacity))

    def vector(self, amounts: Amounts) -> list[int]:
        """Returns amounts as a vector, by dimension."""
        return [amounts.get(name, 0) for name in self._dimensions]

    def needs(self, capacity: Capacity) -> Sequence[Need | None]:
        """Returns, for each kind of request, the amounts that one request takes on an executor, or
        None if the executor can never serve the kind.

        The list has an item for every kind. To save memory, capacities with the same needs share
        one list.
        """
        carried = capacity.labels
        foreign = {
            labels
            for labels in self._selectors
            if any(carried.get(name) != value for name, value in labels)
        }
        # Each executor defines the amounts of its default slot.
        default = None
        if capacity.default and self._defaults:
            default = self._need({**capacity.default, SLOTS: 1})
        key = (capacity.separate, frozenset(foreign), default)
        if key not in self._known:
            needs = (self._separate if capacity.separate else self._pooled)[:]
            for kind in self._defaults:
                many = self._demands[kind].pooled[DEFAULT_SLOTS]
                # An executor without a default profile cannot serve a request for default slots.
                needs[kind] = default and tuple((at, amount * many) for at, amount in default)
            # An executor can never serve requests of the kinds whose labels it does not carry.
            if foreign:
                for kind, demand in enumerate(self._demands):
                    if demand.labels in foreign:
                        needs[kind] = None
            self._known[key] = needs
        return self._known[key]

    def _need(self, amounts: Amounts) -> Need | None:
        """Returns these amounts as a need, or None if one of the dimensions exists in no
        capacity.
        """
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
    """Puts as many requests as fit into one bin, in the order of the entries (first fit).

    If there are very many entries, some entries are skipped (`_MISSES`). Requests of a skipped
    entry are left for another bin, even if they would fit.

    Args:
        left: the amounts that are free in the bin. The function subtracts the amounts of the
            requests that it puts into the bin.
        needs: the amounts that one request of each kind takes in this bin.
        entries: the requests. Entries with the count 0 are ignored.

    Returns:
        The content of the bin, as pairs (index of the entry, number of requests), and the number of
        entries that were tried.
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
        # Lower `count` to the number of requests that fit in every dimension. `else` runs if at
        # least one request fits.
        for dimension, amount in need:
            if left[dimension] < amount * count:
                count = left[dimension] // amount
                if not count:
                    break
        else:
            for dimension, amount in need:
                left[dimension] -= amount * count
            taken.append((here, count))
            # After an entry that fits, the next entries probably fit, too, so skip none of them.
            misses, step = 0, 1
            continue
        misses += 1
        if misses == patience:
            misses, step = 0, step * 2
    return taken, tried

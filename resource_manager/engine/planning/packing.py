"""Converts requests and executors to vectors for bin packing.

Equal requests form one kind, and only their number is kept. A bin is one executor: a pending one, a
registered one, or one that could be requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity

Need = tuple[tuple[int, int], ...]
"""The amounts that one request takes, as (dimension, amount). Amounts of 0 are left out.

A dimension is an index into the vectors of one `Space`.
"""

Counts = dict[int, int]
"""Number of requests of each kind. A kind is an index into the demands of one `Space`."""

Entry = tuple[int, int]
"""(kind, number of requests)"""

_NOWHERE: Need = ((0, UNBOUNDED + 1),)

_SCANNED_WHOLE = 256
"""If there are at most this many entries, all of them are tried for every bin."""

_MISSES = 8
"""If there are more entries: after this many consecutive entries did not fit, only every second
entry is tried. After as many further ones did not fit, only every fourth is tried, and so on. After
an entry fits, all entries are tried again.
"""


@dataclass(frozen=True, slots=True)
class Demand:
    """The needs of each one of several equal requests, in columns of the capacity index.

    Memory is in units of 64 KiB. A request that gets the default slot has `DEFAULT_SLOTS` instead
    of amounts and `SLOTS`.

    Attributes:
        pooled: needs on an executor with one memory pool.
        separate: needs on an executor with a separate pool for each memory part.
        labels: labels that the executor must carry.
    """

    pooled: Amounts
    separate: Amounts
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, eq=False)
class Bin:
    """An executor in a plan.

    Attributes:
        capacity: the total capacity of the executor; if it is registered, its free capacity.
        left: the remaining amounts, by dimension.
        needs: the amounts that one request of each kind takes here; None: it can never be served
            here.
        content: the number of requests of each kind that the plan puts here.
    """

    capacity: Capacity
    left: list[int]
    needs: Sequence[Need | None]
    content: Counts = field(default_factory=dict)

    def fit(self, kind: int, most: int) -> int:
        """Returns how many more requests of a kind fit, up to `most`."""
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
        # Default slots are not a dimension, because they are converted to the amounts that one
        # takes on each executor.
        names.pop(DEFAULT_SLOTS, None)
        # `SLOTS` is dimension 0. `_NOWHERE` needs more of it than any executor has.
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
        """Returns the amounts that one request of each kind takes there; None: it can never be
        served there.

        The list has an item for every kind, so capacities with the same needs share one list.
        """
        carried = capacity.labels
        foreign = {
            labels
            for labels in self._selectors
            if any(carried.get(name) != value for name, value in labels)
        }
        # Each executor defines what its default slot takes.
        default = None
        if capacity.default and self._defaults:
            default = self._need({**capacity.default, SLOTS: 1})
        key = (capacity.separate, frozenset(foreign), default)
        if key not in self._known:
            needs = (self._separate if capacity.separate else self._pooled)[:]
            for kind in self._defaults:
                many = self._demands[kind].pooled[DEFAULT_SLOTS]
                # An executor without a default profile cannot serve such requests.
                needs[kind] = default and tuple((at, amount * many) for at, amount in default)
            # Executors without the labels can never serve requests of these kinds.
            if foreign:
                for kind, demand in enumerate(self._demands):
                    if demand.labels in foreign:
                        needs[kind] = None
            self._known[key] = needs
        return self._known[key]

    def _need(self, amounts: Amounts) -> Need | None:
        """Returns these amounts as a need; None if no capacity has one of the dimensions."""
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
    """Puts requests into one bin in the order of the entries, as many as fit (first fit).

    If there are very many entries, not all are tried. After many consecutive entries that did not
    fit, more and more are skipped. A skipped entry might have fitted. It stays for another bin.

    Args:
        left: the remaining amounts of the bin. The function subtracts what it takes.
        needs: the amounts that one request of each kind takes there.
        entries: the requests. Entries with count 0 are skipped.

    Returns:
        The taken requests as (index of the entry, number of requests), and the number of entries
        that were tried.
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
        # Lowers `count` to the number that fits in every dimension. `else` runs if this is at least
        # 1.
        for dimension, amount in need:
            if left[dimension] < amount * count:
                count = left[dimension] // amount
                if not count:
                    break
        else:
            for dimension, amount in need:
                left[dimension] -= amount * count
            taken.append((here, count))
            # The entries after one that fits are likely to fit as well, so all are tried again.
            misses, step = 0, 1
            continue
        misses += 1
        if misses == patience:
            misses, step = 0, step * 2
    return taken, tried

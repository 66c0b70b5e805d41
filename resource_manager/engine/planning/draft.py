"""Keeps the draft of a plan. The draft contains bins (the executors of the plan), the requests in
the bins, and the executors that can still be requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from finegrain.resources import Amounts
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity
from resource_manager.engine.planning.offers import Allowance, Cover, Offer
from resource_manager.engine.planning.packing import Bin, Demand, Entry, Space, fill
from resource_manager.engine.planning.steps import Steps

COST_UNIT = 1_000_000
"""Costs are integers in millionths, so a cost of 1 is this number."""


@dataclass(frozen=True, slots=True)
class Supply:
    """A kind of executor that can be requested: its capacity (in columns of the capacity index),
    its exact total (for limits), its cost, and the number of executors that can still be requested.
    """

    capacity: Capacity
    total: Amounts
    cost: float
    most: int = UNBOUNDED


@dataclass(slots=True)
class Mark:
    """A state of a draft to which `undo` can return."""

    opened: int
    allowance: Allowance
    added: list[tuple[Bin, int, int]] = field(default_factory=list)


class Draft:
    """The bins of one plan.

    Attributes:
        pending: the bins of executors that were requested and have not registered yet, by name. The
            oldest executor comes first.
        hosts: the bins with the free capacity of registered executors, by name.
        opened: the new executors, as (position of the supply, bin).
        offers: the kinds of executors that can be requested, one offer for each supply.
        allowance: the number of executors of each offer that can still be requested.
    """

    def __init__(
        self,
        demands: Sequence[Demand],
        supplies: Sequence[Supply],
        *,
        pending: Mapping[str, Capacity],
        hosts: Mapping[str, Capacity],
        limits: Amounts,
    ) -> None:
        capacities = [each.capacity for each in supplies]
        space = Space(demands, [*capacities, *pending.values(), *hosts.values()])
        self._capacities = capacities
        self.pending = {name: space.bin(capacity) for name, capacity in pending.items()}
        self.hosts = {name: space.bin(capacity) for name, capacity in hosts.items()}
        self.opened: list[tuple[int, Bin]] = []
        self.offers = [
            Offer(
                space.vector(each.capacity.amounts),
                space.needs(each.capacity),
                # The cost is at least 1, because costs are used as divisors.
                max(1, round(each.cost * COST_UNIT)),
                tuple(each.total.get(name, 0) for name in limits),
            )
            for each in supplies
        ]
        self.allowance = Allowance([each.most for each in supplies], list(limits.values()))

    def bins(self) -> list[Bin]:
        """Returns the bins of registered executors, then of pending executors, and then of new
        executors.
        """
        new = [each for _, each in self.opened]
        return [*self.hosts.values(), *self.pending.values(), *new]

    def supplies_with(self, label: tuple[str, str]) -> list[int]:
        """Returns the positions of the supplies that carry a label."""
        name, value = label
        return [at for at, each in enumerate(self._capacities) if each.labels.get(name) == value]

    def values_of(self, label: str) -> list[str]:
        """Returns, in order, the values of a label that bins and supplies carry."""
        carried = [*self._capacities, *(each.capacity for each in self.bins())]
        return sorted({each.labels[label] for each in carried if label in each.labels})

    # Changes.

    def add(self, into: Bin, kind: int, most: int, mark: Mark | None = None) -> int:
        """Puts as many requests of a kind into a bin as fit, and returns their number.

        Args:
            into: the bin into which the requests are put.
            kind: the kind of requests.
            most: the largest number of requests.
            mark: the attempt to which the addition belongs, or None if the addition need not be
                undone.
        """
        count = into.fit(kind, most)
        if count:
            into.add(kind, count)
            if mark is not None:
                mark.added.append((into, kind, count))
        return count

    def new_bin(self, supply: int) -> Bin:
        """Returns the bin of an executor that could be requested. The draft does not change."""
        offer = self.offers[supply]
        return Bin(self._capacities[supply], list(offer.total), offer.needs)

    def open(self, supply: int) -> Bin:
        """Requests one executor, and returns its bin."""
        self.allowance.take(supply, self.offers[supply], 1)
        new = self.new_bin(supply)
        self.opened.append((supply, new))
        return new

    def request(self, cover: Cover) -> Steps[None]:
        """Requests the executors of a cover, and puts the cover's requests into them."""
        for purchase in cover.purchases:
            for _ in range(purchase.copies):
                new = self.open(purchase.offer)
                for kind, count in purchase.content.items():
                    new.add(kind, count)
                yield len(purchase.content)

    def fill(
        self, bins: Iterable[Bin], queue: Iterable[Entry], mark: Mark | None = None
    ) -> Steps[list[Entry]]:
        """Puts queued requests into bins, in the order of the queue. Returns the requests that fit
        into no bin.
        """
        entries = [entry for entry in queue if entry[1]]
        empty = 0
        for each in bins:
            if not entries:
                break
            taken, tried = fill(each.left, each.needs, entries)
            for at, count in taken:
                kind, left = entries[at]
                entries[at] = (kind, left - count)
                each.content[kind] = each.content.get(kind, 0) + count
                empty += left == count
                if mark is not None:
                    mark.added.append((each, kind, count))
            # Remove the entries without requests only when there are many, because each removal
            # copies the list.
            if empty * 8 > len(entries):
                entries, empty = [entry for entry in entries if entry[1]], 0
            yield tried
        return [entry for entry in entries if entry[1]]

    def mark(self) -> Mark:
        """Starts an attempt that can be undone."""
        return Mark(len(self.opened), self.allowance.copy())

    def undo(self, mark: Mark) -> None:
        """Undoes all changes since a mark: the requests for executors, and the additions to
        bins.
        """
        # Take the additions out of the bins that existed at the mark, and delete the bins that were
        # opened later.
        for into, kind, count in mark.added:
            into.add(kind, -count)
        mark.added.clear()
        del self.opened[mark.opened :]
        self.allowance = mark.allowance

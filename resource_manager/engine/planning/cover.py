"""Chooses the executors to request: a cheap set of executors that serves the waiting requests.

The problem is vector bin packing with bins of several sizes and prices. An offer is a kind of
executor with its cost. The content of an offer is the set of requests that one such executor would
serve. A greedy algorithm requests one executor after the other. Each time, it takes the offer whose
content has the highest worth per cost, as in the greedy algorithm for set cover (V. Chvatal, 1979).

The worth of a request is the cost of its amounts, at the lowest price that any offer has for each
amount. The packing problem has a linear relaxation, which allows fractions of executors. If one
offer is the cheapest in every dimension, the worth of a request is its cost in this relaxation. The
requests with the highest worth are put into an executor first, because it is hardest to find room
for them.

Example: a small executor has 4 cpus and 8 GiB and costs 2. A large executor has 8 cpus and 32 GiB
and costs 5. The lowest prices are 0.5 per cpu and 0.16 per GiB. There are six requests of 1 cpu and
4 GiB, and each of them is worth 1.1. The small executor has room for two requests, which are worth
2.3 together. This is 1.1 per cost. The large executor has room for all six requests, which are
worth 6.8 together. This is 1.4 per cost. So the large executor is requested.

The executors that were chosen last are usually the least full. So an exact search (`exact.py`)
replaces some of them by the cheapest executors for the same requests. If only a few requests wait,
the exact search finds the cheapest set for all of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from math import prod

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.exact import STATES_MAX, least_cost
from resource_manager.engine.planning.offers import (
    PRICE_UNIT,
    Allowance,
    Cover,
    Offer,
    Purchase,
    prices,
)
from resource_manager.engine.planning.packing import Counts, Entry, fill
from resource_manager.engine.planning.steps import Steps

_PARTS = 16
"""The contents of all offers are computed again whenever 1 / `_PARTS` of the remaining requests
have been served.
"""

_FEW = 256
"""For at most this many requests, the search runs several times: once without a preferred offer,
and once for each offer as the preferred offer. Executors of the preferred offer are requested
first. The result with the lowest `_rank` is the best.
"""

_KINDS_PER_STEP = 512


def cover(counts: Mapping[int, int], offers: Sequence[Offer], allowance: Allowance) -> Steps[Cover]:
    """Finds executors for some requests.

    Args:
        counts: the number of requests of each kind.
        offers: the kinds of executors that can be requested.
        allowance: the number of executors of each offer that are allowed to be requested. The
            function does not change it.

    Returns:
        The executors, and the requests that they do not serve: requests that fit on no offer, and
        requests for which limits allow no more executors.
    """
    usable = [at for at, offer in enumerate(offers) if allowance.copies(at, offer)]
    worth = yield from _worth(counts, [offers[at] for at in usable])
    yield 2 * len(worth)
    # If the exact search can handle all requests, preferred offers cannot improve the result.
    few = sum(counts.values()) <= _FEW and prod(n + 1 for n in counts.values()) > STATES_MAX
    made: list[Cover] = []
    for preferred in [None, *usable] if few else [None]:
        search = _Greedy(counts, worth, offers, allowance.copy(), preferred)
        yield from search.run(usable)
        yield from _last_at_least_cost(search.made, offers, search.allowance)
        made.append(search.made)
    best = min(made, key=lambda each: _rank(each, worth, offers))
    best.never = {kind: count for kind, count in counts.items() if count and kind not in worth}
    best.worth = worth
    return best


def _rank(made: Cover, worth: Counts, offers: Sequence[Offer]) -> tuple[int, int, int]:
    """Returns the sort key of a cover. The key consists of the worth of the requests that are left,
    the cost, and the number of executors.
    """
    return (
        sum(worth[kind] * count for kind, count in made.left.items()),
        sum(offers[each.offer].cost * each.copies for each in made.purchases),
        sum(each.copies for each in made.purchases),
    )


def _worth(counts: Mapping[int, int], offers: Sequence[Offer]) -> Steps[Counts]:
    """Returns the worth of one request of each kind that fits on one of these offers."""
    lowest = prices(offers)
    worth: Counts = {}
    for number, (kind, count) in enumerate(counts.items(), 1):
        # The first offer on which the kind fits is sufficient: a kind needs different amounts on
        # different offers only because of separate memory pools and default slots.
        if count and (offer := next((each for each in offers if each.fits(kind)), None)):
            worth[kind] = sum([lowest[at] * amount for at, amount in offer.needs[kind] or ()])
        if number % _KINDS_PER_STEP == 0:
            yield _KINDS_PER_STEP
    return worth


class _Greedy:
    """Repeatedly requests the executor with the highest worth per cost, until all requests are
    served or no remaining request fits. If an offer is preferred, its executors are requested
    first.
    """

    def __init__(
        self,
        counts: Mapping[int, int],
        worth: Counts,
        offers: Sequence[Offer],
        allowance: Allowance,
        preferred: int | None,
    ) -> None:
        order = sorted(worth, key=lambda kind: (-worth[kind], kind))
        self._worth = worth
        self._offers = offers
        self._preferred = preferred
        self.allowance = allowance
        self._entries: list[Entry] = [(kind, counts[kind]) for kind in order]
        # a heap of tuples: negative worth per cost, position of the offer, and content of the offer
        self._fills: list[tuple[int, int, list[Entry]]] = []
        self._left = sum(count for _, count in self._entries)
        self.made = Cover()

    def run(self, usable: Sequence[int]) -> Steps[None]:
        """Adds executors of the usable offers to `made`."""
        renew_at = self._left
        while self._left:
            if self._left <= renew_at:
                # To compute a new content, all entries must be read. So contents are computed again
                # only after 1 / `_PARTS` of the requests have been served.
                renew_at = self._left - 1 - self._left // _PARTS
                self._entries = [entry for entry in self._entries if entry[1]]
                self._fills.clear()
                for at in usable:
                    yield self._fill(at)
            if not self._fills:
                break
            _, at, content = heapq.heappop(self._fills)
            # After this content was computed, executors of other offers possibly served some of its
            # requests.
            fills = min(self._entries[each][1] // count for each, count in content)
            copies = min(fills, self.allowance.copies(at, self._offers[at]))
            if copies:
                self._request(at, content, copies)
            # If limits exclude the offer, do not compute its content again. Otherwise the loop
            # would not end.
            if copies or not fills:
                yield self._fill(at)
        self.made.left = {kind: count for kind, count in self._entries if count}

    def _fill(self, at: int) -> int:
        """Computes the requests that one more executor of an offer would serve.

        Returns the number of entries that were tried.
        """
        offer = self._offers[at]
        content, tried = fill(list(offer.total), offer.needs, self._entries)
        if content:
            value = sum([self._worth[self._entries[each][0]] * count for each, count in content])
            rank = (
                -UNBOUNDED * PRICE_UNIT
                if at == self._preferred
                else -value * PRICE_UNIT // offer.cost
            )
            heapq.heappush(self._fills, (rank, at, content))
        return tried

    def _request(self, at: int, content: list[Entry], copies: int) -> None:
        self.allowance.take(at, self._offers[at], copies)
        serves: Counts = {}
        for each, count in content:
            kind, left = self._entries[each]
            serves[kind] = count
            self._entries[each] = (kind, left - count * copies)
            self._left -= count * copies
        self.made.purchases.append(Purchase(at, serves, copies))


def _last_at_least_cost(made: Cover, offers: Sequence[Offer], allowance: Allowance) -> Steps[None]:
    """Replaces the executors that were chosen last by the cheapest set of executors for the same
    requests.

    The new executors also serve the requests that are left. If no requests are left, executors are
    replaced only if the new executors cost less, or if they cost the same and there are fewer of
    them. As many executors are replaced as the exact search can handle.
    """
    counts, cost, number = dict(made.left), 0, 0
    kept = [Purchase(each.offer, each.content, each.copies) for each in made.purchases]
    while kept:
        last = kept[-1]
        more = {kind: counts.get(kind, 0) + count for kind, count in last.content.items()}
        if prod(count + 1 for count in {**counts, **more}.values()) > STATES_MAX:
            break
        counts.update(more)
        cost, number = cost + offers[last.offer].cost, number + 1
        allowance.take(last.offer, offers[last.offer], -1)
        last.copies -= 1
        if not last.copies:
            kept.pop()
    if number:
        # If requests are left, accept any cost for executors that serve all of them.
        price = (UNBOUNDED * PRICE_UNIT, 0) if made.left else (cost, number)
        better = yield from least_cost(counts, offers, allowance, price)
        if better is not None:
            made.purchases, made.left = [*kept, *better], {}

"""Finds the cheapest executors for a few requests, by dynamic programming with branch and bound.

A state is the number of requests of each kind that are not served yet. The search visits at most
`STATES_MAX` states. The search uses the offers one after the other. To every state that it has
reached, it adds one executor of the offer, once for each full content. (A content is full if no
remaining request could be added to it.) Then it adds a second executor of the offer, a third
executor and so on, until an added executor reaches no state at a lower cost. The search drops a
state if even fractions of executors for the remaining requests would cost too much.

Example: three requests of 2 cpus are left, so the state is (3). An executor of the first offer has
4 cpus and costs 3. Its full content is 2 requests, so one executor leads from (3) to (1) at a cost
of 3. A second executor leads from (1) to (0) at a cost of 6. An executor of the second offer has 2
cpus and costs 1. The first such executor leads from (3) to (2) at a cost of 1, the second leads to
(1) at a cost of 2, and the third leads to (0) at a cost of 3. So the result is three executors of
the second offer.

Without limits, the search finds the cheapest set. With limits, a cheaper set possibly exists: if
two paths lead to a state, the search keeps only the cheaper path. But the cheaper path possibly
uses up more of a limit than the other path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from resource_manager.engine.planning.offers import PRICE_UNIT, Allowance, Offer, Purchase, prices
from resource_manager.engine.planning.packing import Need
from resource_manager.engine.planning.steps import Steps

STATES_MAX = 256
"""The largest number of states of one search. If more states are possible, there is no exact
search.
"""

_VISITS_MAX = 8_000
"""After this many contents have been tried, the search ends without a result."""

_Content = tuple[int, ...]
"""The number of requests of each kind."""


class _Node(NamedTuple):
    """The cheapest known path to a state: its cost, its number of executors, the remaining limits,
    and the executor that was added last.
    """

    cost: int
    number: int
    limits: Sequence[int]
    before: _Node | None = None
    offer: int = 0
    content: _Content = ()


def least_cost(
    counts: Mapping[int, int],
    offers: Sequence[Offer],
    allowance: Allowance,
    price: tuple[int, int],
) -> Steps[list[Purchase] | None]:
    """Finds the cheapest executors that serve all of a few requests. If several sets have the
    lowest cost, the set with the fewest executors is returned.

    Args:
        counts: the number of requests of each kind.
        offers: the kinds of executors that can be requested.
        allowance: the number of executors of each offer that are allowed to be requested.
        price: an upper limit (cost, number of executors). The result must be below this limit.

    Returns:
        The executors, or None if no set is below `price` or the search took too long.
    """
    kinds = list(counts)
    usable = [at for at, offer in enumerate(offers) if allowance.copies(at, offer)]
    bound = _Bound(kinds, [offers[at] for at in usable])
    # The first state contains all requests. The last state contains no request.
    best = {tuple(counts.values()): _Node(0, 0, allowance.limits)}
    end: _Node | None = None
    visits = 0
    for at in usable:
        offer, visits_before = offers[at], visits
        needs = [offer.needs[kind] for kind in kinds]
        contents: dict[_Content, list[_Content]] = {}
        # Add executors of this offer one after another, until an added executor reaches no state at
        # a lower cost.
        reached = best
        for _ in range(allowance.most[at]):
            # Continue only from states that the last step has reached, because this offer was
            # already tried from all other states.
            before, reached = list(reached.items()), {}
            for left, node in before:
                limits = [a - b for a, b in zip(node.limits, offer.counted, strict=True)]
                if min(limits, default=0) < 0:
                    continue
                cost, number = node.cost + offer.cost, node.number + 1
                # The contents depend only on the state, and not on the path to the state.
                if left not in contents:
                    contents[left] = list(_contents(needs, left, list(offer.total), 0))
                for content in contents[left]:
                    visits += 1
                    state = tuple([a - b for a, b in zip(left, content, strict=True)])
                    known = best.get(state)
                    # Drop the new path if another path to the state does not cost more, or if even
                    # fractions of executors for the remaining requests cost too much.
                    if (known is not None and known[:2] <= (cost, number)) or (
                        cost + bound.of(state),
                        number,
                    ) >= price:
                        continue
                    best[state] = reached[state] = _Node(cost, number, limits, node, at, content)
                    if not any(state):
                        # All requests are served, so follow only cheaper paths from now on.
                        end, price = best[state], (cost, number)
            if visits > _VISITS_MAX:
                return None
            if not reached:
                break
        yield visits - visits_before
    return None if end is None else list(_purchases(end, kinds))


class _Bound:
    """Computes a lower bound of the cost of serving the requests of a state. The bound is the cost
    of the most expensive dimension in the linear relaxation.
    """

    def __init__(self, kinds: Sequence[int], offers: Sequence[Offer]) -> None:
        lowest = prices(offers)
        # The first index is the kind, the second is the dimension.
        self._values: list[list[int]] = []
        for kind in kinds:
            needs = [dict(need) for offer in offers if (need := offer.needs[kind]) is not None]
            self._values.append(
                [
                    min([need.get(at, 0) for need in needs], default=0) * lowest[at]
                    for at in range(len(lowest))
                ]
            )
        self._known: dict[_Content, int] = {}

    def of(self, state: _Content) -> int:
        if state not in self._known:
            sums = [
                sum([count * value for count, value in zip(state, column, strict=True)])
                for column in zip(*self._values, strict=True)
            ]
            # Round down: a bound above the true cost could exclude the best path.
            self._known[state] = max(sums, default=0) // PRICE_UNIT
        return self._known[state]


def _contents(
    needs: Sequence[Need | None], left: _Content, room: list[int], kind: int
) -> Iterator[_Content]:
    """Yields all full contents of one executor: contents to which no remaining request could be
    added.
    """
    need = needs[kind] or ()
    most = left[kind] if needs[kind] is not None else 0
    for dimension, amount in need:
        most = min(most, room[dimension] // amount)
    last = kind == len(left) - 1
    # No kind follows the last kind, so only the largest number of its requests makes the content
    # full.
    for count in range(most, most - 1 if last else -1, -1):
        for dimension, amount in need:
            room[dimension] -= amount * count
        for rest in [()] if last else _contents(needs, left, room, kind + 1):
            # While the inner generator is paused, the amounts of the later kinds are already
            # subtracted from `room`.
            if count == most or any(room[each] < amount for each, amount in need):
                yield (count, *rest)
        for dimension, amount in need:
            room[dimension] += amount * count


def _purchases(node: _Node, kinds: Sequence[int]) -> Iterator[Purchase]:
    """Yields the executors on the path to a state."""
    while node.before is not None:
        content = {kind: count for kind, count in zip(kinds, node.content, strict=True) if count}
        yield Purchase(node.offer, content)
        node = node.before

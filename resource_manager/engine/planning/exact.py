"""Finds the cheapest executors for a few requests, by dynamic programming with branch and bound.

A state is the number of requests of each kind that are not served yet. At most `STATES_MAX` states
are visited. The search uses the offers one after the other. From every state that it has reached,
it adds one executor of the offer. It tries each full content: a content to which no remaining
request could be added. Then it adds a second executor of the offer, and so on, until it reaches no
state at a lower cost. A state is dropped if even fractions of executors for the remaining requests
would cost too much.

Example: three requests of 2 cpus are left, so the state is (3). An offer with 4 cpus costs 3. Its
full content is 2 requests, so one executor leads from (3) to (1) at cost 3. A second executor leads
from (1) to (0) at cost 6. Another offer with 2 cpus costs 1. Its executors lead from (3) to (2),
(1) and (0) at costs 1, 2 and 3. So three executors of this offer are the result.

Without limits, the search finds the cheapest set. With limits, a cheaper set may exist: of two
paths to a state, the search keeps only the cheaper path, even if it uses more of a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from resource_manager.engine.planning.offers import PRICE_UNIT, Allowance, Offer, Purchase, prices
from resource_manager.engine.planning.packing import Need
from resource_manager.engine.planning.steps import Steps

STATES_MAX = 256
"""The largest number of states of one search. If there could be more states, no exact search is
made.
"""

_VISITS_MAX = 8_000
"""The search is given up after it has tried this many contents."""

_Content = tuple[int, ...]
"""Number of requests of each kind."""


class _Node(NamedTuple):
    """The cheapest known path to a state: its cost and number of executors, the remaining limits,
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
    """Finds the cheapest executors that serve all of a few requests. If several sets have this
    cost, the set with the fewest executors is taken.

    Args:
        counts: number of requests of each kind.
        offers: the executors that can be requested.
        allowance: how many executors of each offer may be requested.
        price: (cost, number of executors). The result must be below it.

    Returns:
        The executors; None if no set is below `price`, or if the search was given up.
    """
    kinds = list(counts)
    usable = [at for at, offer in enumerate(offers) if allowance.copies(at, offer)]
    bound = _Bound(kinds, [offers[at] for at in usable])
    # The first state has all requests. The search ends at the state without requests.
    best = {tuple(counts.values()): _Node(0, 0, allowance.limits)}
    end: _Node | None = None
    visits = 0
    for at in usable:
        offer, visits_before = offers[at], visits
        needs = [offer.needs[kind] for kind in kinds]
        contents: dict[_Content, list[_Content]] = {}
        # Adds executors of this offer one after another, as long as a state is reached at a lower
        # cost.
        reached = best
        for _ in range(allowance.most[at]):
            # Continues only from states that the last step reached. From other states, this offer
            # has been tried already.
            before, reached = list(reached.items()), {}
            for left, node in before:
                limits = [a - b for a, b in zip(node.limits, offer.counted, strict=True)]
                if min(limits, default=0) < 0:
                    continue
                cost, number = node.cost + offer.cost, node.number + 1
                # The contents depend only on the state, and not on the path to it.
                if left not in contents:
                    contents[left] = list(_contents(needs, left, list(offer.total), 0))
                for content in contents[left]:
                    visits += 1
                    state = tuple([a - b for a, b in zip(left, content, strict=True)])
                    known = best.get(state)
                    # The state is dropped if a path of at most this cost is known, or if even
                    # fractions of executors for the remaining requests cost too much.
                    if (known is not None and known[:2] <= (cost, number)) or (
                        cost + bound.of(state),
                        number,
                    ) >= price:
                        continue
                    best[state] = reached[state] = _Node(cost, number, limits, node, at, content)
                    if not any(state):
                        # From now on only cheaper paths are followed.
                        end, price = best[state], (cost, number)
            if visits > _VISITS_MAX:
                return None
            if not reached:
                break
        yield visits - visits_before
    return None if end is None else list(_purchases(end, kinds))


class _Bound:
    """Computes a lower bound of the cost to serve the requests of a state: the cost in the linear
    relaxation of the most expensive dimension.
    """

    def __init__(self, kinds: Sequence[int], offers: Sequence[Offer]) -> None:
        lowest = prices(offers)
        self._values: list[list[int]] = []  # by kind and dimension
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
            # Rounded down, because a bound above the true cost could drop the best path.
            self._known[state] = max(sums, default=0) // PRICE_UNIT
        return self._known[state]


def _contents(
    needs: Sequence[Need | None], left: _Content, room: list[int], kind: int
) -> Iterator[_Content]:
    """Yields all contents of one executor to which no remaining request could be added."""
    need = needs[kind] or ()
    most = left[kind] if needs[kind] is not None else 0
    for dimension, amount in need:
        most = min(most, room[dimension] // amount)
    last = kind == len(left) - 1
    # No kind follows the last kind, so only the largest number of its requests is useful.
    for count in range(most, most - 1 if last else -1, -1):
        for dimension, amount in need:
            room[dimension] -= amount * count
        for rest in [()] if last else _contents(needs, left, room, kind + 1):
            # While this generator is paused here, the amounts of later kinds are already subtracted
            # from `room`.
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

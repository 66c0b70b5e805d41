"""The cheapest executors for a few requests, by dynamic programming.

A state is a set of requests that are left to serve; at most `STATES_MAX` states are visited. The
offers are considered one after the other. From every state that was reached so far, at the least
known cost, the search adds one executor of the offer. It tries each full content: one to which no
request that is left could be added. Then it adds a second executor of the offer, and so on, as long
as that reaches any state at a lower cost. A state is dropped if serving the rest costs too much
even with fractions of executors.

The result is the cheapest one unless limits bind: of two paths to a state only the cheaper one is
kept, even if it uses more of a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from resource_manager.engine.planning.offers import PRICE_UNIT, Allowance, Offer, Purchase, prices
from resource_manager.engine.planning.packing import Need
from resource_manager.engine.planning.steps import Steps

STATES_MAX = 256
"""Most states of one search. If there may be more, no exact search is made."""

_VISITS_MAX = 8_000
"""Most contents that are tried before a search is given up."""

_Content = tuple[int, ...]
"""How many requests of each kind."""


class _Node(NamedTuple):
    """The cheapest known path to a state: its price, what it leaves of the limits, and the executor
    that was added last.
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
    """Finds executors that serve all of a few requests at the least cost, then the least number.

    Args:
        counts: how many requests of each kind.
        offers: what can be requested.
        allowance: how many of each.
        price: (cost, number) that the result must be below.

    Returns:
        The executors; None if no set costs less, or the search was given up.
    """
    kinds = list(counts)
    usable = [at for at, offer in enumerate(offers) if allowance.copies(at, offer)]
    bound = _Bound(kinds, [offers[at] for at in usable])
    # All requests are left at first; the state without any is the end.
    best = {tuple(counts.values()): _Node(0, 0, allowance.limits)}
    end: _Node | None = None
    visits = 0
    for at in usable:
        offer, visits_before = offers[at], visits
        needs = [offer.needs[kind] for kind in kinds]
        contents: dict[_Content, list[_Content]] = {}
        # One executor after another of this offer, as long as that reaches a cheaper state.
        reached = best
        for _ in range(allowance.most[at]):
            # Only states of the last step go on; others were tried with this offer before.
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
                    # Dropped if the state is known for no more, or if even fractions of executors
                    # cost too much.
                    if (known is not None and known[:2] <= (cost, number)) or (
                        cost + bound.of(state),
                        number,
                    ) >= price:
                        continue
                    best[state] = reached[state] = _Node(cost, number, limits, node, at, content)
                    if not any(state):
                        # From here on only what is cheaper than this is followed.
                        end, price = best[state], (cost, number)
            if visits > _VISITS_MAX:
                return None
            if not reached:
                break
        yield visits - visits_before
    return None if end is None else list(_purchases(end, kinds))


class _Bound:
    """Computes a lower bound of the cost to serve a state: the linear relaxation of its scarcest
    dimension.
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
            # Rounded down, because a bound above the true cost would drop the best way.
            self._known[state] = max(sums, default=0) // PRICE_UNIT
        return self._known[state]


def _contents(
    needs: Sequence[Need | None], left: _Content, room: list[int], kind: int
) -> Iterator[_Content]:
    """Yields all contents of one executor to which no request that is left could be added."""
    need = needs[kind] or ()
    most = left[kind] if needs[kind] is not None else 0
    for dimension, amount in need:
        most = min(most, room[dimension] // amount)
    last = kind == len(left) - 1
    # Nothing comes after the last kind, so only the most of it is useful.
    for count in range(most, most - 1 if last else -1, -1):
        for dimension, amount in need:
            room[dimension] -= amount * count
        for rest in [()] if last else _contents(needs, left, room, kind + 1):
            # What later kinds take is out of the room as long as they are not asked to go on.
            if count == most or any(room[each] < amount for each, amount in need):
                yield (count, *rest)
        for dimension, amount in need:
            room[dimension] += amount * count


def _purchases(node: _Node, kinds: Sequence[int]) -> Iterator[Purchase]:
    """Yields the executors that lead to a state."""
    while node.before is not None:
        content = {kind: count for kind, count in zip(kinds, node.content, strict=True) if count}
        yield Purchase(node.offer, content)
        node = node.before

"""How many of a line can be served within limits, before it is worked out on which executors.

Two answers: one from above, as if executors could be filled to the brim with pieces of requests;
and a rough one for very many different requests, who are treated as classes of similar ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.classes import KINDS_MAX, classes_of, mean_offers
from resource_manager.engine.planning.cover import left_quickly
from resource_manager.engine.planning.exact import Offer
from resource_manager.engine.planning.packing import Counts, Need

_ROUNDS_MAX = 8
"""How often a number is tried at most."""

_FILLED = 60
"""Per cent of an executor that is filled at least, on average, if very many wait."""


def first_in_line(line: Sequence[tuple[int, int]], most: int | None) -> Counts:
    """The first so many in line, by kind."""
    counts: Counts = {}
    for kind, count in line:
        here = count if most is None else min(count, most)
        if here:
            counts[kind] = counts.get(kind, 0) + here
        if most is not None:
            most -= here
            if not most:
                break
    return counts


def most_room(offers: Sequence[Offer], limits: Sequence[int]) -> list[int] | None:
    """More than all that may be asked for can have, by dimension; None: there is no limit."""
    limited = [(at, limit) for at, limit in enumerate(limits) if limit < UNBOUNDED]
    numbers = [
        min([offer.most, *[limit // offer.total[at] for at, limit in limited if offer.total[at]]])
        for offer in offers
    ]
    if any(number >= UNBOUNDED for number in numbers):
        return None
    room = []
    for each in range(len(limits)):
        amounts = [n * offer.total[each] for n, offer in zip(numbers, offers, strict=True)]
        most = sum(amounts)
        for at, limit in limited:  # all of it spent on what has most of this for it
            shares = [limit * o.total[each] // o.total[at] + 1 for o in offers if o.total[at]]
            others = [n for n, o in zip(amounts, offers, strict=True) if not o.total[at]]
            most = min(most, sum(others) + max(shares, default=0))
        room.append(most)
    return room


def served_within(
    line: Sequence[tuple[int, int]], offers: Sequence[Offer], limits: Sequence[int]
) -> int:
    """About so many of the line can be served; all of them, as long as limits are far away."""
    total = sum(count for _, count in line)
    room = most_room(offers, limits)
    if room is None:
        return total
    needs = [offer.needs for offer in offers]
    if served_at_most(line, needs, [amount * _FILLED // 100 for amount in room]) == total:
        return total
    return _served_roughly(line, served_at_most(line, needs, room), offers, limits)


def served_at_most(
    line: Sequence[tuple[int, int]], needs: Sequence[Sequence[Need | None]], room: Sequence[int]
) -> int:
    """So many of the line, or fewer, could be served if executors could be filled to the brim."""
    lists = list({id(each): each for each in needs}.values())
    left = list(room)
    served = 0
    for kind, count in line:
        fit = count
        need = _least_need(kind, lists)
        for at, amount in need:
            if left[at] < amount * fit:
                fit = left[at] // amount
        for at, amount in need:
            left[at] -= amount * fit
        served += fit
        if fit < count:
            return served
    return served


def _served_roughly(
    line: Sequence[tuple[int, int]], most: int, offers: Sequence[Offer], limits: Sequence[int]
) -> int:
    """About so many of the line can be served at a good price, at most so many."""
    counts = first_in_line(line, most)
    if len(counts) <= KINDS_MAX:
        return most
    classes = classes_of(counts, offers)
    means = mean_offers(classes, offers)
    of_kind = {kind: number for number, each in enumerate(classes) for kind in each.members}
    for _ in range(_ROUNDS_MAX):
        members: Counts = {}
        for kind, count in first_in_line(line, most).items():
            members[of_kind[kind]] = members.get(of_kind[kind], 0) + count
        left = left_quickly(members, means, limits)
        most -= left
        if not left or most < 1:
            break
    return max(0, most)


def _least_need(kind: int, lists: Sequence[Sequence[Need | None]]) -> Need:
    """What is needed, where offers agree about it."""
    if len(lists) == 1:
        return lists[0][kind] or ()
    needs = {need for each in lists if (need := each[kind]) is not None}
    return needs.pop() if len(needs) == 1 else ()

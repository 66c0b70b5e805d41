"""Very many different requests, treated as few classes of similar ones.

A class stands for its members by the mean of what they need, which is good enough to decide which
executors to ask for; what really goes into each is then found with the members themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from resource_manager.engine.placement.elastic import UNBOUNDED
from resource_manager.engine.planning.exact import Offer
from resource_manager.engine.planning.packing import Counts, Need

KINDS_MAX = 64
"""So many kinds are few enough to be told apart as they are."""

CLASSES_MAX = 40
"""Classes that are told apart at most; one more costs time in every cover that is tried."""

_FINEST_BITS = 2
"""Similar at first are amounts that agree in so many bits after the leading one."""

_LOOKED_BACK = 4
"""Members, largest first, that are tried when the largest of a class does not fit."""

_Key = tuple[tuple[bool, ...], tuple[tuple[int, int, int], ...]]
"""Where a kind cannot be (by what is needed there, which many offers share), and the size of what
it needs: (dimension, bits, leading bits).
"""


@dataclass(slots=True)
class Class:
    """Similar kinds, smallest first, each as often as it is wanted."""

    members: list[int]


def classes_of(counts: Mapping[int, int], offers: Sequence[Offer]) -> list[Class]:
    """Puts together what is similar, coarser and coarser until there are few classes."""
    lists = list({id(offer.needs): offer.needs for offer in offers}.values())
    found: dict[_Key, list[int]] = {}
    for kind in counts:
        row = [each[kind] for each in lists]
        mask = tuple([each is None for each in row])
        need = row[0] or next(each for each in row if each is not None)
        sizes = tuple(
            [
                (at, (bits := amount.bit_length()), amount >> max(0, bits - 1 - _FINEST_BITS))
                for at, amount in need
                if at
            ]
        )
        key = (mask, sizes)
        if key in found:
            found[key].append(kind)
        else:
            found[key] = [kind]
    dropped = 0
    while len(found) > CLASSES_MAX and dropped < _FINEST_BITS + 4:
        dropped += 1
        merged: dict[_Key, list[int]] = {}
        for key, kinds in found.items():
            merged.setdefault(_coarser(key, dropped), []).extend(kinds)
        found = merged
    return [Class(_in_order(kinds, counts, offers)) for kinds in found.values()]


def _coarser(key: _Key, dropped: int) -> _Key:
    mask, sizes = key
    fewer = max(0, dropped - _FINEST_BITS)
    return mask, tuple([(at, bits >> fewer, lead >> 1) for at, bits, lead in sizes])


def _in_order(kinds: list[int], counts: Mapping[int, int], offers: Sequence[Offer]) -> list[int]:
    largest = [max(each) or 1 for each in zip(*[offer.total for offer in offers], strict=True)]
    lists = list({id(offer.needs): offer.needs for offer in offers}.values())
    sizes: list[tuple[float, int]] = []
    for kind in kinds:
        need = lists[0][kind] or next((n[kind] for n in lists if n[kind] is not None), None) or ()
        sizes.append((max([a / largest[at] for at, a in need if at], default=0.0), kind))
    sizes.sort()
    return [kind for _, kind in sizes for _ in range(counts[kind])]


def mean_offers(classes: Sequence[Class], offers: Sequence[Offer]) -> list[Offer]:
    """The same offers, with what the mean member of each class takes."""
    known: dict[int, list[Need | None]] = {}  # many offers share what is needed there
    for offer in offers:
        if id(offer.needs) not in known:
            known[id(offer.needs)] = [_mean(each.members, offer) for each in classes]
    return [Offer(offer.total, known[id(offer.needs)], offer.cost, offer.most) for offer in offers]


def _mean(members: list[int], offer: Offer) -> Need | None:
    sums: dict[int, int] = {}
    for kind in members:
        need = offer.needs[kind]
        if need is None:
            return None
        for at, amount in need:
            sums[at] = sums.get(at, 0) + amount
    return tuple((at, -(-amount // len(members))) for at, amount in sums.items())


def pack(
    classes: Sequence[Class],
    shares: Mapping[int, Counts],
    offers: Sequence[Offer],
    limits: Sequence[int],
) -> tuple[list[tuple[int, Counts]], Counts]:
    """Puts the members themselves into executors.

    Args:
        classes: who there is.
        shares: how many of each class go on which offer.
        offers: what they take there.
        limits: as for `cover`.

    Returns:
        What goes into which executor, as (offer, how many of each kind), and who is left.
    """
    waiting = [list(each.members) for each in classes]
    packed: list[tuple[int, Counts]] = []
    allowed = list(limits)
    limited = [at for at, limit in enumerate(limits) if limit < UNBOUNDED]
    for at, share in shares.items():
        # Every so-manieth member, so that all offers get large and small ones.
        pools = {number: _dealt(waiting[number], count) for number, count in share.items() if count}
        offer, made = offers[at], 0
        order = sorted(pools, key=lambda number: -_size(classes[number], offer))
        while any(pools.values()) and made < offer.most:
            if any(offer.total[each] > allowed[each] for each in limited):
                break
            fill = _fill(offer, pools, order)
            if not fill:
                break
            packed.append((at, fill))
            made += 1
            for each in limited:
                allowed[each] -= offer.total[each]
        for number, pool in pools.items():
            waiting[number].extend(pool)
    left: Counts = {}
    for members in waiting:
        for kind in members:
            left[kind] = left.get(kind, 0) + 1
    return packed, left


def _dealt(members: list[int], count: int) -> list[int]:
    """Takes so many out, spread over all sizes."""
    if count >= len(members):
        taken = members[:]
        members.clear()
        return taken
    chosen = {at * len(members) // count for at in range(count)}
    taken = [kind for at, kind in enumerate(members) if at in chosen]
    members[:] = [kind for at, kind in enumerate(members) if at not in chosen]
    return taken


def _size(one: Class, offer: Offer) -> float:
    need = offer.needs[one.members[-1]] or ()
    return max([amount / (offer.total[at] or 1) for at, amount in need], default=0.0)


def _fill(offer: Offer, pools: dict[int, list[int]], order: list[int]) -> Counts:
    """One executor, large members first."""
    room, needs = list(offer.total), offer.needs
    fill: Counts = {}
    for number in order:
        pool = pools[number]
        while pool:
            at = len(pool) - 1
            if not fits(room, needs[pool[at]]):
                if not fits(room, needs[pool[0]]):
                    break
                lowest = max(0, at - _LOOKED_BACK)
                at = next((i for i in range(at - 1, lowest, -1) if fits(room, needs[pool[i]])), 0)
            kind = pool.pop(at)
            fill[kind] = fill.get(kind, 0) + 1
            for each, amount in needs[kind] or ():
                room[each] -= amount
    return fill


def fits(room: Sequence[int], need: Need | None) -> bool:
    """True if a room has what is needed."""
    if need is None:
        return False
    for at, amount in need:  # noqa: SIM110 -- all() would take twice as long
        if room[at] < amount:
            return False
    return True


def fits_somewhere(kind: int, offers: Sequence[Offer]) -> bool:
    """True if one of this kind fits into an empty executor that may be asked for."""
    for offer in offers:  # noqa: SIM110 -- any() would take twice as long
        if offer.most and fits(offer.total, offer.needs[kind]):
            return True
    return False

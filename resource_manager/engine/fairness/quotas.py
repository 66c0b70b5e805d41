"""How much a group may have at most, and whether it has what it is to have at least.

Decides by sums alone: what a group's subtree has booked, what is to be added, what may be. A slot
counts from its placing until nothing of it is left, so what is being taken down counts as well. A
limit says when no more is added; it never takes anything away. Refuses to know queues, hosts and
who comes first.

Limits name "cpu_milli", "best_effort_cpu_milli", "memory_bytes" (all memory parts together) and
"extended.NAME". A dimension that a maximum does not name has no limit; one that it names with 0
admits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_PARTS,
    Amounts,
)

_PARTS = frozenset(MEMORY_PARTS)

_NAMED = (CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES)

UNBOUNDED = float("inf")


class Bounded(Protocol):
    """A group as limits see it; the flows of the tree are such."""

    @property
    def id(self) -> str:
        """Its name in the tree."""
        ...

    @property
    def used(self) -> Mapping[str, int]:
        """What all slots of its subtree have booked, as `counted` counts it."""
        ...

    @property
    def maximum(self) -> Amounts:
        """What they may have booked at most."""
        ...


@dataclass(frozen=True, slots=True)
class QuotaBlock:
    """The limit that something does not get past."""

    group_id: str  # of the flow
    dimension: str
    need: int
    used: int
    maximum: int

    @property
    def never(self) -> bool:
        """True if it would not fit even if the group had nothing."""
        return self.need > self.maximum


def counted(amounts: Amounts) -> dict[str, int]:
    """Amounts as limits count them: memory is one, whether or not an executor pools it apart."""
    if _PARTS.isdisjoint(amounts):
        return {name: amount for name, amount in amounts.items() if amount}
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        name = MEMORY_BYTES if name in _PARTS else name  # noqa: PLW2901
        if amount:
            found[name] = found.get(name, 0) + amount
    return found


def room(groups: Iterable[Bounded], need: Amounts, most: int) -> int:
    """How many times `need` may be added, at most `most`, below the maximum of every one of these.

    Args:
        groups: the ancestors of whom it is for, in any order; those without limits do no harm.
        need: of one, as `counted`. What it does not name it does not add to, and what is above its
            maximum already there does not stop it.
        most: an upper bound of the answer.
    """
    for group in groups:
        for name, limit in group.maximum.items():
            amount = need.get(name, 0)
            if amount:
                most = min(most, (limit - group.used.get(name, 0)) // amount)
                if most <= 0:
                    return 0
    return most


def quota_block(groups: Iterable[Bounded], need: Amounts) -> QuotaBlock | None:
    """The limit that does not let `need` be added; None: it may be. Of several, one that would
    never let it, else the first.
    """
    found: QuotaBlock | None = None
    for group in groups:
        for name, limit in group.maximum.items():
            amount, used = need.get(name, 0), group.used.get(name, 0)
            if amount and used + amount > limit:
                here = QuotaBlock(group.id, name, amount, used, limit)
                if here.never:
                    return here
                found = found or here
    return found


def fulfilment(used: Amounts, minimum: Amounts) -> float:
    """How far a guaranteed minimum is reached: the largest share of it that is used over its
    dimensions. Below 1 it is not; infinite where there is none.

    The largest, not the smallest: work that needs no memory shall not go first for ever because
    the guaranteed memory lies idle.
    """
    shares = [used.get(name, 0) / amount for name, amount in minimum.items() if amount]
    return max(shares, default=UNBOUNDED)


GroupT = TypeVar("GroupT", bound=Bounded)


class QuotaLedger:
    """What could be added to groups, one after another, if there were capacity for all of it.

    For plans: nobody asks for executors on behalf of what a maximum stops.
    """

    def __init__(self) -> None:
        self._added: dict[str, dict[str, int]] = {}

    def admit(self, groups: Iterable[Bounded], need: Amounts, count: int) -> int:
        """So many of `count` may be added to what was admitted before; they are noted."""
        limited = [group for group in groups if group.maximum]
        admitted = room(
            [_WithAdmitted(group, self._added.get(group.id)) for group in limited], need, count
        )
        self._note(limited, need, admitted)
        return admitted

    def admit_all(self, groups: Iterable[Bounded], needs: Iterable[tuple[Amounts, int]]) -> bool:
        """Likewise what can only be added as a whole: (need of one, how many)."""
        limited = [group for group in groups if group.maximum]
        together = total_need(needs)
        ahead = [_WithAdmitted(group, self._added.get(group.id)) for group in limited]
        if not room(ahead, together, 1):
            return False
        self._note(limited, together, 1)
        return True

    def _note(self, groups: Iterable[Bounded], need: Amounts, count: int) -> None:
        for group in groups if count else ():
            added = self._added.setdefault(group.id, {})
            for name in group.maximum:
                if amount := need.get(name, 0):
                    added[name] = added.get(name, 0) + amount * count


def total_need(needs: Iterable[tuple[Amounts, int]]) -> dict[str, int]:
    """What is added by something that is placed as a whole, such as a gang."""
    found: dict[str, int] = {}
    for need, count in needs:
        for name, amount in need.items():
            found[name] = found.get(name, 0) + amount * count
    return found


class _WithAdmitted:
    """A group with what was admitted."""

    __slots__ = ("id", "maximum", "used")

    def __init__(self, group: Bounded, added: Mapping[str, int] | None) -> None:
        self.id = group.id
        self.maximum = group.maximum
        self.used: Mapping[str, int] = group.used
        if added:
            self.used = {
                name: group.used.get(name, 0) + added.get(name, 0) for name in group.maximum
            }


def unlimited_dimension(names: Iterable[str]) -> str:
    """The first of these dimensions that no limit can name; empty: there is none."""
    for name in names:
        if name not in _NAMED and not name.startswith(EXTENDED_PREFIX):
            return name
    return ""

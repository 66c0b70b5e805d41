"""Quotas: the maximum of a group, and whether its guaranteed minimum is reached.

What counts is what all slots of a group's subtree have booked. A slot counts from its placement
until nothing of it is left, so also while it is taken down. A quota only says whether more may be
added; it never takes anything away.

Limits name "cpu_milli", "best_effort_cpu_milli", "memory_bytes" (all memory parts together) and
"extended.NAME". A dimension that a maximum does not name is unlimited. One that it names with 0
admits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_PARTS,
    Amounts,
)

_PARTS = frozenset(MEMORY_PARTS)

_NAMED = (CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES)

UNBOUNDED = float("inf")


class Bounded(Protocol):
    """What quota checks need of a group; the flows of the fairness tree have it."""

    @property
    def id(self) -> str:
        """Id of the flow, such as "group/NAME"."""
        ...

    @property
    def used(self) -> Mapping[str, int]:
        """What all slots of its subtree have booked, as `counted`."""
        ...

    @property
    def maximum(self) -> Amounts:
        """Upper limits, by dimension."""
        ...


@dataclass(frozen=True, slots=True)
class QuotaBlock:
    """A limit that a request would exceed."""

    group_id: str  # id of the flow
    dimension: str
    need: int
    used: int
    maximum: int

    @property
    def never(self) -> bool:
        """True if it would not fit even if the group used nothing."""
        return self.need > self.maximum


def counted(amounts: Amounts) -> dict[str, int]:
    """Returns amounts as limits count them: all memory parts together as "memory_bytes", and no
    zeros.
    """
    # Most executors have one memory pool; then nothing has to be added up.
    if _PARTS.isdisjoint(amounts):
        return {name: amount for name, amount in amounts.items() if amount}
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        name = MEMORY_BYTES if name in _PARTS else name  # noqa: PLW2901
        if amount:
            found[name] = found.get(name, 0) + amount
    return found


def room(groups: Iterable[Bounded], need: Amounts, most: int) -> int:
    """Returns how many times `need` may be added within the maximum of each of these groups.

    Args:
        groups: the groups that contain the job, in any order; those without limits may be among
            them.
        need: what one slot adds, as `counted`. Dimensions that it does not name are not checked, so
            it is admitted even where they are above their maximum already.
        most: an upper bound of the answer.
    """
    for group in groups:
        for name, limit in group.maximum.items():
            amount = need.get(name, 0)
            if amount:
                most = min(most, (limit - group.used.get(name, 0)) // amount)
                # Negative if the group is above a maximum that was lowered.
                if most <= 0:
                    return 0
    return most


def quota_block(groups: Iterable[Bounded], need: Amounts) -> QuotaBlock | None:
    """Returns the limit that blocks `need`; None: it is admitted. Of several, one that could never
    admit it comes first, else the first one found.
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
    """Returns how far a guaranteed minimum is reached: the largest used share of it over its
    dimensions. Below 1 it is not reached. Infinite if there is no minimum.

    It is the largest share, not the smallest. Otherwise work that needs no memory would come first
    indefinitely, because the guaranteed memory stays unused.
    """
    shares = [used.get(name, 0) / amount for name, amount in minimum.items() if amount]
    return max(shares, default=UNBOUNDED)


GroupT = TypeVar("GroupT", bound=Bounded)


class QuotaLedger:
    """What a scale-up plan may add to groups, one request after another, if there were capacity for
    it. So no executors are requested for what a maximum blocks.
    """

    def __init__(self) -> None:
        self._added: dict[str, dict[str, int]] = {}

    def admit(self, groups: Iterable[Bounded], need: Amounts, count: int) -> int:
        """Admits up to `count` slots on top of what was admitted before, and notes them.

        Args:
            groups: the groups that contain the job.
            need: what one slot adds, as `counted`.
            count: number of slots.

        Returns:
            How many are admitted.
        """
        limited = [group for group in groups if group.maximum]
        admitted = room(
            [_WithAdmitted(group, self._added.get(group.id)) for group in limited], need, count
        )
        self._note(limited, need, admitted)
        return admitted

    def _note(self, groups: Iterable[Bounded], need: Amounts, count: int) -> None:
        for group in groups if count else ():
            added = self._added.setdefault(group.id, {})
            for name in group.maximum:
                if amount := need.get(name, 0):
                    added[name] = added.get(name, 0) + amount * count


def total_need(needs: Iterable[tuple[Amounts, int]]) -> dict[str, int]:
    """Returns what something adds that is placed as a whole, such as a gang."""
    found: dict[str, int] = {}
    for need, count in needs:
        for name, amount in need.items():
            found[name] = found.get(name, 0) + amount * count
    return found


class _WithAdmitted:
    """A group, with what was admitted counted as used."""

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
    """Returns the first of these dimensions that no limit can name; empty: there is none."""
    for name in names:
        if name not in _NAMED and not name.startswith((EXTENDED_PREFIX, DEVICE_PREFIX)):
            return name
    return ""

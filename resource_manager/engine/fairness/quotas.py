"""Checks quotas: the maximum of a group, and the part of its guaranteed minimum that is reached.

A quota counts the amounts that all slots in the group's subtree have booked. A slot counts from its
placement until it is deleted, even while it is being freed. A quota limits only new slots and
growth. A quota never takes a slot away.

These dimensions can have limits: "slots" (the number of slots), "cpu_milli",
"best_effort_cpu_milli", "memory_bytes" (all memory parts together), "extended.NAME" and
"device.TYPE". A dimension without a maximum is unlimited. A maximum of 0 admits no slot that needs
this dimension.

Example: a group has a maximum of 8 cores, and its slots have booked 7 cores. A request for 2 cores
is blocked until slots of the group end. A request for 9 cores is blocked until the maximum is
raised.
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

SLOTS = "slots"
"""The dimension of limits that counts slots. The size of a slot does not matter."""

_NAMED = (SLOTS, CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES)

UNBOUNDED = float("inf")


class Bounded(Protocol):
    """The attributes of a group that quota checks read. The flows of the fairness tree have these
    attributes.
    """

    @property
    def id(self) -> str:
        """The id of the flow, such as "group/NAME"."""
        ...

    @property
    def used(self) -> Mapping[str, int]:
        """The amounts that all slots in the group's subtree have booked, in the form of
        `counted`.
        """
        ...

    @property
    def running(self) -> int:
        """The number of all slots in the group's subtree."""
        ...

    @property
    def maximum(self) -> Amounts:
        """The upper limits, by dimension."""
        ...


@dataclass(frozen=True, slots=True)
class QuotaBlock:
    """A limit that a request would exceed."""

    group_id: str  # id of the group's flow
    dimension: str
    need: int
    used: int
    maximum: int

    @property
    def never(self) -> bool:
        """True if the request would exceed the limit even if the group used nothing."""
        return self.need > self.maximum


def counted(amounts: Amounts) -> dict[str, int]:
    """Returns amounts in the form in which limits are given: without zeros, and with all memory
    parts added up as "memory_bytes".
    """
    # Most executors have a single memory pool, so there are no parts to add up.
    if _PARTS.isdisjoint(amounts):
        return {name: amount for name, amount in amounts.items() if amount}
    found: dict[str, int] = {}
    for name, amount in amounts.items():
        name = MEMORY_BYTES if name in _PARTS else name  # noqa: PLW2901
        if amount:
            found[name] = found.get(name, 0) + amount
    return found


def needs_slots(booked: Amounts, count: int = 1) -> dict[str, int]:
    """Returns the amounts that `count` slots need of the limits of a group. Each of these slots
    books the given amounts.
    """
    return {**booked, SLOTS: count}


def used_of(group: Bounded, name: str) -> int:
    """Returns the amount that the slots in a group's subtree use of one dimension of the limits."""
    return group.running if name == SLOTS else group.used.get(name, 0)


def room(groups: Iterable[Bounded], need: Amounts, most: int) -> int:
    """Returns how many times `need` can be added without exceeding the maximum of one of these
    groups.

    Args:
        groups: the groups that contain the job, in any order. A group without limits has no effect.
        need: the amounts of one slot, in the form of `counted` and `needs_slots`. Only the
            dimensions of `need` are checked. The use of another dimension can be above its maximum.
        most: the largest number to return.
    """
    for group in groups:
        for name, limit in group.maximum.items():
            amount = need.get(name, 0)
            if amount:
                most = min(most, (limit - used_of(group, name)) // amount)
                # The number is negative if the maximum was lowered below the amount that is in use.
                if most <= 0:
                    return 0
    return most


def quota_block(groups: Iterable[Bounded], need: Amounts) -> QuotaBlock | None:
    """Returns the limit that blocks `need`. The result is None if all groups admit `need`.

    If several limits block `need`, the function prefers a limit that is lower than `need` itself.
    Such a limit would block `need` even if all slots ended. If there is no such limit, the function
    returns the first limit that blocks `need`.
    """
    found: QuotaBlock | None = None
    for group in groups:
        for name, limit in group.maximum.items():
            amount, used = need.get(name, 0), used_of(group, name)
            if amount and used + amount > limit:
                here = QuotaBlock(group.id, name, amount, used, limit)
                if here.never:
                    return here
                found = found or here
    return found


def fulfilment(used: Amounts, running: int, minimum: Amounts) -> float:
    """Returns the part of a guaranteed minimum that is reached. This part is the largest ratio of
    used amount to guaranteed amount over all dimensions. If the part is 1 or more, the minimum is
    reached. If there is no minimum, the part is infinite.

    Example: if 2 of 4 cores and 0 of 8 GiB are used, the reached part is 0.5. The smallest ratio (0
    in this example) would be a wrong measure. If the slots of a group need no memory, its
    guaranteed memory stays unused, and the group would always come first.

    Args:
        used: the amounts that the group's slots have booked.
        running: the number of the group's slots.
        minimum: the guaranteed amounts.
    """
    shares = [
        (running if name == SLOTS else used.get(name, 0)) / amount
        for name, amount in minimum.items()
        if amount
    ]
    return max(shares, default=UNBOUNDED)


GroupT = TypeVar("GroupT", bound=Bounded)


class QuotaLedger:
    """Counts, by group, the amounts of the slots that a plan for new executors has admitted. With
    these counts, the plan requests no executors for slots that a maximum would block.
    """

    def __init__(self) -> None:
        self._added: dict[str, dict[str, int]] = {}

    def admit(self, groups: Iterable[Bounded], need: Amounts, count: int) -> int:
        """Admits up to `count` more slots. From now on, the admitted slots count as used.

        Args:
            groups: the groups that contain the job.
            need: the amounts of one slot, in the form of `counted` and `needs_slots`.
            count: the largest number of slots to admit.

        Returns:
            The number of admitted slots.
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
    """Returns the sum of amounts multiplied by counts, for example over all members of a gang."""
    found: dict[str, int] = {}
    for need, count in needs:
        for name, amount in need.items():
            found[name] = found.get(name, 0) + amount * count
    return found


class _WithAdmitted:
    """A group whose used amounts include the slots that the plan has admitted."""

    __slots__ = ("id", "maximum", "running", "used")

    def __init__(self, group: Bounded, added: Mapping[str, int] | None) -> None:
        self.id = group.id
        self.maximum = group.maximum
        self.used: Mapping[str, int] = group.used
        self.running = group.running
        if added:
            self.running += added.get(SLOTS, 0)
            self.used = {
                name: group.used.get(name, 0) + added.get(name, 0) for name in group.maximum
            }


def unlimited_dimension(names: Iterable[str]) -> str:
    """Returns the first of these dimensions that cannot be limited. The result is empty if all
    these dimensions can be limited.
    """
    for name in names:
        if name not in _NAMED and not name.startswith((EXTENDED_PREFIX, DEVICE_PREFIX)):
            return name
    return ""

"""What a host's books note beside its slots: the command in flight, what it refused, what it is to
be asked again, whether it can be dialled. Knows what each of them means, not what follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from finegrain.resources import Amounts
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.entities import Slot, SlotKey


@dataclass(slots=True)
class Command:
    """The command in flight. Between a failed delivery and the next one, `retry_at_ms` is set."""

    effect: SendAllocate | SendFree | SendResize
    keys: tuple[SlotKey, ...]
    failures: int = 0
    failing_since_ms: int | None = None  # its first failed delivery
    retry_at_ms: int | None = None

    @property
    def number(self) -> int:
        """Its command number."""
        return self.effect.command_number

    @property
    def allocates(self) -> bool:
        """True for AllocateSlots."""
        return isinstance(self.effect, SendAllocate)

    @property
    def frees(self) -> bool:
        """True for FreeSlots."""
        return isinstance(self.effect, SendFree)

    @property
    def resizes(self) -> bool:
        """True for ResizeSlot."""
        return isinstance(self.effect, SendResize)


StateSeen = tuple[frozenset[SlotKey], tuple[tuple[str, int], ...]]
"""Slots and available amounts of a state that was taken in, to compare with a later one."""


@dataclass(slots=True)
class Refusal:
    """A host could not serve a shape although the books said so.

    While it is active the host is not chosen for that shape. It ends with the time, or when the
    host's state is not the one that was seen (None: only with the time); the number of failures
    stays until the host serves the shape, so that the next time is longer.
    """

    failures: int
    until_ms: int
    state_seen: StateSeen | None
    active: bool = True


@dataclass(slots=True)
class ResizeBackoff:
    """A change of a slot's size that the executor did not carry out, and that is tried again.

    While it is active the change does not stand in line. It ends with the time, or when the host's
    state is not the one that was seen (None: only with the time).
    """

    number: int  # of the change
    failures: int
    until_ms: int
    reason: str
    message: str
    state_seen: StateSeen | None
    active: bool = True


@dataclass(frozen=True, slots=True)
class ReservedCapacity:
    """What a host keeps for somebody who was passed over for too long: amounts as they are booked
    there, and so many slots.

    `before` is what was booked by those slots that were there when it began, and that it waits for.
    Others may have what is free as long as they, together with what is kept, do not take more than
    there is in all: what they have then delays nobody, since it is not waited for.
    """

    amounts: Amounts
    slots: int
    before: Mapping[SlotKey, Amounts]
    barred: frozenset[str] = frozenset()  # dimensions of which others may have nothing

    def spare(self, free: Amounts, total: Amounts, slots: Mapping[SlotKey, Slot]) -> dict[str, int]:
        """What of the free amounts others may have; no zeros."""
        since: dict[str, int] = {}
        for key, slot in slots.items():
            before = self.before.get(key, {})
            for name, amount in slot.booked.items():
                if amount > before.get(name, 0):
                    since[name] = since.get(name, 0) + amount - before.get(name, 0)
        spare = {}
        for name, amount in free.items():
            beyond = total.get(name, 0) - self.amounts.get(name, 0) - since.get(name, 0)
            if name in self.barred:
                continue
            if name not in self.amounts:
                beyond = amount
            if min(amount, beyond) > 0:
                spare[name] = min(amount, beyond)
        return spare

    def spare_slots(self, left: int, most: int, slots: Mapping[SlotKey, Slot]) -> int:
        """How many of the slots that are left others may have."""
        since = sum(key not in self.before for key in slots)
        return max(0, min(left, most - self.slots - since))


@dataclass(slots=True)
class Reach:
    """Whether the RM can dial the executor. Registrations do not end this: they say that the
    executor can dial the RM.
    """

    unreachable: bool = False
    cause: str = ""  # of the last failure, for people
    failures: int = 0  # probes and findings since a command was last answered
    refused: int = 0  # commands refused since then
    probe_at_ms: int = 0

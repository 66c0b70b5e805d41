"""Defines values that a host's ledger stores in addition to its slots: the command in flight,
refusals, resizes to try again, reserved capacity, and whether the executor can be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from finegrain.resources import Amounts, shortfall, total_of
from resource_manager.engine.model.effects import SendAllocate, SendFree, SendResize
from resource_manager.engine.model.entities import Slot, SlotKey


@dataclass(slots=True)
class Command:
    """The command in flight. `retry_at_ms` is set after a failed delivery, until the next
    attempt.
    """

    effect: SendAllocate | SendFree | SendResize
    keys: tuple[SlotKey, ...]
    failures: int = 0
    failing_since_ms: int | None = None  # time of the first failed delivery
    retry_at_ms: int | None = None

    @property
    def number(self) -> int:
        """The number of the command."""
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
"""The slots and the available amounts of a reported state, in a form that can be compared with a
later state.
"""


@dataclass(slots=True)
class Refusal:
    """An executor has refused a slot of a scheduling class, although the ledger had room for the
    slot.

    While the refusal is active, the host is not chosen for the class. The refusal ends at
    `until_ms`, or earlier if the reported state differs from `state_seen`. If `state_seen` is None,
    the refusal ends only at `until_ms`. The number of failures is kept until the host serves the
    class, so that the next refusal lasts longer.
    """

    failures: int
    until_ms: int
    state_seen: StateSeen | None
    active: bool = True


@dataclass(slots=True)
class ResizeBackoff:
    """A resize that the executor did not carry out, and that is tried again later.

    While the backoff is active, the resize is not queued. The backoff ends at `until_ms`, or
    earlier if the reported state differs from `state_seen`. If `state_seen` is None, the backoff
    ends only at `until_ms`.
    """

    number: int  # number of the resize
    failures: int
    until_ms: int
    reason: str
    message: str
    state_seen: StateSeen | None
    active: bool = True


@dataclass(frozen=True, slots=True)
class ReservedCapacity:
    """Capacity that a host keeps for the owner of a reservation: amounts, and a number of slots.

    The owner waits until slots in `before` have ended. These slots existed when the reservation was
    made. Meanwhile, other requests may use free capacity if they and the owner together fit on the
    host. Such requests do not delay the owner, because the owner waits for the slots in `before`
    anyway.

    Example: a host with 8 cpus reserves 4, and the slots in `before` have booked 6. Other requests
    may use the 2 free cpus, because 2 + 4 <= 8. Then slots in `before` end, and 2 more cpus become
    free. Other requests may use these cpus, too, because 4 + 4 <= 8. Cpus that become free later
    are kept for the owner.

    Attributes:
        amounts: reserved amounts.
        slots: reserved number of slots.
        before: for each slot that existed when the reservation was made, the amounts that it had
            booked.
        barred: dimensions that other requests must not use at all.
        own_job: the job whose slots are not in `before`, because the owner waits only for capacity
            of slots of other jobs. It is empty if there is no such job.
        own: the amounts that the slots of `own_job` had booked when the reservation was made. If
            the job gives them back, these amounts are also kept for the job.
    """

    amounts: Amounts
    slots: int
    before: Mapping[SlotKey, Amounts]
    barred: frozenset[str] = frozenset()
    own_job: str = ""
    own: Amounts = field(default_factory=dict)

    def given_back(self, slots: Mapping[SlotKey, Slot]) -> dict[str, int]:
        """Returns the part of `own` that the owner's job has given back since the reservation was
        made.

        Args:
            slots: all slots of the host.
        """
        if not self.own:
            return {}
        now = total_of(slot.booked for slot in slots.values() if slot.job_id == self.own_job)
        return {name: max(0, amount - now.get(name, 0)) for name, amount in self.own.items()}

    def spare(self, free: Amounts, total: Amounts, slots: Mapping[SlotKey, Slot]) -> dict[str, int]:
        """Returns the part of the free amounts that other requests may use. Amounts of 0 are left
        out.

        Args:
            free: free amounts of the host.
            total: total amounts of the host.
            slots: all slots of the host.
        """
        # `since` has the amounts that were booked after the reservation was made, including the
        # growth of older slots. Amounts that the owner's job has given back count as booked.
        since: dict[str, int] = self.given_back(slots)
        for key, slot in slots.items():
            before = self.before.get(key, {})
            for name, amount in slot.booked.items():
                if amount > before.get(name, 0):
                    since[name] = since.get(name, 0) + amount - before.get(name, 0)
        spare = {}
        for name, amount in free.items():
            # If other requests book up to `beyond` more, their slots and the owner together still
            # fit into the total.
            beyond = total.get(name, 0) - self.amounts.get(name, 0) - since.get(name, 0)
            if name in self.barred:
                continue
            # A dimension that is not reserved has no further limit.
            if name not in self.amounts:
                beyond = amount
            if min(amount, beyond) > 0:
                spare[name] = min(amount, beyond)
        return spare

    def missing(self, free: Amounts, slots_left: int) -> tuple[dict[str, int], int]:
        """Returns the part of the reserved capacity that is not free yet: amounts, and a number of
        slots.
        """
        return shortfall(self.amounts, free), max(0, self.slots - slots_left)

    def spare_slots(self, left: int, most: int, slots: Mapping[SlotKey, Slot]) -> int:
        """Returns how many more slots other requests may have.

        Args:
            left: number of slots that the host may still take.
            most: maximum number of slots of the host.
            slots: all slots of the host.
        """
        # The owner waits for the end of slots in `before`, so only newer slots count.
        since = sum(key not in self.before for key in slots)
        return max(0, min(left, most - self.slots - since))


@dataclass(slots=True)
class Reach:
    """Whether the resource manager can connect to the executor. A registration does not reset these
    values, because it only shows that the executor can connect to the resource manager.
    """

    unreachable: bool = False
    cause: str = ""  # cause of the last failure, for people
    failures: int = 0  # failed probes and deliveries since the executor last answered a command
    # number of commands that were refused as a whole since the last accepted command or answered
    # probe
    refused: int = 0
    probe_at_ms: int = 0

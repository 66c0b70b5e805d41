"""What a host's books note beside its slots: the command in flight, what it refused, what it is to
be asked again, whether it can be dialled. Knows what each of them means, not what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass

from resource_manager.engine.effects import SendAllocate, SendFree, SendResize

SlotKey = tuple[str, int]
"""Identity of a slot: allocation id and generation."""


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
class ResizeHold:
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

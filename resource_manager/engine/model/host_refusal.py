"""Defines why one host cannot give a slot its cpus, NUMA nodes or devices, even if the amounts are
free.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HostBlocker(StrEnum):
    """The reason why a host refuses a slot. `CpuBlocker` and `DeviceBlocker` derive from it."""

    @property
    def lasting(self) -> bool:
        """True if the host would refuse the request for this reason even without slots."""
        return False


@dataclass(frozen=True, slots=True)
class HostRefusal:
    """The refusal of one request by one host."""

    blocker: HostBlocker
    text: str  # one sentence without a full stop, with the needed and the present amount
    numbers: tuple[tuple[str, int], ...] = ()  # the counts in the sentence, such as ("free", 3)

    @property
    def lasting(self) -> bool:
        """True if the host would refuse the request even without slots."""
        return self.blocker.lasting

    def number(self, name: str) -> int:
        """Returns one of the numbers; 0 if the refusal has no number with this name."""
        return dict(self.numbers).get(name, 0)

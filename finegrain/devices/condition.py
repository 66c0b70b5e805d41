"""Describes the present condition of a device: its health, and its uses by programs that belong to
no slot.

An executor reports the conditions that have changed since the executor registered. A
condition replaces the `problem` of the registered device.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from finegrain.mapping.value import Value
from finegrain.units import format_bytes

USES_SHOWN: Final = 3
"""A text describes at most this number of uses. Of all further uses, the text gives the number."""


class DeviceHealth(StrEnum):
    """Health of a device. Only a healthy device gets new work."""

    HEALTHY = "healthy"
    PROBING = "probing"  # the device works again, but must pass a probe before slots use it
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"  # the driver does not answer
    GONE = "gone"  # the driver no longer lists the device


@dataclass(frozen=True, slots=True)
class ForeignUse(Value):
    """A use of a device by a program that belongs to no slot.

    Attributes:
        kind: "process", or "pod" for a device that a kubelet has given to a container.
        name: for a process: its command, if the command can be read. For a pod: its UID, and the
            name of the container.
        pid: pid of the process; 0 for a pod.
        user: user of the process; empty: unknown.
        memory_bytes: memory of the device that the process or pod uses; 0: unknown.
    """

    kind: str
    name: str = ""
    pid: int = 0
    user: str = ""
    memory_bytes: int = 0

    @property
    def text(self) -> str:
        """The use as text for people: "process 4711 (python, user ann, 3Gi)"."""
        if not self.pid:
            return f"{self.kind} {self.name}"
        details = [self.name, f"user {self.user}" if self.user else ""]
        details.append(format_bytes(self.memory_bytes) if self.memory_bytes else "")
        shown = ", ".join(each for each in details if each)
        return f"{self.kind} {self.pid}" + (f" ({shown})" if shown else "")


@dataclass(frozen=True, slots=True)
class DeviceCondition(Value):
    """The present condition of one device.

    Attributes:
        type: type of the device.
        uuid: UUID of the device.
        health: health of the device.
        problem: the reason why the device is not healthy, and what to do; empty: the device is
            healthy.
        work_lost: True if work on the device cannot continue. The resource manager then ends the
            slots that have the device and whose requests set `restart_on_device_loss`.
        failures: number of failures within the last hour.
        foreign_uses: uses by programs that belong to no slot. If there is such a use, the device
            gets no new work.
    """

    type: str
    uuid: str
    health: DeviceHealth = DeviceHealth.HEALTHY
    problem: str = ""
    work_lost: bool = False
    failures: int = 0
    foreign_uses: tuple[ForeignUse, ...] = ()

    @property
    def foreign_text(self) -> str:
        """The foreign uses as text for people; empty: there is no foreign use."""
        shown = [each.text for each in self.foreign_uses[:USES_SHOWN]]
        if more := len(self.foreign_uses) - len(shown):
            shown.append(f"{more} more")
        return ", ".join(shown)

    @property
    def obstacle(self) -> str:
        """The reason why the device gets no new work; empty: the device can get new work."""
        if self.problem:
            return self.problem
        return f"used outside of slots: {self.foreign_text}" if self.foreign_uses else ""

"""How a device is at present: its health, and what uses it other than slots.

An executor reports the condition of each device that differs from what it announced when it
registered. A condition replaces the `problem` of the announcement.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from finegrain.mapping.value import Value
from finegrain.units import format_bytes

USES_SHOWN: Final = 3
"""Most uses that a text names; it counts the others."""


class DeviceHealth(StrEnum):
    """Health of a device. Only a healthy one gets new work."""

    HEALTHY = "healthy"
    PROBING = "probing"  # it answers again, and must pass a probe, or a delay, before it is used
    UNHEALTHY = "unhealthy"
    UNKNOWN = "unknown"  # the driver does not answer
    GONE = "gone"  # the driver no longer lists it


@dataclass(frozen=True, slots=True)
class ForeignUse(Value):
    """A use of a device by something that is no slot.

    Attributes:
        kind: "process", or "pod" for a device that a kubelet has given to a container.
        name: command of the process if it can be read, or UID of the pod and its container.
        pid: of the process; 0: of a pod.
        user: that the process runs as; empty: unknown.
        memory_bytes: of the device; 0: unknown.
    """

    kind: str
    name: str = ""
    pid: int = 0
    user: str = ""
    memory_bytes: int = 0

    @property
    def text(self) -> str:
        """The use for people: "process 4711 (python, user ann, 3Gi)"."""
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
        type: of the device.
        uuid: of the device.
        health: whether it works.
        problem: why it is not healthy, and what to do; empty: it is.
        work_lost: work that has the device cannot go on, so its slots may be ended.
        failures: how often it failed within the last hour.
        foreign_uses: what uses it beside slots; it then gets no new work.
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
        """The foreign uses for people; empty without any."""
        shown = [each.text for each in self.foreign_uses[:USES_SHOWN]]
        if more := len(self.foreign_uses) - len(shown):
            shown.append(f"{more} more")
        return ", ".join(shown)

    @property
    def obstacle(self) -> str:
        """Why the device gets no new work; empty: nothing prevents it."""
        if self.problem:
            return self.problem
        return f"used by others: {self.foreign_text}" if self.foreign_uses else ""

"""Defines the states of a slot on its executor, and the content of an order for a slot.

A resize is not a state transition. It can start only in the state ALLOCATED.

```mermaid
stateDiagram-v2
    [*] --> CARVING: ordered, fits
    CARVING --> ALLOCATED: enforced on the host
    CARVING --> [*]: carve failed, nothing is left
    ALLOCATED --> FREEING: ordered, unowned, orphaned, not accepted, time limit is over
    ALLOCATED --> [*]: its group vanished
    FREEING --> [*]: all its processes have ended
```
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.errors import FailedPrecondition, IllegalTransition, InvalidArgument, Reason
from finegrain.resources import ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED, Isolation


class SlotKey(NamedTuple):
    """Identity of a slot: one placement of one request."""

    allocation_id: str
    generation: int


class CarveState(StrEnum):
    """State of a slot. Its amounts are booked in each of these states."""

    CARVING = "CARVING"  # the cgroup is being set up; reports do not contain the slot yet
    ALLOCATED = "ALLOCATED"  # the limits are enforced on the host; the slot accepts tasks
    FREEING = "FREEING"  # the processes are being terminated; the slot accepts no tasks


TRANSITIONS = frozenset(
    {(CarveState.CARVING, CarveState.ALLOCATED), (CarveState.ALLOCATED, CarveState.FREEING)}
)
"""All transitions between states. `SlotTable` checks the state when it removes a slot."""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A slot as ordered by the RM, with the executor's defaults filled in.

    Two orders with the same key are the same order only if their specs are equal, too.
    """

    allocation_id: str
    generation: int
    job_id: str
    profile: ResourceProfile
    cpu_limit_milli: int
    pids_max: int
    cpus: str = ""  # cpu list: the dedicated cpus, or the part of its pool that the slot can use
    owner: str = ""  # the identity to which the slot is offered, through its job master
    target_address: str = ""
    resize_number: int = 0  # number of the last resize; 0 if the slot was never resized
    assignment: CpuAssignment | None = None  # None means class LS, in the whole shared pool
    time_limit_ms: int | None = None  # the slot ends after this time; None means no limit

    @property
    def key(self) -> SlotKey:
        return SlotKey(self.allocation_id, self.generation)

    @property
    def memory_bytes(self) -> int:
        """The memory limit in bytes."""
        return self.profile.booked_memory_bytes

    @property
    def is_pinned(self) -> bool:
        """True if the slot has dedicated cpus."""
        return self.assignment is not None and self.assignment.qos.is_pinned

    @property
    def is_parked(self) -> bool:
        """True if the slot has given up its GPUs, while its processes stay."""
        return self.assignment is not None and bool(self.assignment.parked_devices)

    @property
    def is_best_effort(self) -> bool:
        """True if the CPU of the slot is booked against the best-effort capacity."""
        return self.assignment is not None and self.assignment.qos is QosClass.BE

    def of_size(
        self,
        number: int,
        profile: ResourceProfile,
        cpu_limit_milli: int,
        assignment: CpuAssignment | None = None,
    ) -> SlotSpec:
        """Returns the spec of this slot after a resize.

        Args:
            number: the number of the resize.
            profile: the new resource profile.
            cpu_limit_milli: the new limit of CPU time.
            assignment: the new cpus, NUMA nodes and pools; None if the slot keeps its assignment.

        Raises:
            InvalidArgument: the QoS class would change.
        """
        known = self.assignment or CpuAssignment()
        given = assignment or known
        if given.qos is not known.qos:
            expected = f"{known.qos}, as before: a resize cannot change the class"
            raise InvalidArgument("assignment.qos", str(given.qos), expected)
        return replace(
            self,
            profile=profile,
            cpu_limit_milli=cpu_limit_milli,
            resize_number=number,
            assignment=assignment or self.assignment,
            # A pinned slot runs on the cpus of its assignment. For other slots, `cpus` is the part
            # of the pool that the slot can use, and a resize does not change this part.
            cpus=str(given.cpus) if self.is_pinned else self.cpus,
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot and its state. It is immutable. So a report is a consistent snapshot."""

    spec: SlotSpec
    state: CarveState = CarveState.CARVING
    isolation: Isolation = NOTHING_REPORTED
    # wall clock time at which the slot became ALLOCATED, only for display
    allocated_time_ms: int = 0
    end_reason: str = ""  # the reason why the slot is FREEING; empty if the RM ordered the end
    accepted: bool = False  # True if the job master at the target address accepted the slot
    becoming: SlotSpec | None = None  # the new size during a resize
    limited_since_ms: int | None = None  # boot clock time at which the time limit started
    reuse_number: int = 0  # number of the reuse with which the time limit started again

    @property
    def key(self) -> SlotKey:
        return self.spec.key

    @property
    def ends_at_ms(self) -> int | None:
        """Boot clock time at which the time limit of an ALLOCATED slot is over; None: no limit."""
        if self.spec.time_limit_ms is None or self.state is not CarveState.ALLOCATED:
            return None
        return (self.limited_since_ms or 0) + self.spec.time_limit_ms

    @property
    def is_moving(self) -> bool:
        """True while the slot is being parked or unparked."""
        return self.becoming is not None and self.becoming.is_parked != self.spec.is_parked

    def with_state(self, state: CarveState, **changes: Any) -> Slot:
        """Returns the slot in another state.

        Raises:
            IllegalTransition: there is no such transition.
        """
        if (self.state, state) not in TRANSITIONS:
            raise illegal_transition(self, state)
        return replace(self, state=state, **changes)


@dataclass(frozen=True, slots=True)
class EndedSlot:
    """A slot that ended without an order of the RM, kept until the RM acknowledges the end."""

    key: SlotKey
    reason: str


def illegal_transition(slot: Slot, to: CarveState | None) -> IllegalTransition:
    """Returns the error for a transition that is not allowed. If `to` is None, the transition is
    the removal of the slot.
    """
    wanted = to.value if to else "gone"
    return IllegalTransition(
        f"slot {slot.spec.allocation_id} generation {slot.spec.generation} cannot go from "
        f"{slot.state.value} to {wanted}",
        details={
            "allocation_id": slot.spec.allocation_id,
            "generation": slot.spec.generation,
            "from": slot.state.value,
            "to": wanted,
        },
    )


def check_resizable(slot: Slot, number: int) -> None:
    """Checks that a resize with this number can start.

    Raises:
        FailedPrecondition: the reason is SLOT_NOT_READY (the slot is being freed, or the result of
            an earlier resize is unknown) or STALE_RESIZE (this number or a higher number is known).
    """
    last = (slot.becoming or slot.spec).resize_number
    name = f"slot {slot.spec.allocation_id}"
    details = {"allocation_id": slot.spec.allocation_id, "resize_number": last}
    if slot.state is CarveState.FREEING:
        raise FailedPrecondition(f"{name} is being freed", details=details)
    # Check the number before the state. With an outdated number, a retry never succeeds. But if
    # only the result of an earlier resize is unknown, a later retry can succeed.
    if number <= last:
        raise FailedPrecondition(
            f"the last resize of {name} has number {last}; number {number} is outdated, or had "
            "different content; apply the reported state and use a higher number",
            reason=Reason.STALE_RESIZE,
            details=details,
        )
    if slot.becoming is not None:
        raise FailedPrecondition(
            f"the outcome of resize {last} of {name} is not known yet; try again",
            details=details,
        )

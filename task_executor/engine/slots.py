"""The states of a slot on its executor, and what an order for a slot contains.

A slot may be resized in any state but CARVING; a resize is not a state transition.

```mermaid
stateDiagram-v2
    [*] --> CARVING: ordered, fits
    CARVING --> ALLOCATED: enforced on the host
    CARVING --> [*]: carve failed, nothing left
    ALLOCATED --> FREEING: ordered, unowned, orphaned, not accepted
    ALLOCATED --> [*]: its group vanished
    FREEING --> [*]: all its processes are gone
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

    CARVING = "CARVING"  # booked; its cgroup is being set up; not in reports yet
    ALLOCATED = "ALLOCATED"  # enforced on the host; takes tasks
    FREEING = "FREEING"  # takes no tasks; its processes are being terminated


TRANSITIONS = frozenset(
    {(CarveState.CARVING, CarveState.ALLOCATED), (CarveState.ALLOCATED, CarveState.FREEING)}
)
"""Every transition between two states. `SlotTable` checks the states when it removes a slot."""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A slot as ordered by the RM, with the executor's defaults filled in.

    Two orders with the same key are the same order if and only if their specs are equal.
    """

    allocation_id: str
    generation: int
    job_id: str
    profile: ResourceProfile
    cpu_limit_milli: int
    pids_max: int
    cpus: str = ""  # kernel cpu list: its dedicated cpus, or those of its pool to confine it to
    job_secret_sha256: str = ""
    target_address: str = ""
    resize_number: int = 0  # number of the last resize; 0: never resized
    assignment: CpuAssignment | None = None  # None: LS, in the whole shared pool

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
        """True if the slot has given up its GPUs while its processes stay."""
        return self.assignment is not None and bool(self.assignment.parked_devices)

    @property
    def is_best_effort(self) -> bool:
        """True if its CPU is booked against the best-effort capacity."""
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
            number: number of the resize.
            profile: the new amounts.
            cpu_limit_milli: the new cap of CPU time.
            assignment: the new cpus, NUMA nodes and pools; None: the present ones.

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
            # A pinned slot runs on the cpus of its assignment. For others `cpus` confines the slot
            # within its pool, and a resize does not change that.
            cpus=str(given.cpus) if self.is_pinned else self.cpus,
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot and its state. Immutable, so that a report is a consistent snapshot."""

    spec: SlotSpec
    state: CarveState = CarveState.CARVING
    isolation: Isolation = NOTHING_REPORTED
    allocated_time_ms: int = 0  # wall clock, for display only
    end_reason: str = ""  # why it is FREEING, if the RM did not order it
    accepted: bool = False  # by the job master at its target address
    becoming: SlotSpec | None = None  # during a resize: the new size, booked beside `spec`

    @property
    def key(self) -> SlotKey:
        return self.spec.key

    @property
    def is_moving(self) -> bool:
        """True while it is being parked or unparked."""
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
    """A slot that ended without an order of the RM; kept until the RM has acknowledged its end."""

    key: SlotKey
    reason: str


def illegal_transition(slot: Slot, to: CarveState | None) -> IllegalTransition:
    """Returns the error for a transition that is not in the table; `to` None means removal."""
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
    """Checks that a resize with this number may begin.

    Raises:
        FailedPrecondition: SLOT_NOT_READY (the slot is being freed, or an earlier resize is not
            settled) or STALE_RESIZE (this number or a later one is known).
    """
    last = (slot.becoming or slot.spec).resize_number
    name = f"slot {slot.spec.allocation_id}"
    details = {"allocation_id": slot.spec.allocation_id, "resize_number": last}
    if slot.state is CarveState.FREEING:
        raise FailedPrecondition(f"{name} is being freed", details=details)
    # Checked before `becoming`, because an outdated number is final. An unsettled resize is not:
    # the caller can try again.
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

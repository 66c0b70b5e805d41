"""What a slot is to its executor: the order, the states, and how a slot can end.

Decides which moves between states exist. Refuses to know who ordered what, and how a slot is
enforced. A slot may change its size in any state but CARVING, without a move.

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
    """Where a slot stands; its amounts are booked in every one of these states."""

    CARVING = "CARVING"  # booked, its limits are being set; on no wire yet
    ALLOCATED = "ALLOCATED"  # enforced on the host; takes tasks
    FREEING = "FREEING"  # takes no tasks; its processes are being ended


TRANSITIONS = frozenset(
    {(CarveState.CARVING, CarveState.ALLOCATED), (CarveState.ALLOCATED, CarveState.FREEING)}
)
"""Every move between two states; leaving the table is checked where a slot is struck out."""


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """A slot as the RM orders it, with the executor's defaults filled in.

    Two orders under one key are the same order exactly when their specs are equal.
    """

    allocation_id: str
    generation: int
    job_id: str
    profile: ResourceProfile
    cpu_limit_milli: int
    pids_max: int
    cpus: str = ""  # kernel's list form: its own, or those of its pools that it is confined to
    job_secret_sha256: str = ""
    target_address: str = ""
    resize_number: int = 0  # of the last change of size; 0: as it was first ordered
    assignment: CpuAssignment | None = None  # None: LS, in the whole shared pool

    @property
    def key(self) -> SlotKey:
        """Identity of the slot."""
        return SlotKey(self.allocation_id, self.generation)

    @property
    def memory_bytes(self) -> int:
        """Memory limit."""
        return self.profile.booked_memory_bytes

    @property
    def is_pinned(self) -> bool:
        """True if it has cpus of its own."""
        return self.assignment is not None and self.assignment.qos.is_pinned

    @property
    def is_best_effort(self) -> bool:
        """True if its cpu is booked against the best-effort capacity."""
        return self.assignment is not None and self.assignment.qos is QosClass.BE

    def of_size(
        self,
        number: int,
        profile: ResourceProfile,
        cpu_limit_milli: int,
        assignment: CpuAssignment | None = None,
    ) -> SlotSpec:
        """The same slot after a change of size; assignment None: with the cpus that it has.

        Raises:
            InvalidArgument: it would be of another class.
        """
        known = self.assignment or CpuAssignment()
        given = assignment or known
        if given.qos is not known.qos:
            expected = f"{known.qos}, as before: a change of size changes no class"
            raise InvalidArgument("assignment.qos", str(given.qos), expected)
        return replace(
            self,
            profile=profile,
            cpu_limit_milli=cpu_limit_milli,
            resize_number=number,
            assignment=assignment or self.assignment,
            cpus=str(given.cpus) if self.is_pinned else self.cpus,
        )


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot and where it stands. Replaced, never changed, so that a report is a moment."""

    spec: SlotSpec
    state: CarveState = CarveState.CARVING
    isolation: Isolation = NOTHING_REPORTED
    allocated_time_ms: int = 0  # wall clock, for people
    end_reason: str = ""  # FREEING without an order of the RM: why
    accepted: bool = False  # by the job master at its target address
    becoming: SlotSpec | None = None  # another size, which is being enforced; booked beside `spec`

    @property
    def key(self) -> SlotKey:
        """Identity of the slot."""
        return self.spec.key

    def with_state(self, state: CarveState, **changes: Any) -> Slot:
        """The slot in another state.

        Raises:
            IllegalTransition: no such move exists.
        """
        if (self.state, state) not in TRANSITIONS:
            raise illegal_transition(self, state)
        return replace(self, state=state, **changes)


@dataclass(frozen=True, slots=True)
class EndedSlot:
    """A slot that ended without an order of the RM, until the RM has heard of it."""

    key: SlotKey
    reason: str


def illegal_transition(slot: Slot, to: CarveState | None) -> IllegalTransition:
    """The error for a move that no table lists; `to` None: out of the table."""
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
    """Whether a change of size with this number may begin.

    Raises:
        FailedPrecondition: SLOT_NOT_READY (the slot is being freed, or an earlier change is not
            settled yet) or STALE_RESIZE (a change of this number or a later one is known).
    """
    last = (slot.becoming or slot.spec).resize_number
    name = f"slot {slot.spec.allocation_id}"
    details = {"allocation_id": slot.spec.allocation_id, "resize_number": last}
    if slot.state is CarveState.FREEING:
        raise FailedPrecondition(f"{name} is being freed", details=details)
    if number <= last:
        raise FailedPrecondition(
            f"{name} has come to change of size {last}; number {number} is over, or came with "
            "other content; take in the reported state and number the next one higher",
            reason=Reason.STALE_RESIZE,
            details=details,
        )
    if slot.becoming is not None:
        raise FailedPrecondition(
            f"what became of change of size {last} of {name} is not known yet; try again",
            details=details,
        )

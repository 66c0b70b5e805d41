"""The executor's own books: which slots exist on this host and what is left.

Decides whether an ordered slot may exist (it fits what is free *here*, whatever the RM believes),
and what every slot takes. Refuses to know the wire, the disk, the clock and the kernel.

The table never gives capacity back early: a slot is booked from the order (CARVING) until its last
process is gone (`freed`), and with the larger of both sizes, per dimension, while its size changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.errors import (
    AlreadyExists,
    FailedPrecondition,
    FinegrainError,
    InvariantBroken,
    NotFound,
    Reason,
    ResourceExhausted,
)
from finegrain.resources import (
    Amounts,
    ResourceProfile,
    add,
    booking,
    has_separate_pools,
    larger_of,
    subtract,
    total_of,
)
from finegrain.values.isolation import Isolation
from task_executor.engine.cpu_ledger import WHOLE_SHARED_POOL, CpuLedger, HostCpus
from task_executor.engine.slot_checks import check_amounts, check_fit
from task_executor.engine.slots import (
    CarveState,
    Slot,
    SlotKey,
    SlotSpec,
    check_resizable,
    illegal_transition,
)


@dataclass(frozen=True, slots=True)
class HostShare:
    """What this executor may carve from. `total` has the reserves already taken off."""

    total: Amounts
    shared_cpus: CpuSet  # what slots without cpus of their own run on while nobody has any
    slots_max: int = 0  # 0: no limit
    host_cpus: HostCpus | None = None  # None: no more is known than the shared ones


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one ordered slot: the slot, or why there is none."""

    key: SlotKey
    slot: Slot | None = None
    error: FinegrainError | None = None

    @property
    def must_carve(self) -> bool:
        """True if the slot is new and still has to be enforced on the host."""
        return self.slot is not None and self.slot.state is CarveState.CARVING


@dataclass
class SlotTable:
    """All slots of one executor. `version` rises with every change that a report would show."""

    share: HostShare
    version: int = 0
    cpus: CpuLedger = field(init=False)
    _slots: dict[SlotKey, Slot] = field(default_factory=dict)
    _generations: dict[str, set[int]] = field(default_factory=dict)
    _booked: dict[str, int] = field(default_factory=dict)
    _withheld: dict[SlotKey, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cpus = CpuLedger(self.share.host_cpus or HostCpus(self.share.shared_cpus))

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: SlotKey) -> Slot | None:
        """The slot of that very generation, if it exists."""
        return self._slots.get(key)

    def latest(self, allocation_id: str) -> Slot | None:
        """The slot with the highest generation of that allocation."""
        generations = self._generations.get(allocation_id)
        return self._slots[SlotKey(allocation_id, max(generations))] if generations else None

    def visible(self) -> tuple[Slot, ...]:
        """What a report shows: everything but slots that are still being carved."""
        return tuple(slot for slot in self if slot.state is not CarveState.CARVING)

    def booking_of(self, spec: SlotSpec) -> dict[str, int]:
        """What a slot takes from the books."""
        return booking(
            spec.profile,
            separate_pools=has_separate_pools(self.share.total),
            best_effort=spec.is_best_effort,
        )

    def booked_by(self, slot: Slot) -> dict[str, int]:
        """What a slot takes now: while its size changes the larger of both, per dimension."""
        booked = self.booking_of(slot.spec)
        return larger_of(booked, self.booking_of(slot.becoming)) if slot.becoming else booked

    def available(self) -> dict[str, int]:
        """Total minus everything that is booked or withheld."""
        return subtract(self.share.total, add(self._booked, total_of(self._withheld.values())))

    def allocated(self) -> dict[str, int]:
        """Everything that is booked."""
        return dict(self._booked)

    def available_beside(self, slots: Iterable[Slot]) -> dict[str, int]:
        """Total minus just these slots and what is withheld, never below zero: what a report of
        them leaves.

        Adopted slots can exceed a total that shrank over a restart.
        """
        taken = total_of((*(self.booked_by(slot) for slot in slots), *self._withheld.values()))
        left = subtract(self.share.total, taken)
        return {name: amount for name, amount in left.items() if amount > 0}

    # -- orders ------------------------------------------------------------------------------

    def allocate(self, specs: Sequence[SlotSpec]) -> list[Outcome]:
        """Books what fits, in the order given; the result has one outcome per spec.

        A new slot is CARVING until `carved` or `carve_failed`. One that exists with the same
        content is that slot; refusals are per item and book nothing.
        """
        return [self._allocate(spec) for spec in specs]

    def _allocate(self, spec: SlotSpec) -> Outcome:
        known = self._slots.get(spec.key)
        try:
            if known is not None:
                return Outcome(spec.key, slot=self._existing(known, spec))
            self._check(spec)
        except FinegrainError as error:
            return Outcome(spec.key, error=error)
        return Outcome(spec.key, slot=self._book(Slot(spec)))

    def _existing(self, known: Slot, spec: SlotSpec) -> Slot:
        if known.spec != spec:
            raise AlreadyExists(
                f"allocation {spec.allocation_id} generation {spec.generation} exists with other "
                "content; free it first, or place the request anew under a higher generation",
                details={"allocation_id": spec.allocation_id, "generation": spec.generation},
            )
        if known.state is CarveState.FREEING:
            raise FailedPrecondition(
                f"slot {spec.allocation_id} generation {spec.generation} is being freed; "
                "place the request anew under a higher generation",
                details={"allocation_id": spec.allocation_id, "state": known.state.value},
            )
        return known

    def _check(self, spec: SlotSpec) -> None:
        latest = self.latest(spec.allocation_id)
        if latest is not None and latest.spec.generation > spec.generation:
            raise FailedPrecondition(
                f"allocation {spec.allocation_id} is at generation {latest.spec.generation} here; "
                f"generation {spec.generation} is over",
                reason=Reason.STALE_GENERATION,
                details={
                    "allocation_id": spec.allocation_id,
                    "asked": spec.generation,
                    "known": latest.spec.generation,
                },
            )
        self._check_content(spec)
        if self.share.slots_max and len(self._slots) >= self.share.slots_max:
            raise ResourceExhausted(
                f"this executor has {len(self._slots)} slots and its slots_max is "
                f"{self.share.slots_max}; free one first or raise slots_max",
                reason=Reason.SLOT_LIMIT,
                details={"slots": len(self._slots), "slots_max": self.share.slots_max},
            )
        what, need = f"slot {spec.allocation_id}", self.booking_of(spec)
        check_fit(what, need, self.available(), self.share.total)

    def _check_content(self, spec: SlotSpec) -> None:
        check_amounts(spec)
        self.cpus.check(spec.key, spec)

    def resize(
        self,
        key: SlotKey,
        number: int,
        profile: ResourceProfile,
        cpu_limit_milli: int,
        assignment: CpuAssignment | None = None,
    ) -> Outcome:
        """Books a change of size; the outcome's slot is `becoming` it until `resized` or
        `resize_failed`. Without an assignment it keeps its cpus, nodes and pools.

        The same number with the same content is the same change, also when it is done. A refusal
        books nothing: ALLOCATION_UNKNOWN, SLOT_NOT_READY (it is being freed, or an earlier change
        is not settled yet), STALE_RESIZE (a later change is known), INSUFFICIENT_RESOURCES (with
        the growth as what is asked), CPUS_UNAVAILABLE, INVALID_ARGUMENT.
        """
        try:
            slot = self._resize(key, number, profile, cpu_limit_milli, assignment)
            return Outcome(key, slot=slot)
        except FinegrainError as error:
            return Outcome(key, error=error)

    def _resize(
        self,
        key: SlotKey,
        number: int,
        profile: ResourceProfile,
        cpu_limit_milli: int,
        assignment: CpuAssignment | None,
    ) -> Slot:
        slot = self._slots.get(key)
        if slot is None or slot.state is CarveState.CARVING:
            raise NotFound(
                f"this executor has no slot {key.allocation_id} generation {key.generation}",
                details={"allocation_id": key.allocation_id, "generation": key.generation},
            )
        wanted = slot.spec.of_size(number, profile, cpu_limit_milli, assignment)
        if slot.state is CarveState.ALLOCATED and wanted in (slot.spec, slot.becoming):
            return slot
        check_resizable(slot, number)
        self._check_content(wanted)
        booked, target = self.booked_by(slot), self.booking_of(wanted)
        growth = subtract(larger_of(booked, target), booked)
        what = f"the growth of slot {key.allocation_id}"
        check_fit(what, growth, self.available(), self.share.total)
        return self._rebook(replace(slot, becoming=wanted))

    # -- what became of them -----------------------------------------------------------------

    def carved(self, key: SlotKey, isolation: Isolation, time_ms: int) -> Slot:
        """The slot is enforced on the host."""
        slot = self._slots[key].with_state(
            CarveState.ALLOCATED, isolation=isolation, allocated_time_ms=time_ms
        )
        return self._put(slot)

    def carve_failed(self, key: SlotKey) -> None:
        """Nothing of the slot is left on the host."""
        slot = self._slots[key]
        if slot.state is not CarveState.CARVING:
            raise illegal_transition(slot, None)
        self._remove(slot)

    def resized(self, key: SlotKey, isolation: Isolation | None = None) -> Slot:
        """What it was becoming is enforced; what it has shrunk by is available.

        Args:
            isolation: what is really enforced now; None: the same as before.
        """
        slot = self._slots[key]
        if isolation is not None:
            slot = replace(slot, isolation=isolation)
        return self._rebook(replace(slot, spec=slot.becoming or slot.spec, becoming=None))

    def resize_failed(self, key: SlotKey) -> Slot:
        """It is as it was, on the host too."""
        return self._rebook(replace(self._slots[key], becoming=None))

    def begin_free(self, key: SlotKey, *, end_reason: str = "") -> Slot | None:
        """Takes no more tasks; `end_reason` says why where the RM did not order it.

        None if no such slot exists (it is done), or if it is still being carved.
        """
        slot = self._slots.get(key)
        if slot is None or slot.state is CarveState.CARVING:
            return None
        if slot.state is CarveState.FREEING:
            if slot.end_reason and not end_reason:
                return self._put(replace(slot, end_reason=""))  # the RM ordered it meanwhile
            return slot
        return self._put(slot.with_state(CarveState.FREEING, end_reason=end_reason))

    def accept(self, key: SlotKey) -> bool:
        """The job master took the slot at its target address; no report shows that."""
        slot = self._slots.get(key)
        if slot is None or slot.state is not CarveState.ALLOCATED:
            return False
        self._slots[key] = replace(slot, accepted=True)
        return True

    def freed(self, key: SlotKey) -> Slot:
        """All its processes are gone and its group with them: the amounts are available."""
        slot = self._slots[key]
        if slot.state is not CarveState.FREEING:
            raise illegal_transition(slot, None)
        return self._remove(slot)

    def vanished(self, key: SlotKey) -> Slot:
        """The host lost the slot (a reboot, a removed group): the amounts are available."""
        slot = self._slots[key]
        if slot.state is CarveState.CARVING:
            raise illegal_transition(slot, None)
        return self._remove(slot)

    def adopt(self, slot: Slot) -> None:
        """Takes in a slot that outlived a restart. Its amounts count even beyond the total."""
        if slot.key in self._slots or slot.state is CarveState.CARVING:
            raise illegal_transition(slot, slot.state)
        self._book(slot)
        self.version += 1

    # -- what changes around them ---------------------------------------------------------------

    def update_conditions(self, **conditions: Any) -> bool:
        """Other conditions for cpus, by the names of `CpuConditions`; False if nothing is new."""
        changed = self.cpus.update_conditions(**conditions)
        self.version += changed
        return changed

    # -- what is here and nobody's -----------------------------------------------------------

    def withhold(self, key: SlotKey, amounts: Amounts, dedicated_cpus: CpuSet = EMPTY) -> None:
        """Remains of a slot that no book knows live on: what they hold is not for others.

        What they hold of dimensions that are not named (devices, countable resources, parts of
        memory) is not known, so all of those is withheld.
        """
        self._withheld[key] = {
            name: amounts.get(name, amount) for name, amount in self.share.total.items()
        }
        self.cpus.put(key, [CpuAssignment(QosClass.LSE, dedicated_cpus)] if dedicated_cpus else [])
        self.version += 1

    def release_withheld(self, key: SlotKey) -> None:
        """Nothing of them is left."""
        if self._withheld.pop(key, None) is not None:
            self.cpus.drop(key)
            self.version += 1

    def _book(self, slot: Slot) -> Slot:
        self._slots[slot.key] = slot
        self._generations.setdefault(slot.spec.allocation_id, set()).add(slot.spec.generation)
        self._booked = add(self._booked, self.booked_by(slot))
        self._assign(slot)
        return slot

    def _assign(self, slot: Slot) -> None:
        has = (slot.spec, slot.becoming or slot.spec)
        self.cpus.put(slot.key, dict.fromkeys(each.assignment or WHOLE_SHARED_POOL for each in has))

    def _rebook(self, slot: Slot) -> Slot:
        self._booked = subtract(self._booked, self.booked_by(self._slots[slot.key]))
        self._booked = add(self._booked, self.booked_by(slot))
        self._assign(slot)
        return self._put(slot)

    def _put(self, slot: Slot) -> Slot:
        self._slots[slot.key] = slot
        self.version += 1
        return slot

    def _remove(self, slot: Slot) -> Slot:
        del self._slots[slot.key]
        generations = self._generations[slot.spec.allocation_id]
        generations.discard(slot.spec.generation)
        if not generations:
            del self._generations[slot.spec.allocation_id]
        self._booked = subtract(self._booked, self.booked_by(slot))
        self.cpus.drop(slot.key)
        self.version += 1
        return slot

    def check_invariants(self) -> None:
        """Recomputes the books from the slots.

        Raises:
            InvariantBroken: the sum differs, is negative, two keys disagree with their slots, or a
                slot becomes another one, or what it was.
        """
        recomputed = total_of(self.booked_by(slot) for slot in self)
        if recomputed != self._booked or any(amount < 0 for amount in recomputed.values()):
            raise InvariantBroken(f"booked {self._booked}, but the slots sum to {recomputed}")
        indexed = {SlotKey(i, g) for i, many in self._generations.items() for g in many}
        if indexed != self._slots.keys() or any(k != s.key for k, s in self._slots.items()):
            raise InvariantBroken("the index of generations differs from the slots")
        for slot in self:
            target = slot.becoming
            number = slot.spec.resize_number
            if target and (target.key != slot.key or target.resize_number <= number):
                raise InvariantBroken(f"slot {slot.key} cannot become {target}")
        self.cpus.check_invariants()

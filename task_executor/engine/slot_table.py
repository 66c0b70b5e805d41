"""Keeps the slots of this executor and the capacity that the slots book.

The table accepts an ordered slot if this host has enough free capacity. The state of the resource
manager (RM) does not matter. A slot is booked from its order (CARVING) until its last process has
ended (`freed`). While a slot is being resized, the table books the larger of the old and the new
amount in each dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import QosClass
from finegrain.cpuset import EMPTY, CpuSet
from finegrain.devices.condition import DeviceCondition
from finegrain.devices.device import NO_DEVICES, HostDevices
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
    DEVICE_PREFIX,
    Amounts,
    ResourceProfile,
    add,
    booking,
    has_separate_pools,
    larger_of,
    subtract,
    total_of,
)
from finegrain.units import counted
from finegrain.values.isolation import Isolation
from task_executor.engine.cpu_ledger import WHOLE_SHARED_POOL, CpuLedger, HostCpus
from task_executor.engine.device_ledger import DeviceLedger
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
    """The capacity from which this executor can carve slots.

    Reserves are already deducted from `total`.
    """

    total: Amounts
    shared_cpus: CpuSet  # the shared pool, while no cpu is dedicated
    slots_max: int = 0  # maximum number of slots; 0 means no limit
    host_cpus: HostCpus | None = None  # None if only `shared_cpus` is known
    devices: HostDevices = NO_DEVICES  # devices that slots can have


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result for one ordered slot: the slot, or the error that prevented it."""

    key: SlotKey
    slot: Slot | None = None
    error: FinegrainError | None = None

    @property
    def must_carve(self) -> bool:
        """True if the caller must still create the slot on the host."""
        return self.slot is not None and self.slot.state is CarveState.CARVING


@dataclass
class SlotTable:
    """All slots of one executor.

    `version` increases with every change of data that slot reports contain.
    """

    share: HostShare
    version: int = 0
    cpus: CpuLedger = field(init=False)
    devices: DeviceLedger = field(init=False)
    _slots: dict[SlotKey, Slot] = field(default_factory=dict)
    _generations: dict[str, set[int]] = field(default_factory=dict)
    _booked: dict[str, int] = field(default_factory=dict)
    _withheld: dict[SlotKey, dict[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cpus = CpuLedger(self.share.host_cpus or HostCpus(self.share.shared_cpus))
        self.devices = DeviceLedger(self.share.devices)

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots.values())

    def __len__(self) -> int:
        return len(self._slots)

    def get(self, key: SlotKey) -> Slot | None:
        """Returns the slot of exactly this generation, or None."""
        return self._slots.get(key)

    def latest(self, allocation_id: str) -> Slot | None:
        """Returns the slot with the highest generation of this allocation, or None."""
        generations = self._generations.get(allocation_id)
        return self._slots[SlotKey(allocation_id, max(generations))] if generations else None

    def visible(self) -> tuple[Slot, ...]:
        """Returns the slots that reports contain. Slots that are being carved are left out."""
        return tuple(slot for slot in self if slot.state is not CarveState.CARVING)

    def booking_of(self, spec: SlotSpec) -> dict[str, int]:
        """Returns the amounts that a slot with this spec books, by dimension."""
        return booking(
            spec.profile,
            separate_pools=has_separate_pools(self.share.total),
            best_effort=spec.is_best_effort,
        )

    def booked_by(self, slot: Slot) -> dict[str, int]:
        """Returns the amounts that a slot books now. During a resize, this is the larger of the old
        and the new amount in each dimension.
        """
        booked = self.booking_of(slot.spec)
        return larger_of(booked, self.booking_of(slot.becoming)) if slot.becoming else booked

    def available(self) -> dict[str, int]:
        """Returns the total minus all booked and withheld amounts."""
        # `_booked` is kept up to date, because this is computed for every ordered slot.
        return self._left(self._booked, self.devices.left())

    def allocated(self) -> dict[str, int]:
        """Returns the amounts that all slots together have booked."""
        return dict(self._booked)

    def available_beside(self, slots: Iterable[Slot]) -> dict[str, int]:
        """Returns the total minus the bookings of these slots and withheld amounts; never negative.

        A report that contains `slots` states these available amounts. After a restart with a
        smaller total, adopted slots can exceed the total. The result is 0 in this case.
        """
        beside = tuple(slots)
        taken = total_of(self.booked_by(slot) for slot in beside)
        left = self._left(taken, self.devices.left({slot.key for slot in beside}))
        return {name: amount for name, amount in left.items() if amount > 0}

    # -- orders of the resource manager ------------------------------------------------------

    def allocate(self, specs: Sequence[SlotSpec]) -> list[Outcome]:
        """Books the slots that fit, in the given sequence. Returns one outcome per spec.

        A new slot is CARVING until `carved` or `carve_failed` is called. If a slot with the same
        key and content exists, the outcome contains this slot. If a spec is rejected, the outcome
        contains an error, and no capacity is booked.
        """
        return [self._allocate(spec) for spec in specs]

    def _allocate(self, spec: SlotSpec) -> Outcome:
        known = self._slots.get(spec.key)
        try:
            # Recognize a repeated order before the checks. On a full host, the checks would reject
            # the order, because its own amounts are already booked.
            if known is not None:
                return Outcome(spec.key, slot=self._existing(known, spec))
            self._check(spec)
        except FinegrainError as error:
            return Outcome(spec.key, error=error)
        return Outcome(spec.key, slot=self._book(Slot(spec)))

    def _existing(self, known: Slot, spec: SlotSpec) -> Slot:
        if known.spec != spec:
            raise AlreadyExists(
                f"slot {spec.allocation_id} generation {spec.generation} exists with "
                "different content; free it first, or place the request again with a higher "
                "generation",
                details={"allocation_id": spec.allocation_id, "generation": spec.generation},
            )
        if known.state is CarveState.FREEING:
            raise FailedPrecondition(
                f"slot {spec.allocation_id} generation {spec.generation} is being freed; place "
                "the request again with a higher generation",
                details={"allocation_id": spec.allocation_id, "state": known.state.value},
            )
        return known

    def _check(self, spec: SlotSpec) -> None:
        # Several generations can exist at the same time: the older slot is still FREEING while the
        # newer slot runs.
        latest = self.latest(spec.allocation_id)
        if latest is not None and latest.spec.generation > spec.generation:
            raise FailedPrecondition(
                f"slot {spec.allocation_id} is at generation {latest.spec.generation} on this "
                f"executor; generation {spec.generation} is outdated",
                reason=Reason.STALE_GENERATION,
                details={
                    "allocation_id": spec.allocation_id,
                    "asked": spec.generation,
                    "known": latest.spec.generation,
                },
            )
        self._check_content(spec)
        # Slots that are being freed also count: their processes and groups still exist.
        if self.share.slots_max and len(self._slots) >= self.share.slots_max:
            raise ResourceExhausted(
                f"this executor has {counted(len(self._slots), 'slot')}, and its slots_max is "
                f"{self.share.slots_max}; free a slot or raise slots_max",
                reason=Reason.SLOT_LIMIT,
                details={"slots": len(self._slots), "slots_max": self.share.slots_max},
            )
        what, need = f"slot {spec.allocation_id}", self.booking_of(spec)
        check_fit(what, need, self.available(), self.share.total)

    def _check_content(self, spec: SlotSpec) -> None:
        check_amounts(spec)
        self.cpus.check(spec.key, spec)
        self.devices.check(spec.key, spec.profile, spec.assignment)

    def resize(
        self,
        key: SlotKey,
        number: int,
        profile: ResourceProfile,
        cpu_limit_milli: int,
        assignment: CpuAssignment | None = None,
    ) -> Outcome:
        """Books a new size for a slot.

        The outcome shows the new size in the field `becoming` of the slot, until `resized` or
        `resize_failed` is called. A repeated call with the same number and content does not start a
        second resize, even after the first resize is complete. A rejected resize books no capacity.

        Args:
            key: the slot.
            number: the number of the resize, higher than the numbers of all earlier resizes of the
                slot.
            profile: the new resource profile.
            cpu_limit_milli: the new limit of CPU time, in thousandths of a core.
            assignment: the new cpus, NUMA nodes and pools; None if the slot keeps its assignment.

        Returns:
            The outcome. Its error is one of these: ALLOCATION_UNKNOWN; SLOT_NOT_READY (the slot is
            being freed, or the result of an earlier resize is unknown); STALE_RESIZE (this number
            or a higher number is known); INSUFFICIENT_RESOURCES (with the growth as the requested
            amount); CPUS_UNAVAILABLE; INVALID_ARGUMENT.
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
        # Commands run one at a time. So if the slot is CARVING now, its carve has failed, and the
        # executor is removing the remains of the slot.
        if slot is None or slot.state is CarveState.CARVING:
            raise NotFound(
                f"this executor has no slot {key.allocation_id} generation {key.generation}",
                details={"allocation_id": key.allocation_id, "generation": key.generation},
            )
        wanted = slot.spec.of_size(number, profile, cpu_limit_milli, assignment)
        # If this call repeats a resize that is in progress or complete, it must not be rejected as
        # outdated.
        if slot.state is CarveState.ALLOCATED and wanted in (slot.spec, slot.becoming):
            return slot
        check_resizable(slot, number)
        self._check_content(wanted)
        booked, target = self.booked_by(slot), self.booking_of(wanted)
        # Only the growth must fit, because the present size is booked, and stays booked until
        # `resized`. The code above has checked devices one by one. Do not check the sums of
        # devices, too. The old profile can name a share in percent, and the new profile can name
        # the same share in bytes: the share would then count as growth.
        growth = {
            name: amount
            for name, amount in subtract(larger_of(booked, target), booked).items()
            if not name.startswith(DEVICE_PREFIX)
        }
        what = f"the growth of slot {key.allocation_id}"
        check_fit(what, growth, self.available(), self.share.total)
        return self._rebook(replace(slot, becoming=wanted))

    # -- results -----------------------------------------------------------------------------

    def carved(
        self, key: SlotKey, isolation: Isolation, time_ms: int, boot_ms: int | None = None
    ) -> Slot:
        """Marks a slot as ALLOCATED, because its limits are enforced on the host.

        Args:
            key: the slot.
            isolation: the isolation of the slot.
            time_ms: the time in milliseconds of the wall clock, only for display.
            boot_ms: the time in milliseconds of the boot clock, at which the slot's time limit
                starts.

        Raises:
            IllegalTransition: the slot is not CARVING.
        """
        slot = self._slots[key].with_state(
            CarveState.ALLOCATED,
            isolation=isolation,
            allocated_time_ms=time_ms,
            limited_since_ms=boot_ms,
        )
        return self._put(slot)

    def reused(self, key: SlotKey, number: int, boot_ms: int) -> bool:
        """Starts the time limit of a slot again, because the slot was reused.

        Args:
            key: the slot.
            number: number of the reuse. The limit starts once for each number.
            boot_ms: the time in milliseconds of the boot clock.

        Returns:
            False if the reuse was known, or the slot is not ALLOCATED any more.
        """
        slot = self._slots.get(key)
        if slot is None or slot.state is not CarveState.ALLOCATED or number <= slot.reuse_number:
            return False
        self._put(replace(slot, reuse_number=number, limited_since_ms=boot_ms))
        return True

    def carve_failed(self, key: SlotKey) -> None:
        """Removes a slot whose carve has failed. Call this when nothing of the slot is left on the
        host.

        Raises:
            IllegalTransition: the slot is not CARVING.
        """
        slot = self._slots[key]
        if slot.state is not CarveState.CARVING:
            raise illegal_transition(slot, None)
        self._remove(slot)

    def resized(self, key: SlotKey, isolation: Isolation | None = None) -> Slot:
        """Completes a resize. The new size is enforced, so amounts above it become available.

        Args:
            key: the slot.
            isolation: the new isolation of the slot; None if it has not changed.
        """
        slot = self._slots[key]
        if isolation is not None:
            slot = replace(slot, isolation=isolation)
        return self._rebook(replace(slot, spec=slot.becoming or slot.spec, becoming=None))

    def update_isolation(self, key: SlotKey, isolation: Isolation) -> None:
        """Replaces the isolation of a slot."""
        slot = self._slots[key]
        if slot.isolation != isolation:
            self._put(replace(slot, isolation=isolation))

    def resize_failed(self, key: SlotKey) -> Slot:
        """Cancels a resize: the slot has its old size again, in the table and on the host."""
        return self._rebook(replace(self._slots[key], becoming=None))

    def begin_free(self, key: SlotKey, *, end_reason: str = "") -> Slot | None:
        """Moves a slot to FREEING. The slot then accepts no more tasks.

        Args:
            key: the slot.
            end_reason: the reason why the slot ends; empty if the RM ordered the end.

        Returns:
            The slot; None if the slot does not exist (it was already freed), or is still being
            carved.
        """
        slot = self._slots.get(key)
        if slot is None or slot.state is CarveState.CARVING:
            return None
        # A slot that is already FREEING keeps its reason. There is one exception: if the RM has now
        # ordered to free the slot, remove the reason. The RM needs no report of an end that it has
        # ordered.
        if slot.state is CarveState.FREEING:
            if slot.end_reason and not end_reason:
                # The RM has ordered the end in the meantime.
                return self._put(replace(slot, end_reason=""))
            return slot
        return self._put(slot.with_state(CarveState.FREEING, end_reason=end_reason))

    def accept(self, key: SlotKey) -> bool:
        """Records that the job master accepted the slot. Returns False if the slot is not
        ALLOCATED.

        `version` does not change, because reports do not contain the acceptance.
        """
        slot = self._slots.get(key)
        if slot is None or slot.state is not CarveState.ALLOCATED:
            return False
        self._slots[key] = replace(slot, accepted=True)
        return True

    def freed(self, key: SlotKey) -> Slot:
        """Removes a slot. Its processes and its cgroup must not exist any more. Its amounts become
        available.

        Raises:
            IllegalTransition: the slot is not FREEING.
        """
        slot = self._slots[key]
        if slot.state is not CarveState.FREEING:
            raise illegal_transition(slot, None)
        return self._remove(slot)

    def vanished(self, key: SlotKey) -> Slot:
        """Removes a slot that no longer exists on the host, and frees its amounts.

        A slot vanishes through a reboot, or because another program removed the slot's cgroup.

        Raises:
            IllegalTransition: the slot is CARVING. Call `carve_failed` for such a slot.
        """
        slot = self._slots[key]
        if slot.state is CarveState.CARVING:
            raise illegal_transition(slot, None)
        return self._remove(slot)

    def adopt(self, slot: Slot) -> None:
        """Adds a slot that survived a restart. Its amounts are booked even if they exceed the
        total.

        Raises:
            IllegalTransition: the slot exists already, or is CARVING.
        """
        # A checkpoint never contains a CARVING slot. So if the slot is CARVING, the caller has made
        # an error.
        if slot.key in self._slots or slot.state is CarveState.CARVING:
            raise illegal_transition(slot, slot.state)
        self._book(slot)
        self.version += 1

    # -- cpu conditions -------------------------------------------------------------------------

    def update_conditions(self, **conditions: Any) -> bool:
        """Applies new cpu conditions.

        Args:
            conditions: the new values, by name of a field of `CpuConditions`.

        Returns:
            False if nothing changed.
        """
        changed = self.cpus.update_conditions(**conditions)
        self.version += changed
        return changed

    def update_device_conditions(self, conditions: tuple[DeviceCondition, ...]) -> bool:
        """Replaces the conditions of devices, which this executor only reports.

        Returns:
            False if nothing changed.
        """
        changed = conditions != self.devices.conditions
        self.devices.conditions = conditions
        self.version += changed
        return changed

    # -- remains of unknown slots ------------------------------------------------------------

    def withhold(self, key: SlotKey, amounts: Amounts, dedicated_cpus: CpuSet = EMPTY) -> None:
        """Withholds capacity for the remains of a slot that is on the host but not in the table.

        The remains can use any amount of a dimension that `amounts` does not name: of devices,
        countable resources or memory parts. So these dimensions are withheld completely.

        Args:
            key: the slot.
            amounts: the known amounts of the slot.
            dedicated_cpus: cpus that no other slot must get until the capacity is released.
        """
        # Count the dimensions that `amounts` does not name as fully used.
        self._withheld[key] = {
            name: amounts.get(name, amount) for name, amount in self.share.total.items()
        }
        # The class is LSE, because dedicated cpus of this class are in no pool, not even the
        # best-effort pool.
        self.cpus.put(key, [CpuAssignment(QosClass.LSE, dedicated_cpus)] if dedicated_cpus else [])
        self.version += 1

    def release_withheld(self, key: SlotKey) -> None:
        """Releases the withheld capacity, when nothing of the slot is left on the host."""
        if self._withheld.pop(key, None) is not None:
            self.cpus.drop(key)
            self.version += 1

    def _left(self, taken: Amounts, devices: Amounts) -> dict[str, int]:
        """Returns the total minus taken and withheld amounts.

        Args:
            taken: the amounts that slots have booked.
            devices: the free amounts of devices, which replace the total in their dimensions.
        """
        withheld = total_of(self._withheld.values())
        left = subtract(self.share.total, add(taken, withheld))
        return left | {name: each - withheld.get(name, 0) for name, each in devices.items()}

    def _book(self, slot: Slot) -> Slot:
        self._slots[slot.key] = slot
        self._generations.setdefault(slot.spec.allocation_id, set()).add(slot.spec.generation)
        self._booked = add(self._booked, self.booked_by(slot))
        self._assign(slot)
        return slot

    def _assign(self, slot: Slot) -> None:
        # During a resize the slot keeps both its old and its new cpus.
        has = (slot.spec, slot.becoming or slot.spec)
        assignments = dict.fromkeys(each.assignment or WHOLE_SHARED_POOL for each in has)
        self.cpus.put(slot.key, assignments)
        self.devices.put(slot.key, assignments)

    def _rebook(self, slot: Slot) -> Slot:
        # Subtract the old booking before the slot is replaced: `booked_by` computes the booking
        # from the old slot.
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
        self.devices.remove(slot.key)
        self.version += 1
        return slot

    def check_invariants(self) -> None:
        """Recomputes the bookings from the slots and checks the table for consistency.

        Raises:
            InvariantBroken: the sums differ or are negative, an index does not agree with the
                slots, or the new size of a slot has another key or no higher resize number.
        """
        # Recompute all sums, to find a change that was made without `_book`, `_rebook` or
        # `_remove`.
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

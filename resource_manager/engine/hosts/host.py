"""Keeps the ledger of one executor. The ledger contains the executor's slots and bookings, its last
report, and the commands that the resource manager must send to it.

In each dimension, the free capacity is the smaller of two amounts:

- the total minus all bookings in this ledger
- the amount that the executor reported as available, minus the bookings that this report does not
  contain yet

An executor can send a report before an allocation arrives. Because of the second amount, such a
report does not make the allocated capacity free again. If an executor refuses an allocation, its
report takes effect at once.

Example: the total is 8 cpus, and slots have booked 3. The last report shows 6 available cpus,
because it does not contain 1 of these 3 cpus yet. So min(8 - 3, 6 - 1) = 5 cpus are free. Then a
process outside slots uses 2 cpus, so the next report shows only 4. Now min(5, 4 - 1) = 3 cpus are
free.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import CpuSet
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    Amounts,
    ResourceProfile,
    decrease,
    has_separate_pools,
    increase,
    larger_of,
    shared_booking,
    subtract,
    total_of_devices,
)
from finegrain.values.bounds import AMOUNT_MAX
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.hosts.allowed_cpus import HostCpus, host_cpus
from resource_manager.engine.hosts.cpu_allocator import (
    CpuAllocator,
    ResourceRequest,
    cpus_booked,
)
from resource_manager.engine.hosts.notes import (
    Command,
    Reach,
    Refusal,
    ReservedCapacity,
    ResizeBackoff,
    StateSeen,
)
from resource_manager.engine.model.entities import (
    NOTHING_SET,
    Cordon,
    Executor,
    Registration,
    Resize,
    Slot,
    SlotKey,
)
from resource_manager.engine.model.scheduling_key import (
    Labels,
    SchedulingKey,
    in_grains,
)

UNLIMITED = AMOUNT_MAX
"""This number stands for "no limit"."""

KNOWN = "known/"
"""Prefix of index columns for the capacity of a host without slots. Hosts in all states have these
columns.
"""

ONLINE = "online/"
"""Prefix of index columns for the same capacity. Lost, draining and unreachable hosts do not have
these columns.
"""


@dataclass(slots=True, eq=False)
class Host(CpuAllocator):
    """An executor, with all facts that the resource manager knows about it.

    Attributes:
        host_id: the executor's id.
        operator_policy: settings that administrators made for this host at runtime.
        cluster_policy: settings that administrators made for all hosts.
        total: amounts that slots can book, including the amounts that are booked now.
        lost_cpus: the dedicated cpus of each slot that are no longer usable.
        separate_pools: True if the host has a separate memory pool for each memory part.
        default_booking: the amounts that a default slot books.
        labels: the labels of the executor.
        default_need: `default_booking` in the units of the index.
        dimensions: `total` in the units of the index, without zeros.
        booked: the sum of the bookings of all slots.
        unreported: the part of `booked` that the last report does not contain.
        reported: the state of each slot in the last report.
        unowned: slots in the last report that this ledger does not have.
        contained_command: number of the last command that the last report contains.
        in_flight: the command that was sent and not yet answered. None if there is no such command.
        to_allocate: slots that the next commands must allocate.
        to_free: slots that the next commands must free.
        to_resize: slots that the next commands must resize.
        reused: slots that were reused, and for which the executor has not reported yet that it has
            started their time limit again.
        resize_backoffs: resizes that the executor did not carry out, and that are tried again
            later.
        resized_last: True if the last command that did not free slots was a resize.
        frees_failed: number of consecutive failed attempts to free slots.
        frees_paused_until_ms: no FreeSlots command is sent before this time (monotonic clock).
        refusals: the scheduling classes that the executor refused.
        reach: whether the resource manager can connect to the executor.
        shrunk: True if slots have booked more than the host has now.
        emptying: True if the host gets no new slots, so that it can be given back to its provider.
            This does not count as draining: if a request needs the host, it gets new slots again.
        revocable: the slots that may be revoked; see `Slot.revocable`.
        revoked: the slots that are being revoked, with the request that has booked their capacity.
        reserved: capacity that is kept for the owner of a reservation. None if nothing is reserved.
        described: the registration from which the index columns were computed. None if the columns
            are outdated.
        columns_known: index columns that do not depend on bookings.
        columns_online: index columns of an online host that do not depend on bookings.
        known_free: the last result of `free`, including best-effort cpu. None if bookings, total or
            report have changed since.
    """

    host_id: str = field(init=False)
    operator_policy: HostPolicy = NOTHING_SET
    cluster_policy: HostPolicy = NOTHING_SET
    total: dict[str, int] = field(default_factory=dict)
    lost_cpus: dict[SlotKey, CpuSet] = field(default_factory=dict)
    separate_pools: bool = False
    default_booking: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    default_need: dict[str, int] = field(default_factory=dict)
    dimensions: dict[str, int] = field(default_factory=dict)
    booked: dict[str, int] = field(default_factory=dict)
    unreported: dict[str, int] = field(default_factory=dict)
    reported: dict[SlotKey, SlotState] = field(default_factory=dict)
    unowned: tuple[SlotKey, ...] = ()
    contained_command: int = 0
    in_flight: Command | None = None
    to_allocate: dict[SlotKey, None] = field(default_factory=dict)
    to_free: dict[SlotKey, None] = field(default_factory=dict)
    to_resize: dict[SlotKey, None] = field(default_factory=dict)
    reused: dict[SlotKey, None] = field(default_factory=dict)
    resize_backoffs: dict[SlotKey, ResizeBackoff] = field(default_factory=dict)
    resized_last: bool = False
    frees_failed: int = 0
    frees_paused_until_ms: int = 0
    refusals: dict[SchedulingKey, Refusal] = field(default_factory=dict)
    reach: Reach = field(default_factory=Reach)
    shrunk: bool = False
    emptying: bool = False
    revocable: dict[SlotKey, None] = field(default_factory=dict)
    revoked: dict[SlotKey, str] = field(default_factory=dict)
    reserved: ReservedCapacity | None = None
    described: Registration | None = None
    columns_known: dict[str, int] = field(default_factory=dict)
    columns_online: dict[str, int] = field(default_factory=dict)
    known_free: dict[str, int] | None = None

    @classmethod
    def of(
        cls,
        executor: Executor,
        operator_policy: HostPolicy = NOTHING_SET,
        cluster_policy: HostPolicy = NOTHING_SET,
        cordons: tuple[Cordon, ...] = (),
    ) -> Host:
        """Makes the ledger of an executor, without slots.

        Args:
            executor: the executor.
            operator_policy: settings that administrators made for this host.
            cluster_policy: settings that administrators made for all hosts.
            cordons: devices on which administrators have stopped new slots.
        """
        host = cls.unprepared(executor, operator_policy, cluster_policy, cordons)
        host.adopt_registration()
        return host

    @classmethod
    def unprepared(
        cls,
        executor: Executor,
        operator_policy: HostPolicy,
        cluster_policy: HostPolicy,
        cordons: tuple[Cordon, ...],
    ) -> Host:
        """Makes the ledger of a stored executor. The caller adds all its slots, and then calls
        `adopt_registration`. See `of` for the arguments.
        """
        host = cls(executor, operator_policy, cluster_policy)
        host.host_id = executor.registration.executor_id
        host.cordons = cordons
        return host

    @property
    def eligible(self) -> bool:
        """True if new slots may be placed on this host now."""
        active = self.executor.state is ExecutorState.ACTIVE
        return active and not self.executor.draining and not self.reach.unreachable

    @property
    def takes_slots(self) -> bool:
        """True if new slots should be placed on this host now. A host that is being emptied gets
        slots only if no other host has room.
        """
        return self.eligible and not self.emptying

    @property
    def online(self) -> bool:
        """True if new slots may be placed on this host now, or after the executor has registered
        again.
        """
        lost = self.executor.state is ExecutorState.LOST
        return not (lost or self.executor.draining or self.reach.unreachable)

    def adopt_registration(self) -> None:
        """Computes all values that depend on the registration, including the bookings of present
        slots.
        """
        registration = self.executor.registration
        self.revocable = {key: None for key, slot in self.slots.items() if slot.revocable}
        self.revoked = {k: slot.revoked_for for k, slot in self.slots.items() if slot.revoked_for}
        self.separate_pools = has_separate_pools(registration.total)
        self.labels = dict(registration.labels)
        self._adopt_cpus(self._cpus_now())
        # This call comes after `_adopt_cpus`, because the cpu ledger reads the present settings.
        self.adopt_topology()
        self.default_booking = self.booking_of(registration.default_profile)
        self.default_need = in_grains(self.default_booking)
        # All bookings are computed again, because they depend on the host's memory pools.
        self.booked = {}
        for slot in self.slots.values():
            slot.booked = self._booking_of_slot(slot)
            increase(self.booked, slot.booked)
        self.count_unreported()
        self.notice_shrinking()

    def settle_cpus(self) -> bool:
        """Applies changed settings, and the state of cpus that the executor reported.

        Returns:
            False if the change does not concern slots.
        """
        before, now = self.present, self._cpus_now()
        if now != before:
            self._adopt_cpus(now)
        if not self.follow_settings() and now == before:
            return False
        # Even if the total is the same, the index columns can change, because they also depend on
        # policy and kind.
        self.described = None
        self.notice_shrinking()
        return True

    def _cpus_now(self) -> HostCpus:
        one = self.executor
        return host_cpus(one.registration, one.cpu_state, self.operator_policy, self.cluster_policy)

    def _adopt_cpus(self, now: HostCpus) -> None:
        self.present, self.total, self.dimensions = now, now.total, now.dimensions
        self.known_free = None
        self.described = None

    def notice_shrinking(self) -> None:
        """Updates `shrunk`: whether slots have booked more than the host has."""
        registration = self.executor.registration
        # Slots keep their capacity. So after a host has become smaller, its bookings can exceed the
        # total. The invariants accept such bookings only while `shrunk` is set.
        self.shrunk = any(
            amount > self.total.get(name, 0) for name, amount in self.booked.items()
        ) or bool(registration.slots_max and self.slot_count > registration.slots_max)

    def start_conversation(self) -> None:
        """Drops queued commands, the command in flight and all reports. Slots stay booked. The
        method is called when the executor has registered or is lost.
        """
        self.reported = {}
        self.unowned = ()
        self.contained_command = 0
        self.in_flight = None
        # Orders that wait for the end of revoked slots are kept, because they were not part of a
        # command.
        waiting = self.slots.items() if self.revoked else ()
        self.to_allocate = {
            key: None
            for key, slot in waiting
            if slot.state is SlotState.PENDING and not slot.placed_with_command
        }
        self.to_free.clear()
        self.to_resize.clear()
        self.frees_failed = 0
        self.frees_paused_until_ms = 0
        self.refusals.clear()
        # Command numbers of the old session are not valid in the new session.
        for slot in self.slots.values():
            slot.placed_with_command = 0
        # All bookings count as unreported until the first report.
        self.count_unreported()

    def booking_of(self, profile: ResourceProfile, *, best_effort: bool = False) -> dict[str, int]:
        """Returns the amounts that a slot of this profile books on this host."""
        return shared_booking(profile, self.separate_pools, best_effort)

    def booking_for(self, request: ResourceRequest) -> dict[str, int]:
        """Returns the amounts that a slot for this request books on this host."""
        # Most requests have no CPU policy. For such requests, this branch is fast.
        if request.cpus is None:
            return (
                self.default_booking
                if request.profile is None
                else self.booking_of(request.profile)
            )
        profile = request.profile or self.executor.registration.default_profile
        return self.booking_of(profile, best_effort=request.best_effort)

    def book(self, booked: Amounts, count: int) -> None:
        """Adds the bookings of `count` new slots. No report contains them yet."""
        self.known_free = None
        for name, amount in booked.items():
            more = amount * count
            self.booked[name] = self.booked.get(name, 0) + more
            self.unreported[name] = self.unreported.get(name, 0) + more

    def lend(self, slot: Slot, sign: int) -> None:
        """Makes the capacity of a slot free for a trial (`sign` is -1), or books it again (1). The
        last report contains the slot, so the reported available amounts change, too.
        """
        self.known_free = None
        for sums in (self.booked, self.unreported):
            for name, amount in slot.booked.items():
                sums[name] = sums.get(name, 0) + sign * amount
                if not sums[name]:
                    del sums[name]

    def drop(self, key: SlotKey) -> None:
        """Removes a slot. Its capacity is then free again."""
        self.known_free = None
        slot = self.slots.pop(key)
        self.revocable.pop(key, None)
        self.revoked.pop(key, None)
        if self.cpus is not None and key in self.cpus.holdings:
            self.cpus.remove(key)
        if slot.policy is not None and not slot.revoked_for:
            self.labeled.remove(self.host_id, slot.policy)
        decrease(self.booked, slot.booked)
        decrease(self.unreported, self.unreported_of(key, slot))
        self.to_allocate.pop(key, None)
        self.to_free.pop(key, None)
        self.to_resize.pop(key, None)
        self.reused.pop(key, None)
        self.resize_backoffs.pop(key, None)
        self.lost_cpus.pop(key, None)

    def set_size(
        self,
        slot: Slot,
        profile: ResourceProfile,
        assignment: CpuAssignment | None,
        ordered: Resize | None,
    ) -> None:
        """Sets the size of a slot and its resize in flight. Then computes the slot's booking again.

        Args:
            slot: the slot.
            profile: the confirmed size of the slot.
            assignment: the cpus, NUMA nodes and devices of that size.
            ordered: the resize in flight. None if there is no such resize.
        """
        key = (slot.allocation_id, slot.generation)
        # The old booking must be subtracted from `booked` and `unreported` before the slot changes,
        # because it depends on the slot's old size and assignment.
        self.known_free = None
        decrease(self.booked, slot.booked)
        decrease(self.unreported, self.unreported_of(key, slot))
        slot.profile, slot.assignment, slot.ordered = profile, assignment, ordered
        slot.booked = self._booking_of_slot(slot)
        increase(self.booked, slot.booked)
        increase(self.unreported, self.unreported_of(key, slot))
        if self.cpus is None:
            return
        # Other slots on the host start after the end of a revoked slot, so the ledger does not
        # contain it.
        if key not in self.cpus.holdings:
            self.cpus.add(key, cpus_booked(slot), slot.policy)
        elif slot.revoked_for:
            self.cpus.remove(key)
        else:
            self.cpus.replace(key, cpus_booked(slot))

    def _booking_of_slot(self, slot: Slot) -> Amounts:
        """Returns the amounts that a slot books. While a resize is in flight, the slot books, in
        each dimension, the larger of the amounts of both sizes.
        """
        if slot.revoked_for:
            return {}
        booked = self._booking_of_size(slot)
        if slot.ordered is None:
            return booked
        ordered = self.booking_of(slot.ordered.profile, best_effort=slot.best_effort)
        assignment = slot.ordered.assignment or slot.assignment
        return larger_of(booked, self.without_vanished(ordered, assignment))

    def _booking_of_size(self, slot: Slot) -> dict[str, int]:
        """Returns the amounts that a slot of its confirmed size books."""
        booked = self.booking_of(slot.profile, best_effort=slot.best_effort)
        return self.without_vanished(booked, slot.assignment)

    def without_vanished(
        self, booked: dict[str, int], assignment: CpuAssignment | None
    ) -> dict[str, int]:
        """Returns a booking without devices that the host no longer has. The host's total does not
        count these devices any more.
        """
        if self.cpus is None or assignment is None or not assignment.devices:
            return booked
        known = self.cpus.devices.layout.position
        vanished = [each for each in assignment.devices if (each.type, each.uuid) not in known]
        if not vanished:
            return booked
        lost = total_of_devices(vanished)
        # A share has its device memory both in bytes and as a ratio. The slot books memory only in
        # the form in which it was requested.
        return {
            name: left
            for name, amount in booked.items()
            if (left := amount - lost.get(name, 0)) > 0
        }

    def count_unreported(self) -> None:
        """Recomputes `unreported` for all slots. Must be called after the reported available
        amounts have changed.
        """
        self.known_free = None
        # After a restart or a registration, no report is known, and the sum is the same.
        if not self.reported:
            self.unreported = dict(self.booked)
            return
        self.unreported = {}
        for key, slot in self.slots.items():
            # Of a slot in the report, only the growth of its resize in flight is unreported.
            if key not in self.reported or slot.ordered is not None:
                increase(self.unreported, self.unreported_of(key, slot))

    def unreported_of(self, key: SlotKey, slot: Slot) -> Amounts:
        """Returns the part of a slot's booking that the last report does not contain.

        If the slot is not in the report, this part is the whole booking. Otherwise it is the growth
        of the slot's resize in flight, because a report shows the confirmed size.
        """
        if key not in self.reported:
            return slot.booked
        if slot.ordered is None:
            return {}
        return subtract(slot.booked, self._booking_of_size(slot))

    @property
    def slot_count(self) -> int:
        """The number of slots. A slot that is being revoked does not count, because the request
        that has booked its capacity has a slot on this host, too.
        """
        return len(self.slots) - len(self.revoked)

    def contains(self, slot: Slot) -> bool:
        """Returns True if the last report would show this slot if the executor had it."""
        key = (slot.allocation_id, slot.generation)
        # The slot has not been sent to the executor yet, so no report can show it.
        if key in self.to_allocate:
            return False
        command = self.in_flight
        if command is not None and command.number == slot.placed_with_command:
            return False  # until the answer arrives, the slot possibly does not exist
        return slot.placed_with_command <= self.contained_command

    def free(self, *, even_without_pool: bool = False) -> Amounts:
        """Returns the free amounts, even if the host is not eligible. Amounts of 0 are left out.
        The result is never changed later.

        Args:
            even_without_pool: if True, best-effort cpu is included even if no cpu is in the
                best-effort pool.
        """
        free = self.known_free
        # Views and explanations read the free amounts of all hosts, most of which have not changed.
        if free is None:
            free = self.known_free = self.compute_free()
        # Without a cpu in the best-effort pool, best-effort slots cannot run, even if best-effort
        # cpu is free.
        if BEST_EFFORT_CPU_MILLI in free and not even_without_pool and self.lacks_best_effort_pool:
            return {name: left for name, left in free.items() if name != BEST_EFFORT_CPU_MILLI}
        return free

    def compute_free(self) -> dict[str, int]:
        """Computes `known_free`."""
        booked, unreported = self.booked, self.unreported
        # None means that the executor has not reported since it registered.
        available = self.executor.reported_available
        free = {}
        for name, total in self.total.items():
            left = total - booked.get(name, 0)
            if available is not None:
                # Bookings that the report does not contain yet are subtracted. Otherwise two slots
                # could get the same capacity.
                reported_free = available.get(name, 0) - unreported.get(name, 0)
                if reported_free < left:  # noqa: PLR1730 -- min() would take as long as all the rest
                    left = reported_free
            if left > 0:
                free[name] = left
        return free

    def slots_left(self) -> int:
        """Returns how many more slots the host may have."""
        limit = self.executor.registration.slots_max
        return max(0, limit - self.slot_count) if limit else UNLIMITED

    def spare(self) -> Amounts:
        """Returns the free amounts for requests that have no reservation on this host."""
        if self.reserved is None:
            return self.free()
        return self.reserved.spare(self.free(), self.total, self.slots)

    def spare_slots(self) -> int:
        """Returns how many more slots the host may have for requests that have no reservation on
        it.
        """
        left = self.slots_left()
        if self.reserved is None or left == UNLIMITED:
            return left
        return self.reserved.spare_slots(left, self.executor.registration.slots_max, self.slots)

    def carries(self, labels: Labels) -> bool:
        """Returns True if the executor has all these labels, with the same values."""
        if not labels:
            return True
        own = self.labels
        return all(own.get(name) == value for name, value in labels)

    def default_slots(self, free: Amounts, slots: int) -> int:
        """Returns how many default slots fit into the given amounts.

        Args:
            free: the free amounts.
            slots: the number of further slots that the host may have.
        """
        # If a default slot needs no amounts, any number of default slots would fit, so they are not
        # counted.
        if not self.default_need:
            return 0
        return min(
            [slots, *[free.get(name, 0) // need for name, need in self.default_need.items()]]
        )

    def state_seen(self) -> StateSeen:
        """Returns the last reported state, in a form that can be compared with a later state."""
        available = self.executor.reported_available or {}
        return frozenset(self.reported), tuple(sorted(available.items()))

    def refuses(self, request: ResourceRequest) -> bool:
        """Returns True if the executor refused an equal request recently."""
        if not self.refusals:
            return False
        refusal = self.refusals.get(request.key)
        return refusal is not None and refusal.active

    def end_refusals(self, now_ms: int) -> bool:
        """Ends refusals in two cases: the pause is over, or the reported state differs from
        `state_seen`.

        Returns:
            True if at least one refusal ended.
        """
        # The state is built once for all refusals, because building the state reads all slots.
        present = self.state_seen() if self.refusals else None
        ended = False
        for refusal in self.refusals.values():
            changed = refusal.state_seen is not None and refusal.state_seen != present
            # The refusal is kept with its number of failures, so that the next refusal lasts
            # longer.
            if refusal.active and (refusal.until_ms <= now_ms or changed):
                refusal.active = False
                ended = True
        return ended

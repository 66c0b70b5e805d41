"""The ledger of one executor: its slots and bookings, its last report, and the commands that it
must get.

Free capacity is computed from two amounts in each dimension; the smaller one counts. The first is
the total less all bookings in this ledger. The second is the amount that the executor reported as
available, less the bookings that this report does not contain yet. So a report that was sent before
an allocation arrived does not make the allocated capacity free again. And when an executor refuses
an allocation, its report takes effect at once.

Example: the total is 8 cpus, and slots have booked 3. The last report shows 6 available cpus,
because it does not contain 1 of the 3 yet. So min(8 - 3, 6 - 1) = 5 cpus are free. If a process
outside slots uses cpus and the report shows only 4, min(5, 4 - 1) = 3 cpus are free.
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
"""Used for "no limit" where a number is needed."""

KNOWN = "known/"
"""Prefix of index columns for the capacity of a host when empty, whatever its state."""

ONLINE = "online/"
"""Prefix of index columns for the capacity of a host when empty. Only hosts that are not lost,
draining or unreachable have these columns.
"""


@dataclass(slots=True, eq=False)
class Host(CpuAllocator):
    """An executor, with everything that the resource manager derives about it.

    Attributes:
        host_id: the executor's id.
        operator_policy: what operators have set for this host at runtime.
        cluster_policy: what they have set for all hosts.
        total: amounts that can be booked, including those that are booked.
        lost_cpus: by slot, those of its dedicated cpus that are no longer usable.
        separate_pools: the host has a separate memory pool for each memory part.
        default_booking: what a default slot books.
        labels: of the executor.
        default_need: `default_booking` in the units of the index.
        dimensions: `total` in the units of the index, without zeros.
        booked: what all slots have booked.
        unreported: part of `booked` that the last report does not contain.
        reported: slots in the last report, by state.
        unowned: slots in the last report that this ledger does not have.
        contained_command: number of the last command that the last report contains.
        in_flight: the command that was sent and not answered yet.
        to_allocate: slots to order with the next commands.
        to_free: slots to take down with the next commands.
        to_resize: slots to resize with the next commands.
        resize_backoffs: refused resizes, before they are tried again.
        resized_last: the last command that did not free slots was a resize.
        frees_failed: failed attempts to take slots down.
        frees_paused_until_ms: no slots are taken down before this (monotonic).
        refusals: scheduling classes that the executor refused.
        reach: whether it can be dialled.
        shrunk: its slots have booked more than it has now.
        reserved: capacity that is kept for the owner of a reservation.
        described: the registration that the index columns were derived from; None: outdated.
        columns_known: index columns that do not depend on bookings.
        columns_online: the same for a host that is online.
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
    resize_backoffs: dict[SlotKey, ResizeBackoff] = field(default_factory=dict)
    resized_last: bool = False
    frees_failed: int = 0
    frees_paused_until_ms: int = 0
    refusals: dict[SchedulingKey, Refusal] = field(default_factory=dict)
    reach: Reach = field(default_factory=Reach)
    shrunk: bool = False
    reserved: ReservedCapacity | None = None
    described: Registration | None = None
    columns_known: dict[str, int] = field(default_factory=dict)
    columns_online: dict[str, int] = field(default_factory=dict)

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
            operator_policy: what operators have set for this host.
            cluster_policy: what they have set for all hosts.
            cordons: devices on which they have stopped new work.
        """
        host = cls(executor, operator_policy, cluster_policy)
        host.host_id = executor.registration.executor_id
        host.cordons = cordons
        host.adopt_registration()
        return host

    @property
    def eligible(self) -> bool:
        """True if new slots may be placed here."""
        active = self.executor.state is ExecutorState.ACTIVE
        return active and not self.executor.draining and not self.reach.unreachable

    @property
    def online(self) -> bool:
        """True if new slots may be placed here, now or once it has registered."""
        lost = self.executor.state is ExecutorState.LOST
        return not (lost or self.executor.draining or self.reach.unreachable)

    def adopt_registration(self) -> None:
        """Derives everything that depends on the registration, including the bookings of present
        slots.
        """
        registration = self.executor.registration
        self.separate_pools = has_separate_pools(registration.total)
        self.labels = dict(registration.labels)
        self._adopt_cpus(self._cpus_now())
        # After `_adopt_cpus`: the ledger of cpus reads the settings in force.
        self.adopt_topology()
        self.default_booking = self.booking_of(registration.default_profile)
        self.default_need = in_grains(self.default_booking)
        # Recomputed in full: the host's memory pools may have changed, and with them each booking.
        self.booked = {}
        for slot in self.slots.values():
            slot.booked = self._booking_of_slot(slot)
            increase(self.booked, slot.booked)
        self.count_unreported()
        self.notice_shrinking()

    def settle_cpus(self) -> bool:
        """Adopts changed settings and the cpu state that the executor reported.

        Returns:
            False if nothing changes for slots.
        """
        before, now = self.present, self._cpus_now()
        if now != before:
            self._adopt_cpus(now)
        if not self.follow_settings() and now == before:
            return False
        # The index columns depend on policy and kind, even if the total is the same.
        self.described = None
        self.notice_shrinking()
        return True

    def _cpus_now(self) -> HostCpus:
        one = self.executor
        return host_cpus(one.registration, one.cpu_state, self.operator_policy, self.cluster_policy)

    def _adopt_cpus(self, now: HostCpus) -> None:
        self.present, self.total = now, now.total
        self.dimensions = {name: total for name, total in in_grains(self.total).items() if total}
        self.described = None

    def notice_shrinking(self) -> None:
        """Updates `shrunk`: whether slots have booked more than the host has."""
        registration = self.executor.registration
        # Slots keep what they have, so a smaller host may have booked more than its total. The
        # invariants accept that only while `shrunk` is set.
        self.shrunk = any(
            amount > self.total.get(name, 0) for name, amount in self.booked.items()
        ) or bool(registration.slots_max and len(self.slots) > registration.slots_max)

    def start_conversation(self) -> None:
        """Drops queued commands, the command in flight and all reports, because the executor has
        registered. Slots stay booked.
        """
        self.reported = {}
        self.unowned = ()
        self.contained_command = 0
        self.in_flight = None
        self.to_allocate.clear()
        self.to_free.clear()
        self.to_resize.clear()
        self.frees_failed = 0
        self.frees_paused_until_ms = 0
        self.refusals.clear()
        # Command numbers of the old session mean nothing in the new one.
        for slot in self.slots.values():
            slot.placed_with_command = 0
        # Everything that is booked counts as not reported until the first report is adopted.
        self.count_unreported()

    def booking_of(self, profile: ResourceProfile, *, best_effort: bool = False) -> dict[str, int]:
        """Returns what a slot of this profile books here."""
        return shared_booking(profile, self.separate_pools, best_effort)

    def booking_for(self, request: ResourceRequest) -> dict[str, int]:
        """Returns what a slot for this request books here."""
        # The fast path for the common case: no CPU policy.
        if request.cpus is None:
            return (
                self.default_booking
                if request.profile is None
                else self.booking_of(request.profile)
            )
        profile = request.profile or self.executor.registration.default_profile
        return self.booking_of(profile, best_effort=request.best_effort)

    def book(self, booked: Amounts, count: int) -> None:
        """Counts `count` new slots, which no report contains yet."""
        for name, amount in booked.items():
            more = amount * count
            self.booked[name] = self.booked.get(name, 0) + more
            self.unreported[name] = self.unreported.get(name, 0) + more

    def drop(self, key: SlotKey) -> None:
        """Removes a slot; its capacity is free again."""
        slot = self.slots.pop(key)
        if self.cpus is not None:
            self.cpus.remove(key)
        decrease(self.booked, slot.booked)
        decrease(self.unreported, self.unreported_of(key, slot))
        self.to_allocate.pop(key, None)
        self.to_free.pop(key, None)
        self.to_resize.pop(key, None)
        self.resize_backoffs.pop(key, None)
        self.lost_cpus.pop(key, None)

    def set_size(self, slot: Slot, profile: ResourceProfile, ordered: Resize | None) -> None:
        """Recomputes the booking of a slot, after its size or the resize in flight has changed.

        Args:
            slot: the slot.
            profile: its confirmed size.
            ordered: the resize in flight; None: there is none.
        """
        key = (slot.allocation_id, slot.generation)
        # First subtracts the old booking from both sums, then changes the slot.
        decrease(self.booked, slot.booked)
        decrease(self.unreported, self.unreported_of(key, slot))
        slot.profile, slot.ordered = profile, ordered
        slot.booked = self._booking_of_slot(slot)
        increase(self.booked, slot.booked)
        increase(self.unreported, self.unreported_of(key, slot))
        if self.cpus is not None:
            self.cpus.replace(key, cpus_booked(slot))

    def _booking_of_slot(self, slot: Slot) -> Amounts:
        """Returns what a slot books. While a resize is in flight, that is the larger one of both
        sizes.
        """
        booked = self._booking_of_size(slot)
        if slot.ordered is None:
            return booked
        ordered = self.booking_of(slot.ordered.profile, best_effort=slot.best_effort)
        assignment = slot.ordered.assignment or slot.assignment
        return larger_of(booked, self.without_vanished(ordered, assignment))

    def _booking_of_size(self, slot: Slot) -> dict[str, int]:
        """Returns what the confirmed size of a slot books."""
        booked = self.booking_of(slot.profile, best_effort=slot.best_effort)
        return self.without_vanished(booked, slot.assignment)

    def without_vanished(
        self, booked: dict[str, int], assignment: CpuAssignment | None
    ) -> dict[str, int]:
        """Returns a booking without devices that the host no longer has: its total lacks them, too,
        so they must not count against those that are left.
        """
        if self.cpus is None or assignment is None or not assignment.devices:
            return booked
        known = self.cpus.devices.layout.position
        gone = [each for each in assignment.devices if (each.type, each.uuid) not in known]
        if not gone:
            return booked
        lost = total_of_devices(gone)
        # Of the memory, a share has both amounts, and the slot books the one that it requested.
        return {
            name: left
            for name, amount in booked.items()
            if (left := amount - lost.get(name, 0)) > 0
        }

    def count_unreported(self) -> None:
        """Recomputes `unreported` for all slots."""
        self.unreported = {}
        for key, slot in self.slots.items():
            # A reported slot counts only with what its resize in flight adds.
            if key not in self.reported or slot.ordered is not None:
                increase(self.unreported, self.unreported_of(key, slot))

    def unreported_of(self, key: SlotKey, slot: Slot) -> Amounts:
        """Returns the part of a slot's booking that the last report does not contain: all of it, or
        what a resize in flight adds. (A report shows the confirmed size of a slot.)
        """
        if key not in self.reported:
            return slot.booked
        if slot.ordered is None:
            return {}
        return subtract(slot.booked, self._booking_of_size(slot))

    def contains(self, slot: Slot) -> bool:
        """Returns True if the last report would show the slot if it existed."""
        key = (slot.allocation_id, slot.generation)
        if key in self.to_allocate:  # the order was not sent, so no report can show it
            return False
        command = self.in_flight
        if command is not None and command.number == slot.placed_with_command:
            return False  # whether the slot exists is known only after the answer
        return slot.placed_with_command <= self.contained_command

    def free(self, *, even_without_pool: bool = False) -> dict[str, int]:
        """Returns the free amounts, as if the host were eligible. All of them are above zero.

        Args:
            even_without_pool: include best-effort cpu even if no cpu is in the best-effort pool.
        """
        booked, unreported = self.booked, self.unreported
        # None: nothing was reported since the registration.
        available = self.executor.reported_available
        free = {}
        for name, total in self.total.items():
            left = total - booked.get(name, 0)
            if available is not None:
                # Bookings that the report does not contain yet are subtracted. Otherwise this
                # capacity would be given to two slots.
                said = available.get(name, 0) - unreported.get(name, 0)
                if said < left:  # noqa: PLR1730 -- min() would take as long as all the rest
                    left = said
            if left > 0:
                free[name] = left
        # No cpu is in the best-effort pool, so best-effort slots could not run, even if the total
        # has best-effort cpu left.
        if not even_without_pool and self.lacks_best_effort_pool:
            free.pop(BEST_EFFORT_CPU_MILLI, None)
        return free

    def slots_left(self) -> int:
        """Returns how many more slots the host may have."""
        limit = self.executor.registration.slots_max
        return max(0, limit - len(self.slots)) if limit else UNLIMITED

    def spare(self) -> dict[str, int]:
        """Returns what is free and not reserved, for requests without a reservation here."""
        if self.reserved is None:
            return self.free()
        return self.reserved.spare(self.free(), self.total, self.slots)

    def spare_slots(self) -> int:
        """Returns how many more slots requests without a reservation here may have."""
        left = self.slots_left()
        if self.reserved is None or left == UNLIMITED:
            return left
        return self.reserved.spare_slots(left, self.executor.registration.slots_max, self.slots)

    def carries(self, labels: Labels) -> bool:
        """Returns True if the executor has all these labels with these values."""
        if not labels:
            return True
        own = self.labels
        return all(own.get(name) == value for name, value in labels)

    def default_slots(self, free: Amounts, slots: int) -> int:
        """Returns how many default slots fit into `free` and `slots`."""
        # An empty need would fit without limit.
        if not self.default_need:
            return 0
        return min(
            [slots, *[free.get(name, 0) // need for name, need in self.default_need.items()]]
        )

    def state_seen(self) -> StateSeen:
        """Returns the last reported state, in a form that compares with a later one."""
        available = self.executor.reported_available or {}
        return frozenset(self.reported), tuple(sorted(available.items()))

    def refuses(self, request: ResourceRequest) -> bool:
        """Returns True if the host refused such requests recently."""
        if not self.refusals:
            return False
        refusal = self.refusals.get(request.key)
        return refusal is not None and refusal.active

    def end_refusals(self, now_ms: int) -> bool:
        """Ends refusals whose time is over, and those after which the reported state has changed.

        Returns:
            True if it ended any.
        """
        # The state is compared once for all refusals, since building it looks at all slots.
        present = self.state_seen() if self.refusals else None
        ended = False
        for refusal in self.refusals.values():
            changed = refusal.state_seen is not None and refusal.state_seen != present
            # Kept with its failures, so that the next refusal lasts longer.
            if refusal.active and (refusal.until_ms <= now_ms or changed):
                refusal.active = False
                ended = True
        return ended

"""One executor's books: its slots, what they book, what it last reported, which commands it is to
get.

Knows arithmetic, not policy. Free capacity is always derived: the smaller of what the RM's own
books leave and what the executor said it has, less what was placed after it said so. So a report
that left before an allocation arrived cannot give that capacity away again, and a refusal takes
effect through the state that comes with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import CpuSet
from finegrain.resources import (
    AMOUNT_MAX,
    BEST_EFFORT_CPU_MILLI,
    Amounts,
    ResourceProfile,
    has_separate_pools,
    larger_of,
    subtract,
)
from finegrain.values.states import ExecutorState, SlotState
from resource_manager.engine.hosts.allowed_cpus import HostCpus, host_cpus
from resource_manager.engine.hosts.bookings import decrease, increase, shared_booking
from resource_manager.engine.hosts.cpu_allocator import (
    CpuAllocator,
    ResourceRequest,
    cpu_offer,
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
    Executor,
    Registration,
    Resize,
    Slot,
    SlotKey,
)
from resource_manager.engine.model.scheduling_key import (
    DEFAULT_SLOTS,
    SLOTS,
    SchedulingKey,
    in_grains,
)

if TYPE_CHECKING:
    from resource_manager.engine.model.settings import Strategy

UNLIMITED = AMOUNT_MAX
"""Stands for "no limit" where a number is needed."""

KNOWN = "known/"
"""Prefix of index columns: what a host in any state could give when empty."""

ONLINE = "online/"
"""Likewise, of hosts that are neither lost, draining nor unreachable."""

SCORE = "score"
"""Index column of the spread strategy: smallest free share over all dimensions, in millionths."""

SHARE_UNIT = 1_000_000


@dataclass(slots=True, eq=False)
class Host(CpuAllocator):
    """An executor with everything that the RM derives about it."""

    operator_policy: HostPolicy = NOTHING_SET  # what operators have set for it at runtime
    cluster_policy: HostPolicy = NOTHING_SET  # and for all
    total: dict[str, int] = field(default_factory=dict)  # what can be booked, slots and all
    lost_cpus: dict[SlotKey, CpuSet] = field(default_factory=dict)  # own ones that slots lack
    separate_pools: bool = False
    default_booking: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    default_need: dict[str, int] = field(default_factory=dict)  # the same as the index counts
    dimensions: tuple[tuple[str, int], ...] = ()  # of the total, without zeros, likewise
    booked: dict[str, int] = field(default_factory=dict)
    unreported: dict[str, int] = field(default_factory=dict)  # booked by slots not in `reported`
    reported: dict[SlotKey, SlotState] = field(default_factory=dict)  # of the last state taken in
    unowned: tuple[SlotKey, ...] = ()  # shown by that state, and nobody's
    contained_command: int = 0  # last command that state contains
    in_flight: Command | None = None
    to_allocate: dict[SlotKey, None] = field(default_factory=dict)
    to_free: dict[SlotKey, None] = field(default_factory=dict)
    to_resize: dict[SlotKey, None] = field(default_factory=dict)
    resize_backoffs: dict[SlotKey, ResizeBackoff] = field(default_factory=dict)
    resized_last: bool = False  # by the last command that did not free
    frees_failed: int = 0
    frees_paused_until_ms: int = 0
    refusals: dict[SchedulingKey, Refusal] = field(default_factory=dict)
    reach: Reach = field(default_factory=Reach)
    shrunk: bool = False  # registered with less than its slots have booked
    reserved: ReservedCapacity | None = None
    described: Registration | None = None  # these columns of the index are of it
    columns_known: dict[str, int] = field(default_factory=dict)
    columns_online: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        executor: Executor,
        operator_policy: HostPolicy = NOTHING_SET,
        cluster_policy: HostPolicy = NOTHING_SET,
    ) -> Host:
        """Books of an executor without slots, and what operators have set for it."""
        host = cls(executor, operator_policy, cluster_policy)
        host.adopt_registration()
        return host

    @property
    def host_id(self) -> str:
        """The executor's id."""
        return self.executor.registration.executor_id

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
        """Derives what hangs on the registration, bookings of present slots included."""
        registration = self.executor.registration
        self.separate_pools = has_separate_pools(registration.total)
        self.labels = dict(registration.labels)
        self._adopt_cpus(self._cpus_now())
        self.adopt_topology()
        self.default_booking = self.booking_of(registration.default_profile)
        self.default_need = in_grains(self.default_booking)
        self.booked = {}
        for slot in self.slots.values():
            slot.booked = self._booking_of_slot(slot)
            increase(self.booked, slot.booked)
        self.count_unreported()
        self.notice_shrinking()

    def settle_cpus(self) -> bool:
        """Takes in what operators have set, and what the executor sees of its cpus; False: it
        changes nothing for slots.
        """
        before, now = self.present, self._cpus_now()
        if now != before:
            self._adopt_cpus(now)
        if not self.follow_settings() and now == before:
            return False
        self.described = None
        self.notice_shrinking()
        return True

    def _cpus_now(self) -> HostCpus:
        one = self.executor
        return host_cpus(one.registration, one.cpu_state, self.operator_policy, self.cluster_policy)

    def _adopt_cpus(self, now: HostCpus) -> None:
        self.present, self.total = now, now.total
        self.dimensions = tuple(
            (name, total) for name, total in in_grains(self.total).items() if total
        )
        self.described = None

    def notice_shrinking(self) -> None:
        """Finds out whether the slots here have booked more than the host has."""
        registration = self.executor.registration
        self.shrunk = any(
            amount > self.total.get(name, 0) for name, amount in self.booked.items()
        ) or bool(registration.slots_max and len(self.slots) > registration.slots_max)

    def start_conversation(self) -> None:
        """Orders under way are void, and nothing has been reported yet. Slots stay booked."""
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
        for slot in self.slots.values():
            slot.placed_with_command = 0
        self.count_unreported()

    def booking_of(self, profile: ResourceProfile, *, best_effort: bool = False) -> dict[str, int]:
        """What a slot of this profile books here."""
        return shared_booking(profile, self.separate_pools, best_effort)

    def booking_for(self, request: ResourceRequest) -> dict[str, int]:
        """What a slot books here of which this is asked."""
        if request.cpus is None:
            return (
                self.default_booking
                if request.profile is None
                else self.booking_of(request.profile)
            )
        profile = request.profile or self.executor.registration.default_profile
        return self.booking_of(profile, best_effort=request.best_effort)

    def book(self, booked: Amounts, count: int) -> None:
        """Counts so many new slots, which no report contains yet."""
        for name, amount in booked.items():
            more = amount * count
            self.booked[name] = self.booked.get(name, 0) + more
            self.unreported[name] = self.unreported.get(name, 0) + more

    def drop(self, key: SlotKey) -> None:
        """Strikes a slot; its capacity is free again."""
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
        """Books anew a slot that has this size, and that is ordered to have another one, or is
        not.
        """
        key = (slot.allocation_id, slot.generation)
        decrease(self.booked, slot.booked)
        decrease(self.unreported, self.unreported_of(key, slot))
        slot.profile, slot.ordered = profile, ordered
        slot.booked = self._booking_of_slot(slot)
        increase(self.booked, slot.booked)
        increase(self.unreported, self.unreported_of(key, slot))
        if self.cpus is not None:
            self.cpus.replace(key, cpus_booked(slot))

    def _booking_of_slot(self, slot: Slot) -> Amounts:
        """Until the executor has said which size a slot has, the larger one counts."""
        booked = self.booking_of(slot.profile, best_effort=slot.best_effort)
        if slot.ordered is None:
            return booked
        ordered = self.booking_of(slot.ordered.profile, best_effort=slot.best_effort)
        return larger_of(booked, ordered)

    def count_unreported(self) -> None:
        """Derives what the last state taken in does not contain."""
        self.unreported = {}
        for key, slot in self.slots.items():
            if key not in self.reported or slot.ordered is not None:
                increase(self.unreported, self.unreported_of(key, slot))

    def unreported_of(self, key: SlotKey, slot: Slot) -> Amounts:
        """What a slot books and the last state taken in does not contain: all of it, or that by
        which it is ordered to grow. (What that state shows of a slot is its confirmed size.)
        """
        if key not in self.reported:
            return slot.booked
        if slot.ordered is None:
            return {}
        return subtract(slot.booked, self.booking_of(slot.profile, best_effort=slot.best_effort))

    def contains(self, slot: Slot) -> bool:
        """True if the last state taken in would show the slot if it existed."""
        key = (slot.allocation_id, slot.generation)
        if key in self.to_allocate:
            return False
        command = self.in_flight
        if command is not None and command.number == slot.placed_with_command:
            return False  # the answer will say what became of it
        return slot.placed_with_command <= self.contained_command

    def free(self, *, even_without_pool: bool = False) -> dict[str, int]:
        """What new slots could have, were the host eligible; no dimension below zero, no zeros;
        best-effort cpu while its pool is empty only `even_without_pool`."""
        booked, unreported = self.booked, self.unreported
        available = self.executor.reported_available
        free = {}
        for name, total in self.total.items():
            left = total - booked.get(name, 0)
            if available is not None:
                said = available.get(name, 0) - unreported.get(name, 0)
                if said < left:  # noqa: PLR1730 -- min() would take as long as all the rest
                    left = said
            if left > 0:
                free[name] = left
        if not even_without_pool and self.lacks_best_effort_pool:
            free.pop(BEST_EFFORT_CPU_MILLI, None)
        return free

    def slots_left(self) -> int:
        """Slots that the host may still take."""
        limit = self.executor.registration.slots_max
        return max(0, limit - len(self.slots)) if limit else UNLIMITED

    def spare(self) -> dict[str, int]:
        """What is free and not held: what anybody may have whom nothing is held for."""
        if self.reserved is None:
            return self.free()
        return self.reserved.spare(self.free(), self.total, self.slots)

    def spare_slots(self) -> int:
        """Slots that the host may still take, beyond those that are held."""
        left = self.slots_left()
        if self.reserved is None or left == UNLIMITED:
            return left
        return self.reserved.spare_slots(left, self.executor.registration.slots_max, self.slots)

    def empty(self) -> dict[str, int]:
        """What the host could give if it had no slots, in columns of the index."""
        registration = self.executor.registration
        slots = registration.slots_max or UNLIMITED
        return self._with_counts(in_grains(self.total), slots)

    def vector(self, strategy: Strategy) -> dict[str, int]:
        """All columns of the index."""
        if self.described is not self.executor.registration:
            self._describe()
        columns = dict(self.columns_online if self.online else self.columns_known)
        if self.eligible:
            spare, slots = in_grains(self.spare()), self.spare_slots()
            columns.update(self._with_counts(spare, slots))
            if self.cpus is not None:
                columns.update(cpu_offer(self.cpus))
            if strategy == "spread":
                columns[SCORE] = self.free_share(spare, slots)
        return columns

    def _describe(self) -> None:
        """Derives the columns that say what the host is, whatever it has free."""
        empty = self.empty()
        if self.cpus is not None:
            empty.update(cpu_offer(self.cpus.empty()))
        self.columns_known = {KNOWN + name: amount for name, amount in empty.items()}
        online = {ONLINE + name: amount for name, amount in empty.items()}
        self.columns_online = {**self.columns_known, **online}
        self.described = self.executor.registration

    def free_share(self, free: Amounts, slots: int) -> int:
        """What the fullest dimension has left, in millionths of its total; slots count as one."""
        shares = [free.get(name, 0) * SHARE_UNIT // amount for name, amount in self.dimensions]
        if limit := self.executor.registration.slots_max:
            shares.append(slots * SHARE_UNIT // limit)
        return min(shares, default=0)

    def default_slots(self, free: Amounts, slots: int) -> int:
        """How many default slots fit into `free` and `slots`."""
        if not self.default_need:
            return 0
        return min(
            [slots, *[free.get(name, 0) // need for name, need in self.default_need.items()]]
        )

    def _with_counts(self, amounts: dict[str, int], slots: int) -> dict[str, int]:
        amounts[SLOTS] = slots
        amounts[DEFAULT_SLOTS] = self.default_slots(amounts, slots)
        return amounts

    def state_seen(self) -> StateSeen:
        """The last state taken in, to compare with a later one."""
        available = self.executor.reported_available or {}
        return frozenset(self.reported), tuple(sorted(available.items()))

    def refuses(self, request: ResourceRequest) -> bool:
        """True if the host refused such requests lately."""
        if not self.refusals:
            return False
        refusal = self.refusals.get(request.key)
        return refusal is not None and refusal.active

    def end_refusals(self, now_ms: int) -> bool:
        """Ends refusals whose time is over or whose state of the host is not the present one. True
        if any ended.
        """
        present = self.state_seen() if self.refusals else None
        ended = False
        for refusal in self.refusals.values():
            changed = refusal.state_seen is not None and refusal.state_seen != present
            if refusal.active and (refusal.until_ms <= now_ms or changed):
                refusal.active = False
                ended = True
        return ended

"""Decides whether a request fits on a host, lists the obstacles, and finds changes that would help.

No other module decides whether a request fits. Placement filters hosts by the index columns of the
constraints, and then checks the costly constraints on the remaining hosts. `explain` shows the
obstacles on each host. A request is infeasible if every host has an obstacle even when empty. An
executor shape that can be requested is checked in the same way as a host.

To add a kind of constraint, write a subclass of `Constraint` and list it in `CONSTRAINTS`.
CONTRIBUTING.md has an example.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    DEVICE_PREFIX,
    MEMORY_BYTES,
    MEMORY_GRAIN_BYTES,
    MEMORY_PARTS,
    Amounts,
    fits,
    round_down,
    shared_booking,
    shortfall,
)
from finegrain.values.explanations import Dimension
from finegrain.values.states import ExecutorState
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS, in_grains
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.texts import amount_text, number_text
from resource_manager.engine.placement.constraint import (
    MILLION,
    NO_OBSTACLE,
    Blocker,
    Constraint,
    HostView,
    Obstacle,
    Remedy,
)
from resource_manager.engine.placement.cpu_constraint import CpusSuit, cpu_amounts_to_try
from resource_manager.engine.placement.device_constraint import DEVICES
from resource_manager.engine.placement.isolation_constraint import ISOLATION
from resource_manager.engine.placement.neighbor_constraint import NEIGHBORS


class Available(Constraint):
    """The executor is registered, can be reached, and is not being drained."""

    equal_in_group = True

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        host = at.host
        if host.eligible:
            return NO_OBSTACLE
        return _unavailable(host.executor.state, host.executor.draining, host.reach.unreachable)

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        match obstacle.blocker:
            case Blocker.LOST:
                return "is lost"
            case Blocker.UNCONFIRMED:
                return "has not registered since this resource manager started"
            case Blocker.DRAINING:
                return f"is draining: {at.host.executor.drain_reason or 'no reason given'}"
            case _:
                return f"reports, but commands do not reach it: {at.host.reach.cause}"


class CarriesLabels(Constraint):
    """The executor carries the labels that the request requires."""

    phrase = "lacks a required label"
    of_size = True
    equal_in_group = True
    remedies_sought_on = 5

    def applies(self, request: ResourceRequest) -> bool:
        """See `Constraint`."""
        return bool(request.labels)

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        if at.host.carries(request.labels):
            return NO_OBSTACLE
        return (Obstacle(self, Blocker.LABEL_MISMATCH),)

    def remedies(
        self, request: ResourceRequest, at: HostView, settings: EngineSettings
    ) -> Iterator[Remedy]:
        """See `Constraint`."""
        labels = ", ".join(f"{name}={value}" for name, value in request.labels)
        yield Remedy(MILLION, f"without the labels {labels}")


class EnoughFree(Constraint):
    """The host has the requested amounts free, in each dimension. The amounts of a default slot
    differ between hosts. So the index contains the number of default slots that fit on each host.
    """

    of_size = True
    has_columns = True
    is_counted = True
    columns = (DEFAULT_SLOTS,)
    remedies_sought_on = 100

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """See `Constraint`. The index counts only default slots of normal cpu."""
        if request.profile is None:
            return {} if request.best_effort else {DEFAULT_SLOTS: 1}
        return in_grains(shared_booking(request.profile, separate_pools, request.best_effort))

    def offers(self, at: HostView) -> dict[str, int]:
        """See `Constraint`."""
        free = in_grains(at.spare())
        free[DEFAULT_SLOTS] = at.host.default_slots(free, at.spare_slots())
        return free

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        short = _short(requested, at)
        found = tuple(
            Obstacle(self, _insufficient(name), True, lack, name) for name, lack in short.items()
        )
        # This obstacle is not transient: it remains even if all slots end.
        if (short or not requested) and self.is_too_small(request, requested, at.total):
            return (Obstacle(self, Blocker.TOTAL_TOO_SMALL), *found)
        return found

    def lacks(
        self,
        request: ResourceRequest,
        requested: Amounts,
        free: Mapping[str, Sequence[int]],
        count: int,
    ) -> list[int]:
        """Compares a request with hosts that book equal amounts for it. Returns the largest lack of
        each host, or -1 if the host has no obstacle.

        Args:
            request: the request.
            requested: the amounts that the request would book on each of the hosts.
            free: for each requested dimension, the free amount of each host.
            count: the number of hosts.
        """
        # Each host defines the amounts of its default slot. If these amounts are empty, the host
        # gives no default slots.
        if not requested and request.profile is None:
            return [0] * count
        # One dimension of all hosts is compared at a time, because this takes much less time than
        # `obstacles` for each host.
        lacks = [[-1] * count]
        for name, amount in _compared(requested):
            there = free[name]
            if min(there) < amount:
                lacks.append(
                    [(amount - n) * MILLION // amount if n < amount else -1 for n in there]
                )
        return lacks[-1] if len(lacks) < 3 else list(map(max, *lacks))

    def is_too_small(self, request: ResourceRequest, requested: Amounts, total: Amounts) -> bool:
        """Returns True if a host with these total amounts is too small even when empty."""
        if not requested:  # the host gives no default slots
            return request.profile is None
        return any(total.get(name, 0) < amount for name, amount in _compared(requested))

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        if obstacle.blocker == Blocker.TOTAL_TOO_SMALL:
            return "is too small even when empty"
        name = obstacle.dimension
        free, total = at.free.get(name, 0), at.total.get(name, 0)
        numbers = [number_text(name, each) for each in (requested[name], free, total)]
        lack = f"short by {amount_text(name, requested[name] - free)}"
        return f"{lack} (requested {numbers[0]}, free {numbers[1]}, total {numbers[2]})"

    def remedies(
        self, request: ResourceRequest, at: HostView, settings: EngineSettings
    ) -> Iterator[Remedy]:
        """Yields lower amounts that fit, if these amounts are not below the minimum amounts of a
        request.
        """
        host = at.host
        if request.profile is None:
            return
        spare = at.spare()
        # If the host cannot have more slots, lower amounts do not help.
        if at.spare_slots() < 1:
            return
        # Lower each amount to the free amount, then try cpu amounts until the cpus are suitable.
        requested = host.booking_for(request)
        left = dict(requested)
        for name in shortfall(requested, spare):
            # Even if the lower sum over all devices fits, it is possible that no single device has
            # enough.
            if name.startswith(DEVICE_PREFIX):
                continue
            free = spare.get(name, 0)
            # Bookings are multiples of the grain, so free memory is rounded down to a multiple of
            # the grain.
            left[name] = (
                round_down(free, MEMORY_GRAIN_BYTES) if name.endswith(MEMORY_BYTES) else free
            )
        # A profile has either one memory amount or separate parts.
        memory = sum(left.get(name, 0) for name in (MEMORY_BYTES, *MEMORY_PARTS))
        cpu = BEST_EFFORT_CPU_MILLI if request.best_effort else CPU_MILLI
        for cpu_milli in cpu_amounts_to_try(request, left.get(cpu, 0)):
            # All later amounts are even lower, so the search ends.
            if cpu_milli < settings.cpu_milli_min or memory < settings.memory_bytes_min:
                return
            smaller = left | {cpu: cpu_milli}
            if CPUS.obstacles(request, smaller, at):
                continue
            lower = tuple(
                Dimension(name, requested[name], amount, amount, host.total.get(name, 0))
                for name, amount in smaller.items()
                if amount != requested.get(name)
            )
            if lower:
                size = max((each.asked - each.free) * MILLION // each.asked for each in lower)
                amounts = " and ".join(amount_text(each.dimension, each.free) for each in lower)
                yield Remedy(size, f"with at most {amounts}", lower)
            # The largest amounts come first, so the first suitable amount is the smallest change.
            return


class SlotsLeft(Constraint):
    """The host can have one more slot."""

    equal_in_group = True
    has_columns = True
    is_counted = True
    columns = (SLOTS,)

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """See `Constraint`. The column of default slots already includes the limit of slots."""
        return {} if request.profile is None and not request.best_effort else {SLOTS: 1}

    def offers(self, at: HostView) -> dict[str, int]:
        """See `Constraint`."""
        return {SLOTS: at.spare_slots()}

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        if at.slots_left > 0:
            return NO_OBSTACLE
        return (Obstacle(self, Blocker.SLOT_LIMIT, transient=True, lack=MILLION),)

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """See `Constraint`."""
        most = at.host.executor.registration.slots_max
        return f"has {at.host.slot_count} of at most {most} slots"


class NotRefused(Constraint):
    """The executor has not refused an equal slot recently."""

    equal_in_group = True
    phrase = "refused an equal slot recently and is tried again later"

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`."""
        if not at.host.refusals or not at.host.refuses(request):
            return NO_OBSTACLE
        return (Obstacle(self, Blocker.REFUSED),)


class NotReserved(Constraint):
    """The free capacity is not reserved for other owners."""

    equal_in_group = True
    phrase = "has room, but it is reserved for a starved request"

    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """See `Constraint`. If too little is free even with the reserved capacity, `EnoughFree`
        reports the obstacle, and this constraint returns no obstacle.
        """
        host = at.host
        if host.reserved is None or at.owns_reservation:
            return NO_OBSTACLE
        if not requested or at.slots_left < 1 or not fits(requested, at.free):
            return NO_OBSTACLE
        # It is unknown which cpus the owner of the reservation will need. So no other request that
        # needs particular cpus is placed on the host.
        is_blocked = host.needs_topology(request) or (
            at.spare_slots() < 1 or not fits(requested, at.spare())
        )
        return (Obstacle(self, Blocker.HELD),) if is_blocked else NO_OBSTACLE


AVAILABLE = Available()
LABELS = CarriesLabels()
AMOUNTS = EnoughFree()
NOT_RESERVED = NotReserved()
CPUS = CpusSuit()

CONSTRAINTS: tuple[Constraint, ...] = (
    AVAILABLE,
    LABELS,
    AMOUNTS,
    ISOLATION,
    SlotsLeft(),
    NotRefused(),
    NOT_RESERVED,
    DEVICES,
    NEIGHBORS,
    CPUS,
)
"""All constraints. Costly constraints come last."""


_OF_KIND = tuple(
    each for each in CONSTRAINTS if each.of_size and not each.is_counted and not each.costly
)


def conditions_of(request: ResourceRequest) -> tuple[Constraint, ...]:
    """Returns the constraints that check labels and enforced limits of a host instead of amounts.
    Most requests have no such constraint.
    """
    return tuple(each for each in _OF_KIND if each.applies(request))


def meets(request: ResourceRequest, host: Host, conditions: Iterable[Constraint]) -> bool:
    """Returns True if a host meets the conditions that `conditions_of` returned for a request."""
    at = HostView.empty(host)
    return not any(each.obstacles(request, {}, at) for each in conditions)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a comparison of a request with a host.

    Attributes:
        at: the view of the host that was compared with the request.
        requested: the amounts that the request would book on the host, by dimension.
        obstacles: the reasons why the request does not fit; empty if it fits.
    """

    at: HostView
    requested: Amounts
    obstacles: tuple[Obstacle, ...]

    @property
    def host(self) -> Host:
        """The host."""
        return self.at.host

    @property
    def fits(self) -> bool:
        """True if the request fits on the host."""
        return not self.obstacles

    @property
    def blockers(self) -> tuple[str, ...]:
        """The codes of the obstacles."""
        return tuple(each.blocker for each in self.obstacles)

    @property
    def host_refusal(self) -> HostRefusal | None:
        """The reason why the cpus, NUMA nodes or devices of the host are not suitable. None if they
        are suitable or need no check.
        """
        return next((each.host_refusal for each in self.obstacles if each.host_refusal), None)

    def missing(self) -> dict[str, int]:
        """Returns the missing amounts, by dimension."""
        return shortfall(self.requested, self.at.free)


class Fit:
    """All constraints of a request. A `Fit` can compare the request with many hosts."""

    def __init__(self, request: ResourceRequest) -> None:
        self.request = request
        applying = [each for each in CONSTRAINTS if each.applies(request)]
        # The methods are looked up only once, because a survey calls them for every host.
        self._cheap = [each.obstacles for each in applying if not each.costly]
        self._besides_amounts = [
            each.obstacles for each in applying if not each.costly and each is not AMOUNTS
        ]
        self._has_groups = all(
            each.costly or each.equal_in_group or each is AMOUNTS for each in applying
        )
        self._costly = [each for each in applying if each.costly]
        self._of_size = [each for each in applying if each.of_size]
        # the booking on hosts with one memory pool, and on hosts with separate pools
        self._booked: tuple[Amounts, Amounts] | None = None
        if request.profile is not None:
            pooled, separate = (
                shared_booking(request.profile, each, request.best_effort) for each in (False, True)
            )
            self._booked = pooled, separate

    def requested(self, host: Host) -> Amounts:
        """Returns the amounts that the request would book on a host."""
        if self._booked is None:  # each host has its own default slot
            return host.booking_for(self.request)
        return self._booked[host.separate_pools]

    def obstacles(self, at: HostView) -> tuple[Obstacle, ...]:
        """Returns all obstacles on a host."""
        return (*self.cheap_obstacles(at), *self.costly_obstacles(at))

    def cheap_obstacles(self, at: HostView) -> tuple[Obstacle, ...]:
        """Returns the obstacles of all constraints that only compare numbers."""
        request, requested, found = self.request, self.requested(at.host), NO_OBSTACLE
        for obstacles in self._cheap:
            if more := obstacles(request, requested, at):
                found += more
        return found

    def obstacles_besides_amounts(self, at: HostView) -> tuple[Obstacle, ...]:
        """Returns the obstacles of `cheap_obstacles`, except for those of `EnoughFree`."""
        request, requested, found = self.request, self.requested(at.host), NO_OBSTACLE
        for obstacles in self._besides_amounts:
            if more := obstacles(request, requested, at):
                found += more
        return found

    def groups(self, hosts: Iterable[Host]) -> Iterable[tuple[Amounts, list[Host]]]:
        """Groups hosts. The hosts of a group have the same result of `obstacles_besides_amounts`,
        book the same amounts for the request, and either all or none are too small when empty. The
        groups are in the order of their first hosts.

        Returns:
            for each group, the amounts that the request books, and the hosts.
        """
        labels, enforced = self.request.labels, ISOLATION.applies(self.request)
        found: dict[object, tuple[Amounts, list[Host]]] = {}
        too_small: dict[tuple[int, int], bool] = {}
        for host in hosts:
            executor, requested, key = host.executor, self.requested(host), object()
            # A reservation leaves each host another part of the free amounts, so a host with a
            # reservation is in a group of its own.
            if host.reserved is None and self._has_groups:
                registration = executor.registration
                # Equal amounts are often one dict, so their identities are compared.
                sizes = id(requested), id(host.total)
                if sizes not in too_small:
                    too_small[sizes] = AMOUNTS.is_too_small(self.request, requested, host.total)
                key = (
                    id(requested),
                    too_small[sizes],
                    id(executor.state),
                    executor.draining,
                    host.reach.unreachable,
                    not registration.slots_max or host.slots_left() > 0,
                    not host.refusals or not host.refuses(self.request),
                    not labels or host.carries(labels),
                    registration.isolation if enforced else None,
                )
            found.setdefault(key, (requested, []))[1].append(host)
        return found.values()

    def costly_obstacles(self, at: HostView) -> tuple[Obstacle, ...]:
        """Returns the obstacles of all costly constraints."""
        requested = self.requested(at.host)
        return tuple(
            obstacle
            for constraint in self._costly
            for obstacle in constraint.obstacles(self.request, requested, at)
        )

    def has_costly_checks(self, host: Host) -> bool:
        """Returns True if a host can violate a costly constraint."""
        return any(each.matters_on(host, self.request) for each in self._costly)

    def fits(self, at: HostView) -> bool:
        """Returns True if a host could serve one request."""
        return not self.cheap_obstacles(at) and not self.costly_obstacles(at)

    def verdict(self, at: HostView) -> Verdict:
        """Returns all obstacles on a host, with the values that are needed to describe them."""
        return Verdict(at, self.requested(at.host), self.obstacles(at))

    def size_obstacle(
        self, at: HostView, *, besides: Collection[Constraint] = ()
    ) -> Obstacle | None:
        """Returns the first obstacle for the request on a host that is available and has no slots.
        Returns None if there is no obstacle.

        Args:
            at: the view of an empty host. The host is registered, or is an executor that could be
                requested.
            besides: constraints that are not checked.
        """
        requested = self.requested(at.host)
        for constraint in self._of_size:
            if constraint not in besides:
                for obstacle in constraint.obstacles(self.request, requested, at):
                    return obstacle
        return None


@cache
def _unavailable(state: ExecutorState, draining: bool, unreachable: bool) -> tuple[Obstacle, ...]:
    blockers = []
    if state is not ExecutorState.ACTIVE:
        blockers.append(Blocker(state.value))
    if draining:
        blockers.append(Blocker.DRAINING)
    if unreachable:
        blockers.append(Blocker.UNREACHABLE)
    return tuple(Obstacle(AVAILABLE, blocker) for blocker in blockers)


def _compared(requested: Amounts) -> list[tuple[str, int]]:
    """Returns the requested amounts that are compared with the sums of a host. `DevicesSuit` checks
    each device, so a check of the sum over devices is not needed.
    """
    return [each for each in requested.items() if not each[0].startswith(DEVICE_PREFIX)]


def _short(requested: Amounts, at: HostView) -> dict[str, int]:
    """Returns the requested dimensions of which too little is free, each with the missing part in
    millionths of the requested amount.
    """
    free, found = at.free, {}
    for name, amount in requested.items():
        there = free.get(name, 0)
        if there < amount and not name.startswith(DEVICE_PREFIX):
            found[name] = (amount - there) * MILLION // amount
    return found


@cache
def _insufficient(dimension: str) -> str:
    return f"INSUFFICIENT_{dimension.upper()}"

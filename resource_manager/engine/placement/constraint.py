"""Defines constraints. A constraint is one condition that a host must meet to serve a request.

Each kind of constraint is a subclass of `Constraint`; `fit.py` lists the subclasses. A constraint
checks one host in a given view (`HostView`): in its present state, when empty, or without some of
its slots. The constraint returns

- the columns of the capacity index that a host needs to meet the condition,
- the obstacles on the host, with exact numbers,
- the smallest changes of the request that would remove the obstacles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from finegrain.neighbors import NeighborRule
from finegrain.resources import Amounts, add, subtract, total_of
from finegrain.values.explanations import Dimension
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import UNLIMITED, Host
from resource_manager.engine.hosts.labeled_slots import near_rules
from resource_manager.engine.model.entities import Slot, SlotKey
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.settings import EngineSettings

MILLION = 1_000_000


class Blocker(StrEnum):
    """Codes of obstacles. Codes of the form INSUFFICIENT_<DIMENSION> exist as well, but are not
    listed here.
    """

    LOST = "LOST"
    UNCONFIRMED = "UNCONFIRMED"
    DRAINING = "DRAINING"
    UNREACHABLE = "UNREACHABLE"  # the resource manager cannot connect to the executor
    LABEL_MISMATCH = "LABEL_MISMATCH"
    TOTAL_TOO_SMALL = "TOTAL_TOO_SMALL"
    ISOLATION = "ISOLATION"  # the host does not enforce a limit as the request requires
    SLOT_LIMIT = "SLOT_LIMIT"
    REFUSED = "REFUSED"  # the executor refused an equal slot recently
    HELD = "HELD"  # the free capacity is reserved for another owner
    NOT_NEAR = "NOT_NEAR"  # the host has no slot that the request must be near to
    NOT_APART = "NOT_APART"  # the host has slots that the request must be apart from
    DEVICES = "DEVICES"  # too few devices have enough free capacity
    TOPOLOGY = "TOPOLOGY"  # the cpus or NUMA nodes are unsuitable, even if enough capacity is free


class Obstacle(NamedTuple):
    """One reason why a host cannot serve a request.

    Attributes:
        constraint: the condition that is not met.
        blocker: the code of the obstacle, for people and in the protocol.
        transient: True if the obstacle disappears when enough slots on the host end.
        lack: the size of the obstacle, by which explanations order hosts: the missing part of the
            requested amount, in millionths. An obstacle without a missing amount has a fixed size.
        dimension: the resource of which too little is free; empty if the obstacle is not about one
            resource.
        host_refusal: the reason why cpus, NUMA nodes or devices are not suitable; None if the
            obstacle has another cause.
    """

    constraint: Constraint
    blocker: str
    transient: bool = False
    lack: int = 0
    dimension: str = ""
    host_refusal: HostRefusal | None = None


NO_OBSTACLE: tuple[Obstacle, ...] = ()


class HostView:
    """A view of a host for the checks of constraints. The view shows the host in its present state,
    when empty, or without some of its slots.

    Attributes:
        host: the host.
        free: the amounts that one more slot could have, including reserved capacity. `spare`
            excludes capacity that is reserved for other owners.
        total: the amounts that one more slot could have if all other slots ended.
        slots_left: the number of additional slots that the host can get in this view.
        is_empty: True if the view shows the host without slots and without reservations.
        owns_reservation: True if the host's reserved capacity is for the request that is compared
            with the host.
    """

    __slots__ = ("_ended", "free", "host", "is_empty", "owns_reservation", "slots_left", "total")

    def __init__(
        self,
        host: Host,
        free: Amounts,
        slots_left: int,
        *,
        is_empty: bool = False,
        owns_reservation: bool = False,
        ended: tuple[Slot, ...] = (),
    ) -> None:
        self.host = host
        self.free = free
        self.total: Amounts = host.total
        self.slots_left = slots_left
        self.is_empty = is_empty
        self.owns_reservation = owns_reservation
        self._ended = ended

    @classmethod
    def now(cls, host: Host, *, owns_reservation: bool = False) -> HostView:
        """Returns a view of the host in its present state."""
        return cls(host, host.free(), host.slots_left(), owns_reservation=owns_reservation)

    @classmethod
    def empty(cls, host: Host) -> HostView:
        """Returns the host as if it had no slots."""
        return cls(
            host, host.total, host.executor.registration.slots_max or UNLIMITED, is_empty=True
        )

    @classmethod
    def without(
        cls, host: Host, ended: Iterable[Slot], *, owns_reservation: bool = False
    ) -> HostView:
        """Returns the host as if these slots had ended.

        `free` includes best-effort cpu even if the best-effort pool has no cpus now, because the
        pool can get cpus when slots end. The ledger in `cpus` shows whether the pool has cpus after
        the given slots have ended.
        """
        slots = tuple(ended)
        free = add(
            host.free(even_without_pool=host.lacks_best_effort_pool),
            total_of(slot.booked for slot in slots),
        )
        left = host.slots_left()
        if left != UNLIMITED:
            left += len(slots)
        return cls(host, free, left, owns_reservation=owns_reservation, ended=slots)

    @classmethod
    def growing(cls, host: Host, slot: Slot) -> HostView:
        """Returns a view of the present host for the check whether one of its slots can grow. The
        check compares only the growth: the amounts that the slot needs in addition to its booking.
        """
        # A slot that grows needs no second slot, so the host's limit of slots does not matter.
        at = cls(host, host.free(), UNLIMITED)
        # The slot keeps its booking, so the slot can grow by at most the rest of the host's total.
        at.total = subtract(host.total, slot.booked)
        return at

    def spare(self) -> Amounts:
        """Returns the part of `free` that is not reserved for other owners."""
        reserved = self.host.reserved
        if reserved is None or self.owns_reservation or self.is_empty:
            return self.free
        return reserved.spare(self.free, self.host.total, self._slots())

    def spare_slots(self) -> int:
        """Returns the number of additional slots that the host can get in this view, without slots
        that are reserved for other owners.
        """
        reserved = self.host.reserved
        if reserved is None or self.owns_reservation or self.is_empty:
            return self.slots_left
        if self.slots_left == UNLIMITED:
            return UNLIMITED
        most = self.host.executor.registration.slots_max
        return reserved.spare_slots(self.slots_left, most, self._slots())

    def _slots(self) -> Mapping[SlotKey, Slot]:
        slots = self.host.slots
        if not self._ended:
            return slots
        ended = {(slot.allocation_id, slot.generation) for slot in self._ended}
        return {key: slot for key, slot in slots.items() if key not in ended}

    @property
    def is_now(self) -> bool:
        """True if the view shows the host in its present state."""
        return not (self.is_empty or self._ended)

    def without_neighbor(self, request: ResourceRequest) -> tuple[NeighborRule, ...]:
        """Returns the rules `near` that a slot of the request meets on this host without a
        neighbor. In a view of an empty host, the result contains all rules `near`, because the
        neighbors can start there first.
        """
        if self.is_empty:
            return near_rules(request.cpus[0]) if request.cpus is not None else ()
        return self.host.without_neighbor(request)

    def cpus(self) -> CpuLedger | None:
        """Returns the ledger of the host's cpus for this view; None: the host does not report its
        cores. The caller must not change the ledger.
        """
        ledger = self.host.cpus
        if ledger is None or self.is_now:
            return ledger
        if self.is_empty:
            return ledger.empty()
        scratch = ledger.scratch()
        for slot in self._ended:
            if not slot.revoked_for:  # the ledger does not contain revoked slots
                scratch.remove((slot.allocation_id, slot.generation))
        return scratch


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of a request with which the request would fit on one host.

    Attributes:
        size: the size of the change, in millionths of the requested amount. An explanation proposes
            the smallest remedy.
        text: the description of the change: the end of a sentence that begins with "fits now on
            host-a".
        at_most: the dimensions of which the request must ask for less, each with the amount that
            fits (`free`).
        relaxed: policies that the request must no longer require: "bind", "exclusive", "numa",
            "qos", "isolation".
    """

    size: int
    text: str
    at_most: tuple[Dimension, ...] = ()
    relaxed: tuple[str, ...] = ()


class Constraint(ABC):
    """One condition that a host must meet.

    Attributes:
        of_size: True if even an empty host can violate the condition. Such a condition decides
            whether a request is feasible.
        costly: True if a check takes much longer than a comparison of numbers. A costly condition
            is checked only on hosts that meet all other conditions.
        columns: the names of the constraint's index columns, except columns of amounts.
        column_prefixes: the prefixes of further index columns. The name of such a column is a
            prefix followed by the name of a dimension.
        has_columns: True if the constraint has index columns.
        is_counted: True if the constraint's columns are amounts, which can be added up over several
            hosts.
        is_preferable: True if a request can prefer the condition instead of requiring it
            (`preferred`, `never_met`).
        remedies_sought_on: the largest number of hosts on which one explanation calls `remedies`.
        equal_in_group: True if the obstacles depend only on facts that `Fit.groups` compares. If
            it is False, explanations of requests with this condition take longer.
        phrase: the text of all obstacles of this constraint, if it is always the same; otherwise
            empty.
    """

    of_size: ClassVar[bool] = False
    costly: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ()
    column_prefixes: ClassVar[tuple[str, ...]] = ()
    has_columns: ClassVar[bool] = False
    is_counted: ClassVar[bool] = False
    is_preferable: ClassVar[bool] = False
    remedies_sought_on: ClassVar[int] = 0
    equal_in_group: ClassVar[bool] = False
    phrase: ClassVar[str] = ""

    def applies(self, request: ResourceRequest) -> bool:
        """Returns False if no host could violate the condition for this request."""
        return True

    def matters_on(self, host: Host, request: ResourceRequest) -> bool:
        """Returns False if this host always meets the condition, no matter which slots the host
        has.
        """
        return True

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """Returns the lowest value that a host must have in each index column. A host with a lower
        value does not meet the condition. A host with at least this value in all columns possibly
        still does not meet the condition.

        Args:
            request: the request.
            separate_pools: True for a host with a separate memory pool for each memory part, False
                for a host with one common pool.
        """
        return {}

    def offers(self, at: HostView) -> dict[str, int]:
        """Returns the values of a host in the columns of this constraint."""
        return {}

    def preferred(self, request: ResourceRequest) -> list[dict[str, int]]:
        """Returns, for each policy that the request prefers, the lowest column values with which a
        host can meet the policy. The values are an empty dict if no column shows whether a host can
        meet the policy.
        """
        return []

    def never_met(self, request: ResourceRequest) -> int:
        """Returns the number of preferred policies that no host can meet."""
        return 0

    @abstractmethod
    def obstacles(
        self, request: ResourceRequest, requested: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """Returns the reasons why the host does not meet the condition; empty if the host meets the
        condition.

        Args:
            request: the request.
            requested: the amounts that the request would book on the host.
            at: the host.
        """

    def text(self, obstacle: Obstacle, requested: Amounts, at: HostView) -> str:
        """Describes an obstacle of this constraint for people, without the host's id."""
        return self.phrase

    def remedies(
        self,
        request: ResourceRequest,
        at: HostView,
        settings: EngineSettings,
    ) -> Iterator[Remedy]:
        """Yields the smallest changes of a request with which the host would meet the condition.
        The caller has checked that the host meets all other conditions.

        Args:
            request: the request.
            at: the host.
            settings: the engine's settings, which contain the minimum amounts of a request.
        """
        yield from ()

"""What a constraint is: one condition that a host must meet for requests of a scheduling class.

Each kind of constraint is one class (`fit.py` lists them). It answers, about one host as it is, as
if it were empty, or as if some of its slots had ended (`HostView`):

- which columns of the capacity index are necessary for it,
- which obstacles there are, exactly and with numbers,
- the smallest changes of the request that would remove them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, NamedTuple

from finegrain.resources import Amounts, add, subtract, total_of
from finegrain.values.explanations import Dimension
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.hosts.cpu_allocator import ResourceRequest
from resource_manager.engine.hosts.host import UNLIMITED, Host
from resource_manager.engine.model.entities import Slot, SlotKey
from resource_manager.engine.model.host_refusal import HostRefusal
from resource_manager.engine.model.settings import EngineSettings

MILLION = 1_000_000


class Blocker(StrEnum):
    """Codes of obstacles, besides INSUFFICIENT_<DIMENSION>."""

    LOST = "LOST"
    UNCONFIRMED = "UNCONFIRMED"
    DRAINING = "DRAINING"
    UNREACHABLE = "UNREACHABLE"  # it reports, but cannot be dialled
    LABEL_MISMATCH = "LABEL_MISMATCH"
    TOTAL_TOO_SMALL = "TOTAL_TOO_SMALL"
    SLOT_LIMIT = "SLOT_LIMIT"
    REFUSED = "REFUSED"  # the executor refused an equal slot lately
    HELD = "HELD"  # for the owner of a reservation
    DEVICES = "DEVICES"  # no device, or too few, have enough left
    TOPOLOGY = "TOPOLOGY"  # its cpus or NUMA nodes do not suit, whatever amounts are free


class Obstacle(NamedTuple):
    """One thing that stands between a request and a host.

    Attributes:
        constraint: the condition that is not met.
        blocker: its code, as people and the protocol see it.
        transient: it goes away when enough slots on the host end.
        lack: how far the host is from meeting the condition, in millionths of what is asked for;
            0 where there is no such number.
        dimension: of which too little is free.
        host_refusal: why cpus or NUMA nodes do not suit.
    """

    constraint: Constraint
    blocker: str
    transient: bool = False
    lack: int = 0
    dimension: str = ""
    host_refusal: HostRefusal | None = None


NO_OBSTACLE: tuple[Obstacle, ...] = ()


class HostView:
    """What a host could give to one more slot.

    Attributes:
        host: the host.
        free: amounts that the slot could have.
        total: amounts that it could have if all other slots ended.
        slots_left: how many more slots the host may have.
        is_empty: the host is seen as if it had no slots, now or ever, and no reservation.
        owns_reservation: capacity that is reserved on the host is for this request.
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
        """Returns the host as it is."""
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

        Includes best-effort cpu that cannot be used while the best-effort pool is empty: the end of
        slots may fill the pool, and the cpus of the view tell.
        """
        gone = tuple(ended)
        free = add(
            host.free(even_without_pool=host.lacks_best_effort_pool),
            total_of(slot.booked for slot in gone),
        )
        left = host.slots_left()
        if left != UNLIMITED:
            left += len(gone)
        return cls(host, free, left, owns_reservation=owns_reservation, ended=gone)

    @classmethod
    def growing(cls, host: Host, slot: Slot) -> HostView:
        """Returns the host as it is, for what a slot there needs beyond what it has booked."""
        # A slot that grows needs no second slot, so their number does not limit it.
        at = cls(host, host.free(), UNLIMITED)
        # The slot stays, so at most the rest of the host is left for its growth.
        at.total = subtract(host.total, slot.booked)
        return at

    def spare(self) -> Amounts:
        """Returns what of `free` is not reserved for others."""
        reserved = self.host.reserved
        if reserved is None or self.owns_reservation or self.is_empty:
            return self.free
        return reserved.spare(self.free, self.host.total, self._slots())

    def spare_slots(self) -> int:
        """Returns how many more slots the host may have that are not reserved for others."""
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
        """True if the host is seen as it is."""
        return not (self.is_empty or self._ended)

    def cpus(self) -> CpuLedger | None:
        """Returns the ledger of cpus to ask; None: the host does not report its cores. The caller
        must not change it.
        """
        ledger = self.host.cpus
        if ledger is None or self.is_now:
            return ledger
        if self.is_empty:
            return ledger.empty()
        scratch = ledger.scratch()
        for slot in self._ended:
            scratch.remove((slot.allocation_id, slot.generation))
        return scratch


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change of a request that would let it fit on one host.

    Attributes:
        size: of the change, to compare with others, in millionths.
        text: completes "fits now on host-a ...".
        at_most: dimensions to ask less of, with the amount that would fit as `free`.
        relaxed: policies that would have to give way: "bind", "exclusive", "numa", "qos".
    """

    size: int
    text: str
    at_most: tuple[Dimension, ...] = ()
    relaxed: tuple[str, ...] = ()


class Constraint(ABC):
    """One condition that a host must meet.

    Attributes:
        of_size: the condition is about what a host is, so it also holds for an empty one.
        costly: to check it takes much longer than to compare numbers, so it is checked only where
            all other conditions are met.
        columns: names of its index columns, those of amounts excepted.
        column_prefixes: prefixes of further ones, whose names depend on what hosts have.
        has_columns: it has index columns.
        is_counted: its columns may be compared with sums over hosts.
        remedies_sought_on: on how many hosts `remedies` may be asked, for one explanation.
        phrase: its obstacle in words, where those are always the same.
    """

    of_size: ClassVar[bool] = False
    costly: ClassVar[bool] = False
    columns: ClassVar[tuple[str, ...]] = ()
    column_prefixes: ClassVar[tuple[str, ...]] = ()
    has_columns: ClassVar[bool] = False
    is_counted: ClassVar[bool] = False
    remedies_sought_on: ClassVar[int] = 0
    phrase: ClassVar[str] = ""

    def applies(self, request: ResourceRequest) -> bool:
        """Returns False if no host could violate the condition for this request."""
        return True

    def matters_on(self, host: Host, request: ResourceRequest) -> bool:
        """Returns False if the condition is met on this host whatever happens there."""
        return True

    def needs(self, request: ResourceRequest, *, separate_pools: bool) -> dict[str, int]:
        """Returns what a host must have at least, in index columns. A host that has less certainly
        does not meet the condition.

        Args:
            request: what is asked for.
            separate_pools: on a host with a pool for each memory part.
        """
        return {}

    def offers(self, at: HostView) -> dict[str, int]:
        """Returns what a host has in these columns."""
        return {}

    def preferred(self, request: ResourceRequest) -> list[dict[str, int]]:
        """Returns, for each policy that the request prefers, what a host must have in addition so
        that the policy can be met; empty where the index does not tell.
        """
        return []

    def never_met(self, request: ResourceRequest) -> int:
        """Returns how many policies the request prefers that no host can meet."""
        return 0

    @abstractmethod
    def obstacles(
        self, request: ResourceRequest, asked: Amounts, at: HostView
    ) -> tuple[Obstacle, ...]:
        """Returns what stands between a request and a host; none if the condition is met.

        Args:
            request: what is asked for.
            asked: the amounts that it would book there.
            at: the host.
        """

    def text(self, obstacle: Obstacle, asked: Amounts, at: HostView) -> str:
        """Returns an obstacle of this constraint in words, without the host's id."""
        return self.phrase

    def remedies(
        self,
        request: ResourceRequest,
        at: HostView,
        settings: EngineSettings,
    ) -> Iterator[Remedy]:
        """Yields the smallest changes of a request with which a host would fit that meets all other
        conditions.

        Args:
            request: what is asked for.
            at: the host.
            settings: for the least that a request may ask for.
        """
        yield from ()

"""What is held on which hosts for whom: the books of reservations. Knows names and amounts; why
something is held, and for how long, `reservations.py` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from finegrain.resources import Amounts, shortfall, total_of
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import SlotKey

if TYPE_CHECKING:
    from resource_manager.engine.fairness.starvation import Mark, Waiter
    from resource_manager.engine.hosts.host import Host
    from resource_manager.engine.placement.gang_room import Share
    from resource_manager.engine.queue.gangs import MemberRequest


class Holder(Protocol):
    """Somebody for whom capacity is held, as far as these books know him.

    Attributes:
        who: how `fairness/starvation.py` calls him.
        number: arrival number, his identity.
        job_id: whose he is.
        allocation_id: of a gang, of its first member that lives.
        gang_id: empty: he is no gang.
    """

    who: Waiter
    number: int
    job_id: str
    allocation_id: str
    gang_id: str = ""

    @property
    def title(self) -> str:
        """Who he is, for people."""
        return f"gang {self.gang_id}" if self.gang_id else self.allocation_id


@dataclass(frozen=True, slots=True)
class Held:
    """What is kept on one host: amounts as they are booked there, and so many slots."""

    amounts: Amounts
    slots: int

    def missing(self, host: Host) -> tuple[dict[str, int], int]:
        """What of it is not free yet: amounts, and slots."""
        return shortfall(self.amounts, host.free()), max(0, self.slots - host.slots_left())


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody is to go: what is kept for him on which host. Of those who wish for slots,
    also which part of the wishes goes where.
    """

    held: dict[str, Held]
    wishes: Sequence[MemberRequest] = ()
    shares: Sequence[Share] = ()


@dataclass(slots=True, eq=False)
class Reservation:
    """What is held for one holder.

    Attributes:
        holder: whom it is for.
        place: where he is to go.
        passed_over: from when it counts.
        since_time_ms: when it was made, for people.
        lacking: a host where something was missing when it was looked at last.
        version: of the cluster, as of which the hosts were found to be fit.
        until_ms: for so long what has to end there is waited for.
    """

    holder: Holder
    place: Place
    passed_over: Mark
    since_time_ms: int
    lacking: str
    version: int
    until_ms: int


@dataclass(slots=True)
class Reservations:
    """All of them, by the holder's arrival number, in the order of making.

    Attributes:
        ended: how many there have been before: as long as that stays, no host is held no more.
        outlasted_by: slots that did not end for as long as their end was waited for. Nobody knows
            how long a slot is to run; these may well be there for ever.
    """

    by_number: dict[int, Reservation] = field(default_factory=dict)
    on_host: dict[str, Reservation] = field(default_factory=dict)
    by_job: dict[str, Reservation] = field(default_factory=dict)
    ended: int = 0
    outlasted_by: set[SlotKey] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.by_number)

    def all(self) -> Iterator[Reservation]:
        """In the order of making."""
        yield from self.by_number.values()

    def stays_booked(self, host: Host) -> Amounts:
        """What is booked on a host by slots that outlasted a reservation; there is no telling when
        that will be free.
        """
        if not self.outlasted_by:
            return {}
        return total_of(s.booked for key, s in host.slots.items() if key in self.outlasted_by)

    def add(self, made: Reservation) -> None:
        """Takes one in. Its hosts hold for nobody else, nor does its job have another one."""
        self.by_number[made.holder.number] = made
        self.by_job[made.holder.job_id] = made
        for name in made.place.held:
            self.on_host[name] = made

    def remove(self, ended: Reservation) -> None:
        """Strikes one."""
        self.ended += 1
        del self.by_number[ended.holder.number]
        del self.by_job[ended.holder.job_id]
        for name in ended.place.held:
            del self.on_host[name]

"""The ledger of reservations: which capacity is kept on which hosts, and for which owner.

`scheduling/reservations.py` decides when a reservation is made and when it ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from resource_manager.engine.hosts.notes import ReservedCapacity
from resource_manager.engine.model.entities import SlotKey
from resource_manager.engine.queue.gangs import MemberRequest, Share
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.starvation import Mark, Waiter


@dataclass(frozen=True, slots=True)
class ReservationOwner:
    """A request, a gang, or a slot that must grow, for which capacity is reserved.

    Attributes:
        number: arrival number, which identifies it.
        job_id: its job.
        allocation_id: its allocation id; of a gang, that of the first member.
        waiter: identifies its starvation clock.
        gang_id: id of the gang; empty: it is not a gang.
        slot: the slot that must grow; None: it is not a resize.
    """

    number: int
    job_id: str
    allocation_id: str
    waiter: Waiter
    gang_id: str = ""
    slot: SlotKey | None = None

    @property
    def title(self) -> str:
        """Text for people."""
        if self.gang_id:
            return f"gang {self.gang_id}"
        return f"the growth of {self.allocation_id}" if self.slot else self.allocation_id

    def waits_in(self, queue: WaitingQueue) -> bool:
        """Returns True if the owner is still queued."""
        if isinstance(self.waiter, int):
            return self.number in queue.non_batchables
        scheduling_class, job_id = self.waiter
        job_queue = scheduling_class.job_queues.get(job_id)
        return job_queue is not None and self.number in job_queue.numbers


@dataclass(slots=True, eq=False)
class Reservation:
    """Capacity that is kept for one owner.

    Attributes:
        owner: the request, gang or slot that it is kept for.
        requests: what the owner requests; empty for a resize.
        shares: by host, how many members of each request it would get; empty for a resize.
        hosts: the reserved capacity, by host.
        starved_since: start of the owner's starvation clock.
        since_time_ms: when the reservation was made (wall clock).
        until_ms: when it expires, if slots that must end have not ended by then (monotonic).
        version: version of the cluster as of which all its hosts suit the owner.
        lacking: a host that did not have enough free capacity at the last check.
    """

    owner: ReservationOwner
    requests: Sequence[MemberRequest]
    shares: Mapping[str, Sequence[Share]]
    hosts: dict[str, ReservedCapacity]
    starved_since: Mark
    since_time_ms: int
    until_ms: int
    version: int
    lacking: str

    @property
    def order(self) -> tuple[int, int]:
        """Sort key of reservations: the one with the longest starved owner comes first."""
        return self.starved_since.ms, self.owner.number


@dataclass(slots=True)
class Reservations:
    """All reservations, and results of the search for more of them.

    Attributes:
        by_number: by the owner's arrival number, oldest first.
        outlasting: slots that had not ended when a reservation expired. They may be services, so
            no other reservation waits for their end.
        unexamined: starved waiters, the longest starved last, not examined yet. The list is filled
            again when it is empty.
        claimed: hosts that no further reservation may use until `unexamined` is filled again.
        searched: waiters for which no free hosts were found, with the hosts that would suit if
            other reservations ended; empty: no hosts would.
        searched_as_of: version of the cluster for which `searched` is valid, and until when.
        next_since: start of the oldest starvation clock that was not over at the last check.
        due_ms: when starved waiters are examined next; earlier if more waiters become starved.
        stuck: a further check may make a reservation although nothing has changed: waiters are left
            to examine, or time alone may help.
        placements: number of placements of all jobs at the last check.
    """

    by_number: dict[int, Reservation] = field(default_factory=dict)
    outlasting: set[SlotKey] = field(default_factory=set)
    unexamined: list[Waiter] = field(default_factory=list)
    claimed: set[str] = field(default_factory=set)
    searched: dict[Waiter, frozenset[str]] = field(default_factory=dict)
    searched_as_of: tuple[int, int] = (-1, 0)
    next_since: Mark = field(default_factory=lambda: Mark(0, 0))
    due_ms: int = 0
    stuck: bool = False
    placements: int = 0

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def on_host(self) -> dict[str, Reservation]:
        """The reservations by host; a host has at most one."""
        return {name: each for each in self.by_number.values() for name in each.hosts}

    def remove(self, ended: Reservation) -> None:
        """Removes a reservation. Its hosts may now suit waiters for which no hosts were found."""
        del self.by_number[ended.owner.number]
        # Keeps only waiters that no host would suit: for all others, a new search may find hosts.
        self.searched = {each: found for each, found in self.searched.items() if not found}
        # The next check begins again with the longest starved, and is due at once.
        self.unexamined.clear()
        self.due_ms = 0

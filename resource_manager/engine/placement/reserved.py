"""Keeps the ledger of reservations: the reserved capacity, its hosts, and its owners.
`scheduling/starved.py` and `scheduling/backfill.py` decide when a reservation is made, and
`scheduling/reservations.py` decides when the reservation ends.
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
    """The owner of a reservation: a request, a gang, or a slot that must grow.

    Attributes:
        number: the arrival number of the owner, which is unique.
        job_id: the id of the owner's job.
        allocation_id: the allocation id of the owner; for a gang, the allocation id of its first
            member.
        waiter: the key of the owner's starvation clock.
        gang_id: the id of the gang; empty if the owner is not a gang.
        slot: the slot that must grow; None if the owner is a request or a gang.
    """

    number: int
    job_id: str
    allocation_id: str
    waiter: Waiter
    gang_id: str = ""
    slot: SlotKey | None = None

    @property
    def title(self) -> str:
        """The name of the owner in texts for people."""
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
    """Capacity that is reserved for one owner.

    Attributes:
        owner: the request, gang or slot for which the capacity is reserved.
        requests: the owner's requests; empty if the owner is a slot that must grow.
        shares: for each host, the number of members of each request that the host would get; empty
            if the owner is a slot that must grow.
        hosts: the capacity that each host reserves, by host.
        starved_since: the time of the last placement of the owner's waiter. If none of its requests
            was placed yet, this is the start of its starvation clock.
        since_time_ms: the time at which the reservation was made (wall clock).
        until_ms: the time (monotonic clock) at which the reservation expires if the slots that must
            end have not ended yet.
        version: the value of `Hosts.version` at which all hosts of the reservation were last found
            suitable for the owner.
        lacking: a host that had too little free capacity at the last check.
        planned: True if the owner is not starved, but is the first in order. In this case, the
            reservation says when the owner will start.
        promised_ms: the earliest start that was ever expected (monotonic); None if it is not known.
            Slots that are placed on the reserved capacity in the meantime must end before this
            time. Without this rule, slots that run longer than expected would delay the start again
            and again. A plan ends with its promise if another waiter becomes first in order: slots
            of any length can then be placed on its hosts.
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
    planned: bool = False
    promised_ms: int | None = None

    @property
    def order(self) -> tuple[int, int]:
        """The sort key. The reservation with the longest starved owner comes first."""
        return self.starved_since.ms, self.owner.number


@dataclass(slots=True)
class Reservations:
    """All reservations, and the state of the search for further reservations.

    Attributes:
        by_number: all reservations by the owner's arrival number, the oldest reservation first.
        outlasting: slots that still existed when a reservation expired. These slots are possibly
            services, so no other reservation waits for their end.
        unexamined: the starved waiters that were not examined yet, the longest starved last. An
            empty list is filled again at the next check.
        claimed: hosts that further reservations must not use until `unexamined` is filled again.
        searched: the waiters for which a search found no unreserved hosts. The value contains the
            hosts that would be suitable without other reservations, and is empty if there are no
            such hosts.
        searched_as_of: says for how long `searched` is valid: for one value of `Hosts.version`, and
            until a time.
        next_since: the earliest start among the starvation clocks that had not run long enough at
            the last check.
        due_ms: the time of the next examination of starved waiters. The examination is earlier if
            more waiters become starved.
        stuck: True if another check can make a reservation even if nothing has changed, because
            some waiters were not examined yet, or because a time limit can expire.
        placements: the number of placements of all jobs at the time of the last check.
        plan_ms: the time of the next plan, at the earliest.
        plan_freed: the number of slots that had been removed at the time of the last plan.
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
    plan_ms: int = 0
    plan_freed: int = 0

    def __len__(self) -> int:
        return len(self.by_number)

    @property
    def on_host(self) -> dict[str, Reservation]:
        """The reservations by host. A host has at most one reservation."""
        return {name: each for each in self.by_number.values() for name in each.hosts}

    def of_job(self, job_id: str) -> bool:
        """Returns True if a job has a reservation. A job has at most one reservation."""
        return any(each.owner.job_id == job_id for each in self.by_number.values())

    @property
    def planned(self) -> Reservation | None:
        """The reservation of the first owner in order; None if no start is planned."""
        return next((each for each in self.by_number.values() if each.planned), None)

    def remove(self, ended: Reservation) -> None:
        """Removes a reservation. Waiters for which no hosts were found can now get hosts of this
        reservation.
        """
        del self.by_number[ended.owner.number]
        # Keep only waiters for which no host would be suitable. For the waiters that are removed, a
        # new search can find hosts.
        self.searched = {each: found for each, found in self.searched.items() if not found}
        # The next check is due at once, and begins again with the longest starved waiter.
        self.unexamined.clear()
        self.due_ms = 0

"""The books of one incarnation of the RM. Holds them, restores them, hands over what changed;
decides nothing.

Only `step` writes here. Whatever is not durable (free capacity, the queue, indexes, timers) is
derived from what is, at the start and again by `check_invariants`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from finegrain.errors import InvariantBroken
from resource_manager.engine.fairness.checkpoints import Checkpoints
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.fairness.starvation import Starving
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.counter_names import FORGOTTEN
from resource_manager.engine.model.effects import Changes
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import (
    ENDED_REQUEST_STATES,
    Executor,
    Gang,
    Group,
    HostSetting,
    Instant,
    Job,
    Provision,
    Request,
    RequestState,
    Slot,
    SlotKey,
)
from resource_manager.engine.model.history import History
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.timers import Timer, Timers
from resource_manager.engine.model.transitions import Story
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.queue.gangs import GangBooks, living
from resource_manager.engine.queue.non_batchable import Kind, Single
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part, RangeBooks
from resource_manager.engine.queue.rejection_clock import RejectionClock

Heard = dict[str, tuple[str, int]]
"""Instance id and number of the last report that was taken in, by executor."""


class State:
    """Jobs, requests, slots and hosts, with everything that is derived from them."""

    def __init__(self, settings: EngineSettings, rm_epoch: int, at: Instant) -> None:
        self.settings = settings
        self.rm_epoch = rm_epoch
        self.started = at
        self.snapshot_number = 0  # events taken in; names a state of the books
        # durable
        self.jobs: dict[str, Job] = {}
        self.requests: dict[str, Request] = {}  # with members of ranges that are singled out
        self.slots: dict[SlotKey, Slot] = {}
        self.hosts = Hosts(settings)
        self.gangs = GangBooks()
        self.ranges = RangeBooks()
        self.provisions: dict[str, Provision] = {}  # executors that were asked for, oldest first
        self.groups: dict[str, Group] = {}
        self.host_settings: dict[str, HostSetting] = {}  # by executor; "": the cluster
        self.host_setting_number = 0  # last one given
        self.arrival_number = 0  # last one given, to jobs and requests alike
        self.forgotten_registration_number = 0  # highest of all executors that were forgotten
        self.generation_floor = 0  # placements of books that a restore has replaced end here
        self.history = History(settings)
        # derived
        self.live_jobs = 0
        self.live_requests = 0  # of all jobs
        self.endings: dict[str, Ending] = {}  # jobs that have ended and still have live requests
        self.by_arrival: dict[int, Request] = {}  # in order of arrival; without members of ranges
        self.left_behind: dict[str, list[Slot]] = {}  # FREEING slots of requests that live on
        fairness = settings.fairness
        self.flows = FlowTree(fairness, at.monotonic_ms)
        self.costs = Costs(fairness.service)
        self.checkpoints = Checkpoints(self.flows, fairness)
        self.tallies_begun_anew = 0  # that were counted in another measure
        self.queue = WaitingQueue(self.flows, fair=fairness.order == "fair")
        self.timers = Timers()
        self.rejection_clock = RejectionClock(self.timers, settings.infeasible_after_ms)
        self.story = Story()
        self.changes = ChangeTracker()
        self.outbox: dict[str, None] = {}  # executors to look after when commands are sent
        self.newcomers: list[Request] = []  # accepted since the last decision
        self.new_parts: list[Part] = []  # of ranges; likewise
        self.elastic = Elastic(settings.provisioning)
        self.starving = Starving(settings.fairness)
        self.reservations = Reservations()
        self.restored_arrival = 0  # last place in line that was given out before this incarnation
        self.considered_arrival = 0  # last place in line that a decision has looked at
        self.answered_executors: set[str] = set()  # by us: they may know our epoch from us

    def heard(self) -> Heard:
        """Up to which report each executor was heard; for `remember`."""
        return {
            name: (host.executor.registration.instance_id, host.executor.report_number)
            for name, host in self.hosts.items()
            if host.executor.report_number
        }

    def remember(self, heard: Heard) -> None:
        """What this very process heard before it read its books anew is still on its way to
        nobody else: a registration that was overtaken then is refused now as well.

        Without this a late copy of one, taken for news, would strike slots that were made since.
        """
        for name, (instance_id, report_number) in heard.items():
            host = self.hosts.get(name)
            if host is not None and host.executor.registration.instance_id == instance_id:
                host.executor.report_number = report_number

    @property
    def executors(self) -> dict[str, Executor]:
        """Executors by id."""
        return {host_id: host.executor for host_id, host in self.hosts.items()}

    def take_changes(self) -> Changes:
        """Rows touched since the last call. They are the live objects: store them before the next
        step.
        """
        return self.changes.take()

    def next_timer_ms(self) -> int | None:
        """Monotonic time at which a `Ticked` may have something to do; None: nothing is pending."""
        return self.timers.next_due_ms()

    def next_arrival_number(self) -> int:
        """The next place in line."""
        return self.next_arrival_numbers(1)

    def next_arrival_numbers(self, count: int) -> int:
        """The first of so many places in line, one behind the other."""
        self.arrival_number += count
        self.changes.counter("arrival_number", self.arrival_number)
        return self.arrival_number - count + 1

    def keep_registration_number(self, number: int) -> None:
        """An executor is forgotten; should it come back, its commands must not pass for old
        ones.
        """
        self.forgotten_registration_number = max(self.forgotten_registration_number, number)
        self.changes.counter(FORGOTTEN, self.forgotten_registration_number)

    def requests_of(self, job: Job, after: int = 0) -> Iterator[Request]:
        """All requests of a job that are kept, in order of arrival, from behind `after` on; without
        members of ranges.
        """
        arrivals = job.arrivals
        for at in range(bisect_right(arrivals, after), len(arrivals)):
            yield self.by_arrival[arrivals[at]]

    def request_at(self, arrival_number: int) -> Request:
        """The request with this place in line. One that is made for the occasion (see
        `queue/ranges.py`) becomes one of the books when it is placed.

        Raises:
            InvariantBroken: nobody has that place.
        """
        request = self.by_arrival.get(arrival_number) or self.ranges.request_at(arrival_number)
        if request is None:
            raise InvariantBroken(f"no request has the arrival number {arrival_number}")
        return request

    def request_named(self, allocation_id: str) -> Request | None:
        """The request of this id, be it a member of a range (made for the occasion, if it was never
        placed or has ended); None: there is none.
        """
        return self.requests.get(allocation_id) or self.ranges.request_named(allocation_id)

    def is_taken(self, allocation_id: str) -> bool:
        """True if a request, a member of a range, or a range is called this."""
        return self.request_named(allocation_id) is not None or allocation_id in self.ranges

    @property
    def unfinished(self) -> bool:
        """True if the next decision has something to do that this one left over."""
        return bool(self.endings or self.flows.loosened) or self.queue.in_round

    def request_of(self, slot: Slot) -> Request | None:
        """The living request that this slot serves; None if it was given up or replaced."""
        request = self.requests.get(slot.allocation_id)
        if (
            request is not None
            and request.generation == slot.generation
            and request.state in (RequestState.ALLOCATING, RequestState.GRANTED)
        ):
            return request
        return None

    def line_up(self, slot: Slot) -> None:
        """Lets the change that a slot waits with stand in line."""
        if slot.wanted is None:
            raise InvariantBroken(f"slot {slot.allocation_id} waits with no change of its size")
        single = Single(
            slot.wanted.arrival_number,
            Kind.RESIZE,
            slot.allocation_id,
            slot.job_id,
            slot.generation,
            slot.executor_id,
        )
        self.queue.singles.add(single)

    def queue_gang(self, gang: Gang, *, tried: bool = False) -> None:
        """Puts a gang into the line, at its place."""
        members = list(living(self.requests, gang))
        self.gangs.begin_to_wait(gang, members, self.queue.singles, tried=tried)
        if gang.waiting_until_ms is not None:
            self.timers.arm(Timer.GANG, gang.gang_id, gang.waiting_until_ms)

    def leave_behind(self, slot: Slot) -> None:
        """A slot is being taken down; its request, if it lives on, is to have another one."""
        request = self.requests.get(slot.allocation_id)
        if request is not None and request.state not in ENDED_REQUEST_STATES:
            self.left_behind.setdefault(slot.allocation_id, []).append(slot)

    def no_longer_behind(self, slot: Slot) -> None:
        """A slot that may have been left behind is gone, or its request's again."""
        slots = self.left_behind.get(slot.allocation_id, [])
        if slot in slots:
            slots.remove(slot)
            if not slots:
                del self.left_behind[slot.allocation_id]
            request = self.requests.get(slot.allocation_id)  # none: a member that has ended
            gang = self.gangs.of(request) if request is not None else None
            if gang is not None:
                self.queue.singles.wake(gang.arrival_number)  # it may go there now

    def slot_of(self, request: Request) -> Slot | None:
        """The slot of a request that is allocating or granted."""
        if request.state in (RequestState.ALLOCATING, RequestState.GRANTED):
            return self.slots[request.spec.allocation_id, request.generation]
        return None

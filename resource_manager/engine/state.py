"""The books of one incarnation of the RM. Holds them, restores them, hands over what changed;
decides nothing.

Only `step` writes here. Whatever is not durable (free capacity, the queue, indexes, timers) is
derived from what is, at the start and again by `check_invariants`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from finegrain.errors import InvariantBroken
from resource_manager.engine.changes import ChangeTracker
from resource_manager.engine.effects import Changes, Snapshot
from resource_manager.engine.entities import (
    ENDED_REQUEST_STATES,
    Executor,
    ExecutorState,
    Gang,
    Group,
    Instant,
    Job,
    JobState,
    Provision,
    Request,
    RequestState,
    Slot,
    SlotState,
)
from resource_manager.engine.fair import threads
from resource_manager.engine.gang_books import GangBooks, living
from resource_manager.engine.group_books import adopt_groups
from resource_manager.engine.history import History
from resource_manager.engine.host import Host, SlotKey
from resource_manager.engine.placement.indexes import Indexes
from resource_manager.engine.provision.books import NUMBER, Elastic
from resource_manager.engine.queue import WaitingQueue
from resource_manager.engine.settings import EngineSettings, Strategy
from resource_manager.engine.singles import Kind, Single
from resource_manager.engine.timers import Timer, Timers
from resource_manager.engine.transitions import Story

__all__ = ["EngineSettings", "State", "Strategy"]

GENERATION_FLOOR = "generation_floor"
"""Counter that a restore of older books raises, so that no placement of theirs is taken for one of
those they have lost."""

REGISTERED_WITH = "registered_with/"
"""Prefix of counters: the report that an executor registered with last. A late copy of an earlier
registration may reach whoever takes over, and is no news there either."""

_FORGOTTEN = "forgotten_registration_number"


@dataclass(slots=True)
class Ending:
    """How far the end of a job has come; one with very many requests ends in several steps."""

    grace_ms: int | None = None
    taken_out: int = 0  # of its arrivals: they do not wait any more
    given_up: int = 0  # likewise: they have ended


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
        self.requests: dict[str, Request] = {}  # in order of arrival
        self.slots: dict[SlotKey, Slot] = {}
        self.hosts: dict[str, Host] = {}
        self.gangs = GangBooks()
        self.provisions: dict[str, Provision] = {}  # executors that were asked for, oldest first
        self.groups: dict[str, Group] = {}
        self.arrival_number = 0  # last one given, to jobs and requests alike
        self.forgotten_registration_number = 0  # highest of all executors that were forgotten
        self.generation_floor = 0  # placements of books that a restore has replaced end here
        self.history = History(settings)
        # derived
        self.live_jobs = 0
        self.live_requests = 0  # of all jobs
        self.endings: dict[str, Ending] = {}  # jobs that have ended and still have live requests
        self.by_arrival: dict[int, Request] = {}
        self.left_behind: dict[str, list[Slot]] = {}  # FREEING slots of requests that live on
        self.queue = WaitingQueue()
        self.indexes = Indexes(settings)
        self.timers = Timers()
        self.story = Story()
        self.changes = ChangeTracker()
        self.cluster_version = 0  # rises when what the hosts could give when empty changes
        self.dirty_hosts: dict[str, None] = {}
        self.outbox: dict[str, None] = {}  # executors to look after when commands are sent
        self.newcomers: list[Request] = []  # accepted since the last decision
        self.hosts_in_use = 0  # that have slots
        self.refusing: dict[str, None] = {}  # hosts that refused something, perhaps long ago
        self.elastic = Elastic(settings.provisioning)
        self.considered_arrival = 0  # last place in line that a decision has looked at
        self.answered_executors: set[str] = set()  # by us: they may know our epoch from us

    @classmethod
    def fresh(cls, settings: EngineSettings, rm_epoch: int, at: Instant) -> State:
        """Empty books."""
        return cls.restore(Snapshot(rm_epoch=rm_epoch), settings, at)

    @classmethod
    def restore(cls, snapshot: Snapshot, settings: EngineSettings, at: Instant) -> State:
        """Books as the store kept them; executors have to register before anything new is placed on
        them.

        Nobody is lost, and no lease lapses, before its full time from `at`: the RM was away, not
        they.

        Raises:
            InvariantBroken: the rows contradict each other.
        """
        state = cls(settings, snapshot.rm_epoch, at)
        state.arrival_number = snapshot.counters.get("arrival_number", 0)
        state.forgotten_registration_number = snapshot.counters.get(_FORGOTTEN, 0)
        state.generation_floor = snapshot.counters.get(GENERATION_FLOOR, 0)
        state.elastic.number = snapshot.counters.get(NUMBER, 0)
        state.elastic.resumes = bool(snapshot.provisions)
        state.provisions = {
            each.executor_id: each
            for each in sorted(
                snapshot.provisions, key=lambda each: (each.ask_time_ms, each.number)
            )
        }
        state.history.restore(snapshot.counters)
        for executor in snapshot.executors:
            state._restore_executor(executor)
            executor.report_number = snapshot.counters.get(
                REGISTERED_WITH + executor.executor_id, 0
            )
        for job in sorted(snapshot.jobs, key=lambda job: job.arrival_number):
            state._restore_job(job)
        state.gangs.restore(snapshot.gangs)
        for request in sorted(snapshot.requests, key=lambda request: request.arrival_number):
            state._restore_request(request)
        for slot in sorted(snapshot.slots, key=lambda slot: (slot.allocation_id, slot.generation)):
            state._restore_slot(slot)
        threads.restore(state.jobs, state.slots.values(), snapshot.tallies, at)
        state.groups = adopt_groups(
            snapshot.groups,
            state.jobs.values(),
            snapshot.counters,
            state.changes,
            time_ms=at.time_ms,
        )
        for gang in state.gangs.sort_out(state.requests, at):
            if gang.job_id not in state.endings:
                state.queue_gang(gang, tried=True)
        for request in state.requests.values():
            waits = request.state is RequestState.PENDING and request.job_id not in state.endings
            if waits and not request.spec.gang_id:
                state.queue.add(request)
        for shape in state.queue.shapes():
            shape.tried = True  # by whoever was here before
        for host in state.hosts.values():
            host.adopt_registration()
            state.hosts_in_use += bool(host.slots)
        if settings.provisioning or state.provisions:
            state.timers.arm(Timer.PLAN, "", at.monotonic_ms)
        state.timers.arm(Timer.HISTORY, "", at.monotonic_ms + state.history.mark_interval_ms)
        state.refresh_indexes()
        state.considered_arrival = state.arrival_number
        return state

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
        self.arrival_number += 1
        self.changes.counter("arrival_number", self.arrival_number)
        return self.arrival_number

    def keep_registration_number(self, number: int) -> None:
        """An executor is forgotten; should it come back, its commands must not pass for old
        ones.
        """
        self.forgotten_registration_number = max(self.forgotten_registration_number, number)
        self.changes.counter(_FORGOTTEN, self.forgotten_registration_number)

    def touch(self, host: Host) -> None:
        """A host's free capacity may have changed."""
        self.dirty_hosts[host.host_id] = None

    def touch_cluster(self, host: Host) -> None:
        """What a host could give when empty has changed, or whether it may."""
        self.cluster_version += 1
        self.touch(host)

    def refresh_indexes(self) -> None:
        """Brings the indexes up to date with the hosts that were touched."""
        dirty = [self.hosts[name] for name in sorted(self.dirty_hosts) if name in self.hosts]
        self.dirty_hosts.clear()
        self.indexes.refresh(dirty, self.queue)

    def requests_of(self, job: Job, after: int = 0) -> Iterator[Request]:
        """All requests of a job that are kept, in order of arrival, from behind `after` on."""
        arrivals = job.arrivals
        for at in range(bisect_right(arrivals, after), len(arrivals)):
            yield self.by_arrival[arrivals[at]]

    @property
    def unfinished(self) -> bool:
        """True if the next decision has something to do that this one left over."""
        return bool(self.endings) or self.queue.in_round

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
            gang = self.gangs.of(self.requests[slot.allocation_id])
            if gang is not None:
                self.queue.singles.wake(gang.arrival_number)  # it may go there now

    def slot_of(self, request: Request) -> Slot | None:
        """The slot of a request that is allocating or granted."""
        if request.state in (RequestState.ALLOCATING, RequestState.GRANTED):
            return self.slots[request.spec.allocation_id, request.generation]
        return None

    def _restore_executor(self, executor: Executor) -> None:
        now = self.started.monotonic_ms
        executor.state = ExecutorState.LOST if executor.lost else ExecutorState.UNCONFIRMED
        executor.report_at_ms = now
        if executor.drain_deadline_time_ms is not None:
            left = executor.drain_deadline_time_ms - self.started.time_ms
            executor.drain_deadline_at_ms = now + max(0, left)
            self.timers.arm(Timer.DRAIN, executor.executor_id, executor.drain_deadline_at_ms)
        host = Host.of(executor)
        self.hosts[executor.executor_id] = host
        self.touch_cluster(host)
        self.timers.arm(Timer.SILENCE, executor.executor_id, now + self.settings.lost_timeout_ms)

    def _restore_job(self, job: Job) -> None:
        now = self.started.monotonic_ms
        self.jobs[job.job_id] = job
        if job.state is JobState.ENDED:
            kept = self.started.time_ms - (job.end_time_ms or 0)
            left = min(
                max(0, self.settings.ended_retention_ms - kept), self.settings.ended_retention_ms
            )
            self.timers.arm(Timer.RETENTION, job.job_id, now + left)
            return
        self.live_jobs += 1
        if job.lease_ms is not None:
            job.lease_until_ms = now + job.lease_ms
            self.timers.arm(Timer.LEASE, job.job_id, job.lease_until_ms)

    def _restore_request(self, request: Request) -> None:
        job = self.jobs.get(request.job_id)
        if job is None:
            raise InvariantBroken(
                f"request {request.allocation_id} belongs to job {request.job_id},"
                " which is not stored"
            )
        request.job_id = job.job_id  # one text for all of them
        self.requests[request.allocation_id] = request
        self.by_arrival[request.arrival_number] = request
        self.gangs.restore_member(request)
        job.arrivals.append(request.arrival_number)
        if request.state not in ENDED_REQUEST_STATES:
            job.live_requests += 1
            self.live_requests += 1
            if job.state is JobState.ENDED:
                self.endings.setdefault(job.job_id, Ending())

    def _restore_slot(self, slot: Slot) -> None:
        host = self.hosts.get(slot.executor_id)
        if host is None:
            raise InvariantBroken(
                f"slot {slot.allocation_id}/{slot.generation} is on executor {slot.executor_id},"
                " which is not stored"
            )
        request = self.requests.get(slot.allocation_id)
        if request is not None:
            slot.allocation_id = request.spec.allocation_id
        _match(request, slot)
        if slot.state is SlotState.FREEING:
            self.leave_behind(slot)
        slot.executor_id = host.host_id
        key = slot.allocation_id, slot.generation
        self.slots[key] = slot
        host.slots[key] = slot
        job = self.jobs.get(slot.job_id)
        if job is not None:
            slot.job_id = job.job_id
            job.slot_keys.add(key)
        if slot.state is SlotState.ALLOCATED and slot.wanted is not None and slot.ordered is None:
            self.line_up(slot)


def _match(request: Request | None, slot: Slot) -> None:
    """Where a request and one of its slots (older ones first) stand, by what was stored of both.

    Placing, granting and taking down are not written twice: a row of a request says how it stood
    when it last waited or ended. A slot of a later placement than that is the one it has; a slot
    that no living request has is being taken down.
    """
    lives = request is not None and (
        request.generation < slot.generation
        if request.state is RequestState.PENDING
        else request.generation == slot.generation
        and request.state in (RequestState.ALLOCATING, RequestState.GRANTED)
    )
    if request is None or not lives or slot.state is SlotState.FREEING:
        slot.state = SlotState.FREEING
        return
    granted = slot.state is SlotState.ALLOCATED
    request.state = RequestState.GRANTED if granted else RequestState.ALLOCATING
    request.generation = slot.generation
    request.reason = request.message = ""

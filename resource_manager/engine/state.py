"""The whole state of the resource manager: all ledgers.

Only `step` changes the state. Parts that are not stored (free capacity, the queue, indexes, timers)
are derived at the start of the resource manager. `check_invariants` derives these parts again and
compares the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.awaited import AwaitedExecutors
from resource_manager.engine.lifecycle.departures import Departures
from resource_manager.engine.lifecycle.dependency_moves import DependencyMoves
from resource_manager.engine.lifecycle.gangs import GangMoves
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.members import MemberRows
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.lifecycle.provisions import ProvisionMoves
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks
from resource_manager.engine.lifecycle.range_ends import RangeMoves
from resource_manager.engine.lifecycle.request_timeouts import RequestTimeouts
from resource_manager.engine.lifecycle.resizes import ResizeMoves
from resource_manager.engine.lifecycle.run_times import RunTimes
from resource_manager.engine.lifecycle.usage import UsageAccounting
from resource_manager.engine.lifecycle.usage_checkpoints import Checkpoints, UsageCheckpoints
from resource_manager.engine.lifecycle.waiting import WaitingReasons
from resource_manager.engine.model.changes import ChangeTracker, Numbers
from resource_manager.engine.model.endings import Ending
from resource_manager.engine.model.entities import (
    Group,
    HostSetting,
    Instant,
    Job,
    Provision,
    Request,
)
from resource_manager.engine.model.history import History
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.timers import Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.queue.dependencies import JobDependencies
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.queue.requests import Requests


class State:
    """All jobs, requests, slots and hosts, and all data that is derived from them."""

    def __init__(self, settings: EngineSettings, rm_epoch: int, at: Instant) -> None:
        self.settings = settings
        self.rm_epoch = rm_epoch
        self.started = at
        # Durable state, which is also in the store.
        self.jobs: dict[str, Job] = {}
        self.ranges = RangeLedger()
        self.requests = Requests(self.ranges)
        self.slots = Slots()
        self.hosts = Hosts(settings)
        self.gangs = GangLedger()
        self.provisions: dict[str, Provision] = {}  # requested executors; the oldest comes first
        self.groups: dict[str, Group] = {}
        # The key is the executor id, or "" for the whole cluster.
        self.host_settings: dict[str, HostSetting] = {}
        self.changes = ChangeTracker()
        self.numbers = Numbers(self.changes)
        self.history = History(settings)
        # Derived state.
        self.live_jobs = 0
        self.endings: dict[str, Ending] = {}  # jobs that have ended and still have live requests
        self.dependencies = JobDependencies()
        fairness = settings.fairness
        self.flows = FlowTree(fairness, at.monotonic_ms)
        self.costs = Costs(fairness.usage_measure)
        self.checkpoints = Checkpoints(self.flows, fairness)
        self.queue = WaitingQueue(self.flows, fair=fairness.order == "fair")
        self.timers = Timers()
        self.rejection_clock = RejectionClock(self.timers, settings.infeasible_after_ms)
        self.transitions = Transitions()
        # A dict is used as an ordered set, so that equal events lead to equal decisions.
        self.outbox: dict[str, None] = {}  # executors that possibly need a command
        # accepted requests, and parts of ranges, for which the history does not show yet whether
        # they were placed or must wait
        self.newcomers: deque[Request] = deque()
        self.new_parts: list[Part] = []
        self.elastic = Elastic(settings.provisioning)
        self.reservations = Reservations()
        # waiters and scheduling keys for which no slots could be revoked, and the time (monotonic)
        # of the next search
        self.revocation_retries: dict[Hashable, int] = {}
        # the highest arrival number that the latest `Decide` has considered
        self.considered_arrival = 0
        # executors that this process has answered; an answer tells an executor the epoch of this
        # process
        self.answered_executors: set[str] = set()
        # Objects that change the states of entities, and keep the ledgers in step with the changes.
        self.journal = Journal(
            settings,
            at,
            jobs=self.jobs,
            hosts=self.hosts,
            history=self.history,
            changes=self.changes,
        )
        self.awaited = AwaitedExecutors(self.journal, self.changes, self.hosts)
        self.usage = UsageAccounting(
            costs=self.costs,
            flows=self.flows,
            groups=self.groups,
            hosts=self.hosts,
            jobs=self.jobs,
            slots=self.slots,
        )
        self.usage_checkpoints = UsageCheckpoints(
            journal=self.journal,
            changes=self.changes,
            checkpoints=self.checkpoints,
            flows=self.flows,
            jobs=self.jobs,
            settings=self.settings,
            timers=self.timers,
        )
        self.members = MemberRows(
            changes=self.changes, jobs=self.jobs, ranges=self.ranges, requests=self.requests
        )
        self.resizes = ResizeMoves(
            journal=self.journal,
            changes=self.changes,
            hosts=self.hosts,
            outbox=self.outbox,
            queue=self.queue,
            requests=self.requests,
            settings=self.settings,
            slots=self.slots,
            timers=self.timers,
            transitions=self.transitions,
            usage=self.usage,
        )
        self.quotas = QuotaChecks(
            costs=self.costs,
            flows=self.flows,
            gangs=self.gangs,
            hosts=self.hosts,
            queue=self.queue,
            slots=self.slots,
        )
        self.waiting_reasons = WaitingReasons(
            journal=self.journal,
            settings=self.settings,
            elastic=self.elastic,
            gangs=self.gangs,
            hosts=self.hosts,
            provisions=self.provisions,
            queue=self.queue,
            reservations=self.reservations,
        )
        self.dependency_moves = DependencyMoves(
            journal=self.journal,
            dependencies=self.dependencies,
            endings=self.endings,
            flows=self.flows,
            jobs=self.jobs,
            queue=self.queue,
        )
        self.moves = RequestMoves(
            journal=self.journal,
            changes=self.changes,
            costs=self.costs,
            endings=self.endings,
            flows=self.flows,
            gangs=self.gangs,
            hosts=self.hosts,
            jobs=self.jobs,
            numbers=self.numbers,
            outbox=self.outbox,
            queue=self.queue,
            ranges=self.ranges,
            rejection_clock=self.rejection_clock,
            requests=self.requests,
            slots=self.slots,
            timers=self.timers,
            transitions=self.transitions,
            members=self.members,
            resizes=self.resizes,
            usage=self.usage,
        )
        self.gang_moves = GangMoves(
            journal=self.journal,
            changes=self.changes,
            endings=self.endings,
            gangs=self.gangs,
            hosts=self.hosts,
            queue=self.queue,
            rejection_clock=self.rejection_clock,
            requests=self.requests,
            slots=self.slots,
            timers=self.timers,
            transitions=self.transitions,
            moves=self.moves,
        )
        self.range_moves = RangeMoves(
            journal=self.journal,
            queue=self.queue,
            ranges=self.ranges,
            transitions=self.transitions,
            members=self.members,
            moves=self.moves,
        )
        self.request_timeouts = RequestTimeouts(
            journal=self.journal,
            moves=self.moves,
            range_moves=self.range_moves,
            ranges=self.ranges,
            requests=self.requests,
            timers=self.timers,
        )
        self.provision_moves = ProvisionMoves(
            journal=self.journal,
            changes=self.changes,
            elastic=self.elastic,
            hosts=self.hosts,
            provisions=self.provisions,
            rm_epoch=self.rm_epoch,
            settings=self.settings,
            timers=self.timers,
            transitions=self.transitions,
            usage=self.usage,
        )
        self.run_times = RunTimes(self.journal, self.requests, self.jobs)
        self.departures = Departures(
            journal=self.journal,
            changes=self.changes,
            costs=self.costs,
            host_settings=self.host_settings,
            hosts=self.hosts,
            numbers=self.numbers,
            outbox=self.outbox,
            rejection_clock=self.rejection_clock,
            timers=self.timers,
            transitions=self.transitions,
            gang_moves=self.gang_moves,
            moves=self.moves,
            usage=self.usage,
        )

    @property
    def queue_unfinished(self) -> bool:
        """True if this `Decide` has not tried the whole queue, so that the next `Decide` must
        continue.
        """
        started = self.endings or self.dependencies.ended or self.flows.freed_groups
        return bool(started) or self.queue.in_pass

    @property
    def unfinished(self) -> bool:
        """True if this `Decide` has left work, so that the next `Decide` must continue."""
        # Newcomers are in order of arrival. A newcomer with a number up to `considered_arrival` was
        # already considered for placement, so only its history entry is missing.
        decided = bool(self.newcomers) and (
            self.newcomers[0].arrival_number <= self.considered_arrival
        )
        return (
            self.queue_unfinished
            # newcomers were considered, but the history does not show them as pending yet
            or decided
            or bool(self.timers.left_over)
            or self.elastic.steps is not None
        )

"""The books of one incarnation of the RM: all ledgers, side by side.

Only `step` writes here. Whatever is not durable (free capacity, the queue, indexes, timers) is
derived from what is, at the start and again by `check_invariants`.
"""

from __future__ import annotations

from resource_manager.engine.fairness.checkpoints import Checkpoints
from resource_manager.engine.fairness.costs import Costs
from resource_manager.engine.fairness.flows import FlowTree
from resource_manager.engine.fairness.starvation import Starving
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.changes import ChangeTracker
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
from resource_manager.engine.model.numbers import Numbers
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.timers import Timers
from resource_manager.engine.model.transitions import Transitions
from resource_manager.engine.placement.elastic import Elastic
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservations
from resource_manager.engine.queue.gangs import GangLedger
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.rejection_clock import RejectionClock
from resource_manager.engine.queue.requests import Requests


class State:
    """Jobs, requests, slots and hosts, with everything that is derived from them."""

    def __init__(self, settings: EngineSettings, rm_epoch: int, at: Instant) -> None:
        self.settings = settings
        self.rm_epoch = rm_epoch
        self.started = at
        self.snapshot_number = 0  # events taken in; names a state of the books
        # durable
        self.jobs: dict[str, Job] = {}
        self.ranges = RangeLedger()
        self.requests = Requests(self.ranges)
        self.slots = Slots()
        self.hosts = Hosts(settings)
        self.gangs = GangLedger()
        self.provisions: dict[str, Provision] = {}  # executors that were asked for, oldest first
        self.groups: dict[str, Group] = {}
        self.host_settings: dict[str, HostSetting] = {}  # by executor; "": the cluster
        self.changes = ChangeTracker()
        self.numbers = Numbers(self.changes)
        self.history = History(settings)
        # derived
        self.live_jobs = 0
        self.live_requests = 0  # of all jobs
        self.endings: dict[str, Ending] = {}  # jobs that have ended and still have live requests
        fairness = settings.fairness
        self.flows = FlowTree(fairness, at.monotonic_ms)
        self.costs = Costs(fairness.service)
        self.checkpoints = Checkpoints(self.flows, fairness)
        self.tallies_begun_anew = 0  # that were counted in another measure
        self.queue = WaitingQueue(self.flows, fair=fairness.order == "fair")
        self.timers = Timers()
        self.rejection_clock = RejectionClock(self.timers, settings.infeasible_after_ms)
        self.transitions = Transitions()
        self.outbox: dict[str, None] = {}  # executors to look after when commands are sent
        self.newcomers: list[Request] = []  # accepted since the last decision
        self.new_parts: list[Part] = []  # of ranges; likewise
        self.elastic = Elastic(settings.provisioning)
        self.starving = Starving(settings.fairness)
        self.reservations = Reservations()
        self.restored_arrival = 0  # last place in line that was given out before this incarnation
        self.considered_arrival = 0  # last place in line that a decision has looked at
        self.answered_executors: set[str] = set()  # by us: they may know our epoch from us

    @property
    def unfinished(self) -> bool:
        """True if the next decision has something to do that this one left over."""
        return bool(self.endings or self.flows.loosened) or self.queue.in_round

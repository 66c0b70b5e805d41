"""Drives the real engine through virtual time, from one moment with an event to the next.

The simulator replaces everything around the engine: job masters, executors, the clock and the
store. The simulated executors carry out each command at once, and the simulated store stores
nothing. The engine makes all decisions, and the same input gives the same run. Only the stopwatch
around decisions uses a real clock.

At each moment, events happen in this order: threads end, their slots are freed, jobs arrive, and
all requests that fit are placed. Then time advances.
"""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from finegrain.errors import InvariantBroken
from finegrain.resources import Amounts, ResourceProfile
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import RequestState
from resource_manager.engine.model.effects import (
    Effect,
    PublishClusterEvent,
    PublishJobEvent,
    SendAllocate,
    SendFree,
    SendResize,
)
from resource_manager.engine.model.entities import GangSpec, Instant, JobEvent, RangeSpec
from resource_manager.engine.model.events import (
    Decide,
    Event,
    GroupSet,
    JobEndRequested,
    JobRegistered,
    RegistrationAnswer,
    RequestsSubmitted,
    SlotsReleased,
    Ticked,
)
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh
from resource_manager.engine.step import step
from resource_manager.simulator.log import JobRecord, RunLog
from resource_manager.simulator.nodes import Command, Labels, Node, SimulatedExecutor
from resource_manager.simulator.plan import Effort, Kind, Submitted, simulated

ONE_CPU = ResourceProfile(1_000)
OWNER = "operator/simulator"  # owner of all jobs; the role `operator` can use every group
"""Default profile of a thread: one core."""

START_TIME_MS = 1_700_000_000_000
"""Wall clock time at virtual time 0; it appears only in messages."""

QUIET_MS = 60_000
"""Delay of the next timer after a timer that had no effect.

The engine retries a starved request every second, even if nothing can help it. Without this delay a
replay of months would not end.
"""

_SUBMITTED_AT_ONCE = 10_000


class Cluster:
    """A cluster of simulated nodes under the real engine.

    Attributes:
        now_ms: virtual time.
        jobs_over: number of jobs that have ended or were rejected.
        log: every run of a thread, and every job.
        state: the engine's state, for inspection.
        effort: number and cost of the decisions.
        events: number of cluster events, by kind.
        waiting_kinds: number of waiting requests of each kind; a gang counts as one request.
        changed_nodes: nodes whose slots have changed since a reader last replaced the set.
        on_settled: functions that are called after each moment, when the engine has no decision
            left.
        executors: the simulated executors, by node.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: EngineSettings | None = None,
        *,
        stopwatch: Callable[[], float] = time.process_time,
    ) -> None:
        self.now_ms = 0
        self.jobs_over = 0
        self.log = RunLog()
        self.effort = Effort()
        self.events: Counter[str] = Counter()
        self.waiting_kinds: Counter[Kind] = Counter()
        self.changed_nodes: set[str] = set()
        self.on_settled: list[Callable[[Cluster], None]] = []
        self.settings = simulated(settings or EngineSettings())
        self.state = fresh(self.settings, 1, self.at)
        self._stopwatch = stopwatch
        self._jobs: dict[str, Submitted] = {}  # jobs that have not ended
        self._future: list[tuple[int, int, str]] = []  # heap of (moment, number, job): arrivals
        # heap of (moment, number, job, allocation): ends of threads
        self._ending: list[tuple[int, int, str, str]] = []
        self._orders: list[tuple[int, int, Callable[[Instant], Event]]] = []
        self._number = 0
        self._effects = 0  # number of effects until now
        self._quiet_until_ms = 0
        self._wire: list[Command] = []
        self.executors = {node.name: SimulatedExecutor(node) for node in nodes}
        for executor in self.executors.values():
            answer = self._step(executor.register(self.at))
            if not isinstance(answer, RegistrationAnswer):
                raise InvariantBroken(f"node {executor.node.name} could not register")
            executor.registered(answer, self.state.rm_epoch)
        self._decide()

    @property
    def at(self) -> Instant:
        """The current moment."""
        return Instant(self.now_ms, START_TIME_MS + self.now_ms)

    @property
    def waiting(self) -> int:
        """Number of threads that have arrived and not started."""
        return sum(
            job.record.waiting for job in self._jobs.values() if job.record.job_id in self.log.jobs
        )

    def ends_at(self, allocation_id: str) -> int:
        """Returns when a running thread will end, in virtual milliseconds.

        Cost: linear in the number of running threads.

        Raises:
            KeyError: no such thread runs.
        """
        for moment, _, _, name in self._ending:
            if name == allocation_id:
                return moment
        raise KeyError(allocation_id)

    def submit(
        self,
        job_id: str,
        durations_ms: Sequence[int],
        *,
        group: str = "default",
        profile: ResourceProfile = ONE_CPU,
        at_ms: int = 0,
        gang: bool = False,
        labels: Labels = (),
        expected_ms: int | None = None,
    ) -> JobRecord:
        """Schedules the arrival of a job with one thread per duration.

        Args:
            job_id: name of the job, not used before.
            durations_ms: run time of each thread on a node of speed 1; `[ms] * count` for equal
                threads.
            group: resource group of the job; created with weight 1 if it does not exist.
            profile: profile of each thread.
            at_ms: time of arrival, in virtual milliseconds; not in the past.
            gang: whether all threads must start at the same time.
            labels: labels that a node must have; sorted.
            expected_ms: the expected run time of each thread, for its request; None: the request
                contains no expected run time.

        Returns:
            The record of the job, which is updated as time advances.

        Raises:
            ValueError: the id was used before, the time is in the past, or there are no threads.
        """
        if job_id in self._jobs or job_id in self.log.jobs:
            raise ValueError(f"job {job_id} was submitted before")
        if at_ms < self.now_ms or not durations_ms:
            raise ValueError(
                f"job {job_id}: {len(durations_ms)} threads at {at_ms} ms, now is {self.now_ms}"
            )
        record = JobRecord(
            job_id,
            group,
            at_ms,
            profile,
            len(durations_ms),
            gang,
            sum(durations_ms),
            max(durations_ms),
        )
        self._jobs[job_id] = Submitted(record, durations_ms, labels, expected_ms)
        # The number keeps the order of submission among arrivals at the same moment.
        heapq.heappush(self._future, (at_ms, self._next_number(), job_id))
        return record

    def at_moment(self, at_ms: int, event: Callable[[Instant], Event]) -> None:
        """Schedules another event of the engine. `event` creates the event from its time."""
        heapq.heappush(self._orders, (at_ms, self._next_number(), event))

    def set_group(
        self,
        name: str,
        *,
        at_ms: int = 0,
        weight: float | None = None,
        parent: str | None = None,
        minimum: Amounts | None = None,
        maximum: Amounts | None = None,
    ) -> None:
        """Schedules the creation or change of a resource group.

        Args:
            name: name of the group.
            at_ms: time of the change, which precedes arrivals of jobs at the same moment.
            weight: the new weight; None: unchanged.
            parent: the new parent; None: unchanged.
            minimum: the guaranteed amounts.
            maximum: the limits.
        """
        self.at_moment(
            at_ms,
            lambda at: GroupSet(
                at, name, weight, parent, minimum=minimum or {}, maximum=maximum or {}
            ),
        )

    def end_job(self, job_id: str, at_ms: int) -> None:
        """Schedules the early end of a job: its running threads stop, and its waiting threads never
        start.
        """
        self.at_moment(at_ms, lambda at: JobEndRequested(at, job_id, "ENDED"))

    def run(self, until_ms: int | None = None) -> None:
        """Advances time until no event is left, or up to and including `until_ms`."""
        while (moment := self._next_moment()) is not None:
            if until_ms is not None and moment > until_ms:
                break
            self.now_ms = moment
            self._live_through()
        if until_ms is not None:
            # There is no more event until `until_ms`. Jobs that are submitted after this call must
            # not arrive before `until_ms`.
            self.now_ms = max(self.now_ms, until_ms)

    # The events of one moment.

    def _next_moment(self) -> int | None:
        # If only timers are left, the run is over, because no job can arrive or end any more.
        known = [heap[0][0] for heap in (self._future, self._ending, self._orders) if heap]
        if not known:
            return None
        moment = min(known)
        timer = self.state.timers.next_due_ms()
        if timer is not None:
            # Timers without effect can be due every second, so they are delayed after a quiet
            # moment.
            moment = min(moment, max(timer, self._quiet_until_ms))
        # A timer can be overdue, but time never goes back.
        return max(self.now_ms, moment)

    def _live_through(self) -> None:
        """Runs one moment: first the ends of threads and the scheduled events, then the arrivals,
        then commands until no command is left.
        """
        self.effort.moments += 1
        before = self._effects
        # Ends and orders run in a batch before the arrivals. So slots are freed before jobs arrive.
        first: list[Event] = [*self._ends(), *self._orders_due()]
        if first:
            self._batch(first)
        arrivals = self._arrivals()
        self._batch([*self._carry_out(), *self._ticks(), *arrivals])
        # A moment is quiet if it has only timers without effect.
        quiet = not first and not arrivals and self._effects == before
        self._quiet_until_ms = self.now_ms + QUIET_MS if quiet else 0
        # Executors answer at once, and an answer can cause further placements at the same moment.
        while self._wire or self.state.unfinished:
            self._batch(self._carry_out())
        for observer in self.on_settled:
            observer(self)

    def _ticks(self) -> list[Event]:
        due = self.state.timers.next_due_ms()
        return [Ticked(self.at)] if due is not None and due <= self.now_ms else []

    def _orders_due(self) -> list[Event]:
        events = []
        while self._orders and self._orders[0][0] <= self.now_ms:
            events.append(heapq.heappop(self._orders)[2](self.at))
        return events

    def _ends(self) -> list[Event]:
        """Releases the slots of threads that have ended. Ends a job after its last thread."""
        over: dict[str, list[str]] = {}
        while self._ending and self._ending[0][0] <= self.now_ms:
            _, _, job_id, allocation_id = heapq.heappop(self._ending)
            over.setdefault(job_id, []).append(allocation_id)
        events: list[Event] = []
        for job_id, names in over.items():
            job = self._jobs.get(job_id)
            if job is None:
                continue  # `end_job` has already ended the job
            for name in names:
                self.log.ended(job.running.pop(name), self.now_ms)
            events.append(SlotsReleased(self.at, job_id, tuple((name, 0) for name in names)))
            if job.record.finished == job.record.threads:
                events.append(JobEndRequested(self.at, job_id, "ENDED"))
        return events

    def _arrivals(self) -> list[Event]:
        events: list[Event] = []
        while self._future and self._future[0][0] <= self.now_ms:
            job = self._jobs[heapq.heappop(self._future)[2]]
            self.log.arrived(job.record)
            events += self._arrival(job)
        return events

    def _arrival(self, job: Submitted) -> Iterable[Event]:
        record, at = job.record, self.at
        # The first job of a group without settings creates the group.
        if record.group not in self.state.groups:
            yield GroupSet(at, record.group)
        yield JobRegistered(at, record.job_id, record.job_id, record.group, None, OWNER, "")
        if record.gang or record.threads == 1:
            gang_id = record.job_id if record.gang else ""
            names = [f"{record.job_id}.{thread}" for thread in range(record.threads)]
            members = tuple(job.request(name, gang_id) for name in names)
            gangs = (GangSpec(gang_id),) if gang_id else ()
            # Members of a gang need separate ids, because ranges cannot be gangs.
            yield RequestsSubmitted(at, record.job_id, members, gangs=gangs)
            return
        request = job.request(record.job_id)
        for first in range(0, record.threads, _SUBMITTED_AT_ONCE):
            count = min(_SUBMITTED_AT_ONCE, record.threads - first)
            yield RequestsSubmitted(
                at, record.job_id, (), ranges=(RangeSpec(request, first, count),)
            )

    def _carry_out(self) -> list[Event]:
        # Swap the list first, because answers add further commands to the list.
        commands, self._wire = self._wire, []
        self.changed_nodes.update(command.executor_id for command in commands)
        return [
            self.executors[command.executor_id].carry_out(command, self.at) for command in commands
        ]

    # The methods below are about the engine.

    def _batch(self, events: Sequence[Event]) -> None:
        for event in events:
            answer = self._step(event)
            if isinstance(event, RequestsSubmitted) and isinstance(answer, list):
                self._submitted(event, answer)
            elif isinstance(event, JobEndRequested):
                self._ended(event.job_id)
        self._decide()

    def _step(self, event: Event) -> object:
        result = step(self.state, event)
        self._take_in(result.effects)
        return result.answer

    def _decide(self) -> None:
        before = self._stopwatch()
        result = step(self.state, Decide(self.at))
        took = self._stopwatch() - before
        self._take_in(result.effects)
        self.state.changes.take()  # there is no store to which the changes could be written
        effort = self.effort
        effort.decisions += 1
        effort.cpu_s += took
        effort.longest_cpu_s = max(effort.longest_cpu_s, took)

    def _take_in(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._effects += 1
            if isinstance(effect, PublishClusterEvent):
                self.events[effect.event.kind] += 1
            elif isinstance(effect, PublishJobEvent):
                if effect.event.state is RequestState.GRANTED:
                    self._granted(effect.event)
            elif isinstance(effect, SendAllocate):
                self.effort.placed += len(effect.orders)
                self._wire.append(effect)
            elif isinstance(effect, SendFree | SendResize):
                self._wire.append(effect)

    def _granted(self, event: JobEvent) -> None:
        """Starts a thread in the slot at once, as a job master would."""
        job, slot = self._jobs[event.job_id], event.slot or {}
        executor = self.executors[str(slot["executor_id"])]
        name = event.allocation_id
        # Ids of gang members and ids of range members both end with the thread's index.
        thread = int(name[name.rindex(".") + 1 :])
        lane = executor.lanes[name, int(str(slot["generation"]))]
        # A gang counts as one waiting item until the first thread of the gang is granted.
        if not job.record.gang or not job.record.started:
            self._wait_with(job.kind, -1)
        number = self.log.started(job.record, thread, executor.node.name, lane, self.now_ms)
        job.running[name] = number
        took_ms = round(job.durations_ms[thread] / executor.node.speed)
        entry = (self.now_ms + took_ms, self._next_number(), event.job_id, name)
        heapq.heappush(self._ending, entry)

    def _submitted(self, event: RequestsSubmitted, outcomes: list[ItemOutcome]) -> None:
        """Records whether a job was accepted.

        All threads of a job have the same request, so all or none are accepted.
        """
        refused = next((outcome for outcome in outcomes if outcome.reason), None)
        job = self._jobs.get(event.job_id)
        if refused is None and job is not None:
            self._wait_with(job.kind, 1 if job.record.gang else _request_count(event))
        elif refused is not None and job is not None:
            job.record.rejected = f"{refused.reason}: {refused.message}"
            self._step(JobEndRequested(self.at, event.job_id, "ENDED"))
            del self._jobs[event.job_id]
            self.jobs_over += 1

    def _ended(self, job_id: str) -> None:
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        for number in job.running.values():  # after `end_job`, threads possibly still run
            self.log.ended(number, self.now_ms)
        # `waiting` is read before `end_ms` is set, because an ended job has no waiting threads.
        if lots := job.record.waiting:
            self._wait_with(job.kind, -(1 if job.record.gang else lots))
        job.record.end_ms = self.now_ms
        self.jobs_over += 1

    def _wait_with(self, kind: Kind, change: int) -> None:
        self.waiting_kinds[kind] += change
        if not self.waiting_kinds[kind]:
            del self.waiting_kinds[kind]

    def _next_number(self) -> int:
        self._number += 1
        return self._number


def _request_count(event: RequestsSubmitted) -> int:
    return len(event.requests) + sum(each.count for each in event.ranges)

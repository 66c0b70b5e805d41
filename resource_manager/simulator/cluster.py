"""Drives the real engine through virtual time, from one moment at which something happens to the
next.

It plays everybody whom the engine talks to: job masters that submit and release, executors that
carry out every command at once, a clock, and a store that forgets. So what is decided here is
decided by the very rules of the service, and the same input gives the same run. It knows no rule of
the choice itself, reads no file and no clock but for a stopwatch around decisions.

At one moment things go in this order: threads end, their slots are taken down, jobs arrive, all
that fits is placed; then nothing is left to be done and time goes on.
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
"""The profile of a thread, where nothing else is said: a core."""

START_TIME_MS = 1_700_000_000_000
"""Wall clock at virtual time 0: seen in messages alone."""

QUIET_MS = 60_000
"""If a timer rang and nothing came of it, the next one may ring so much later. Somebody who is
passed over and cannot be helped is looked at every second; months would never end.
"""

_SUBMITTED_AT_ONCE = 10_000


class Cluster:
    """A cluster of simulated nodes under the real engine.

    Attributes:
        now_ms: virtual time.
        jobs_over: how many jobs have ended, or were rejected.
        log: every run of a thread, and every job.
        state: the engine's books, to be looked at.
        effort: what the decisions cost.
        events: how many cluster events there were, by kind.
        waiting_kinds: how many lots of requests of each kind wait.
        changed_nodes: those on which slots came or went, until somebody empties the set.
        on_settled: called after every moment, when nothing is left to be decided.
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
        self._jobs: dict[str, Submitted] = {}  # those that have not ended
        self._future: list[tuple[int, int, str]] = []  # heap of (moment, number, job): arrivals
        self._ending: list[tuple[int, int, str, str]] = []  # (moment, number, job, allocation)
        self._orders: list[tuple[int, int, Callable[[Instant], Event]]] = []
        self._number = 0
        self._effects = 0  # seen so far
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
        """The present moment."""
        return Instant(self.now_ms, START_TIME_MS + self.now_ms)

    @property
    def waiting(self) -> int:
        """Threads that have arrived and not started."""
        return sum(
            job.record.waiting for job in self._jobs.values() if job.record.job_id in self.log.jobs
        )

    def ends_at(self, allocation_id: str) -> int:
        """When a thread that runs will end, in virtual milliseconds. Raises KeyError: none does."""
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
    ) -> JobRecord:
        """Lets a job come at a moment that is not over, with a thread per duration.

        Args:
            job_id: its name, not used before.
            durations_ms: how long each thread takes on a node of speed 1; `[ms] * count` for equal
                ones.
            group: its resource group; one that nobody made is made with weight 1.
            profile: what each thread asks for.
            at_ms: when it comes, in virtual milliseconds.
            gang: all threads start at once, or none.
            labels: that a node must carry; sorted.

        Returns:
            The record of the job, which fills while time goes on.
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
        self._jobs[job_id] = Submitted(record, durations_ms, labels)
        heapq.heappush(self._future, (at_ms, self._next_number(), job_id))
        return record

    def at_moment(self, at_ms: int, event: Callable[[Instant], Event]) -> None:
        """Lets something else happen: an event of the engine, made for its moment."""
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
        """Lets a resource group be made, or changed, at a moment; before jobs arrive at it."""
        self.at_moment(
            at_ms,
            lambda at: GroupSet(
                at, name, weight, parent, minimum=minimum or {}, maximum=maximum or {}
            ),
        )

    def end_job(self, job_id: str, at_ms: int) -> None:
        """Lets a job end before its time: what runs of it stops, what waits never runs."""
        self.at_moment(at_ms, lambda at: JobEndRequested(at, job_id, "ENDED"))

    def run(self, until_ms: int | None = None) -> None:
        """Lets time pass until nothing more happens, or up to and including a moment."""
        while (moment := self._next_moment()) is not None:
            if until_ms is not None and moment > until_ms:
                break
            self.now_ms = moment
            self._live_through()
        if until_ms is not None:
            self.now_ms = max(self.now_ms, until_ms)

    # One moment.

    def _next_moment(self) -> int | None:
        known = [heap[0][0] for heap in (self._future, self._ending, self._orders) if heap]
        if not known:
            return None
        moment = min(known)
        timer = self.state.timers.next_due_ms()
        if timer is not None:
            moment = min(moment, max(timer, self._quiet_until_ms))
        return max(self.now_ms, moment)

    def _live_through(self) -> None:
        self.effort.moments += 1
        before = self._effects
        first: list[Event] = [*self._ends(), *self._orders_due()]
        if first:
            self._batch(first)
        arrivals = self._arrivals()
        self._batch([*self._carry_out(), *self._ticks(), *arrivals])
        quiet = not first and not arrivals and self._effects == before
        self._quiet_until_ms = self.now_ms + QUIET_MS if quiet else 0
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
        """Threads that are over give their slots back; a job whose last one it was ends."""
        over: dict[str, list[str]] = {}
        while self._ending and self._ending[0][0] <= self.now_ms:
            _, _, job_id, allocation_id = heapq.heappop(self._ending)
            over.setdefault(job_id, []).append(allocation_id)
        events: list[Event] = []
        for job_id, names in over.items():
            job = self._jobs.get(job_id)
            if job is None:
                continue  # it was ended from outside
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
        if record.group not in self.state.groups:
            yield GroupSet(at, record.group)
        yield JobRegistered(at, record.job_id, record.job_id, record.group, None, "", "")
        if record.gang or record.threads == 1:
            gang_id = record.job_id if record.gang else ""
            names = [f"{record.job_id}.{thread}" for thread in range(record.threads)]
            members = tuple(job.request(name, gang_id) for name in names)
            gangs = (GangSpec(gang_id),) if gang_id else ()
            yield RequestsSubmitted(at, record.job_id, members, gangs=gangs)
            return
        wish = job.request(record.job_id)
        for first in range(0, record.threads, _SUBMITTED_AT_ONCE):
            count = min(_SUBMITTED_AT_ONCE, record.threads - first)
            yield RequestsSubmitted(at, record.job_id, (), ranges=(RangeSpec(wish, first, count),))

    def _carry_out(self) -> list[Event]:
        commands, self._wire = self._wire, []
        self.changed_nodes.update(command.executor_id for command in commands)
        return [
            self.executors[command.executor_id].carry_out(command, self.at) for command in commands
        ]

    # The engine.

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
        self.state.changes.take()  # nobody keeps them
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
        """The job master starts a thread in the slot at once."""
        job, slot = self._jobs[event.job_id], event.slot or {}
        executor = self.executors[str(slot["executor_id"])]
        name = event.allocation_id
        thread = int(name[name.rindex(".") + 1 :])
        lane = executor.lanes[name, int(str(slot["generation"]))]
        if not job.record.gang or not job.record.started:
            self._wait_with(job.kind, -1)
        number = self.log.started(job.record, thread, executor.node.name, lane, self.now_ms)
        job.running[name] = number
        took_ms = round(job.durations_ms[thread] / executor.node.speed)
        entry = (self.now_ms + took_ms, self._next_number(), event.job_id, name)
        heapq.heappush(self._ending, entry)

    def _submitted(self, event: RequestsSubmitted, outcomes: list[ItemOutcome]) -> None:
        """All threads of a job ask for the same: they are all taken in, or none is."""
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
        for number in job.running.values():  # ended from outside: they are cut off
            self.log.ended(number, self.now_ms)
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

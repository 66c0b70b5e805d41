"""Measures how long single steps of the writer take while a million requests are queued, without
database and RPC. Simulated executors accept every order.

    python -m bench.steps [--hosts 5000] [--requests 1000000] [--classes 10] [--slowest 8] [--each]

For each part of a scripted run, the benchmark prints the kinds of events whose steps took the most
CPU time. For each kind it prints the number of steps, the longest step and the sum. Steps above 20
ms are marked. The benchmark works like the service: it divides calls into events, applies `Decide`
after each call until no work is left, and checks one slice of the invariants after each decision.

Lists, explanations and the collection of changed rows are shown as further kinds. The benchmark
does not measure the start and the restoration from the database.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bench.engine import Bench, gen_workload
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.states import GangPlacement
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.lists import (
    list_executors,
    list_jobs,
    list_requests,
    list_slots,
)
from resource_manager.engine.explain.paused import Paused
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.invariants.all import findings
from resource_manager.engine.model.effects import Effect
from resource_manager.engine.model.entities import (
    GangSpec,
    Instant,
    RangeSpec,
    Registration,
    RequestSpec,
)
from resource_manager.engine.model.events import (
    Decide,
    DrainRequested,
    Event,
    ExecutorRegistered,
    ForgetRequested,
    GroupSet,
    JobEndRequested,
    JobRegistered,
    RequestsCancelled,
    SlotsReleased,
    SlotsReported,
    Ticked,
)
from resource_manager.engine.model.reported import Report
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.state import State
from resource_manager.engine.step import step
from resource_manager.service.group_use import GroupUse
from resource_manager.service.lanes import LaneLimits
from resource_manager.service.measured_use import MeasuredUse
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.partial_read import PartialRead
from resource_manager.service.state_metrics import HOSTS_AT_ONCE, observe_cluster, observe_hosts
from resource_manager.service.submission import CHUNK_ITEMS_MAX, Submission, submission_events

LIMIT_S = 0.020
CALL_ITEMS = 10_000  # the maximum number of items in a call
LARGE = ("kind", "large")  # the label of the host with a thousand slots
LARGE_SLOTS = 1_000
SMALL = ResourceProfile(100, 16 * MIB)
FAR_TOO_LARGE = 15_900  # millicores: a request of this size fits only on an empty host
BATCH_DECISIONS_MAX = 10_000


@dataclass(slots=True)
class Spent:
    """The CPU time of all steps of one kind."""

    count: int = 0
    longest_s: float = 0.0
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum_s += seconds
        self.longest_s = max(self.longest_s, seconds)


@dataclass(slots=True)
class Clock:
    """Measures steps, for each part of the run and each kind of step."""

    slowest: int
    part: str = ""
    spent: dict[str, Spent] = field(default_factory=dict)
    overall: dict[str, tuple[float, str]] = field(default_factory=dict)

    def timed(self, kind: str, fn: Callable[[], Any]) -> Any:
        started = time.process_time()
        answer = fn()
        seconds = time.process_time() - started
        self.spent.setdefault(kind, Spent()).add(seconds)
        if seconds > self.overall.get(kind, (0.0, ""))[0]:
            self.overall[kind] = seconds, self.part
        return answer

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Measures the steps of one part; prints the slowest kinds of steps at its end."""
        self.part, self.spent = part, {}
        yield
        print(f"{part}")
        for kind, spent in sorted(self.spent.items(), key=lambda each: -each[1].longest_s)[
            : self.slowest
        ]:
            print(f"  {_mark(spent.longest_s)} {kind:<24}{spent.longest_s * 1e3:>10.1f} ms longest")
            print(f"    {spent.count:>10} steps{spent.sum_s * 1e3:>27.1f} ms in all")

    def show(self) -> None:
        print("longest step of each kind, over all parts")
        for kind, (seconds, part) in sorted(self.overall.items(), key=lambda each: -each[1][0]):
            print(f"  {_mark(seconds)} {kind:<24}{seconds * 1e3:>10.1f} ms  {part}")


class Life(Bench):
    """Runs the engine with a cluster and a clock, and measures each step."""

    def __init__(self, clock: Clock, hosts: int, settings: EngineSettings) -> None:
        super().__init__(gen_workload(hosts, 0, 0), settings)
        self.clock = clock
        self.at = Instant(0, 1_700_000_000_000)

    def batch(self, *events: Event) -> list[Effect]:
        """Applies each event, followed by a decision and a slice of checks. When all events are
        applied, decides while work is left.
        """
        effects: list[Effect] = []
        for event in events:
            effects += self._step(event)
        effects += self._step(Decide(self.at))
        self.clock.timed("take changes", self.state.changes.take)
        for _ in range(BATCH_DECISIONS_MAX):
            if not self.state.unfinished:
                return effects
            effects += self._step(Ticked(self.at))
            effects += self._step(Decide(self.at))
            self.clock.timed("take changes", self.state.changes.take)
        raise RuntimeError("the decisions do not end")

    def _step(self, event: Event) -> list[Effect]:
        return self.answered(event)[1]

    def answered(self, event: Event) -> tuple[Any, list[Effect]]:
        """Applies one event at the present time; returns its answer and effects."""
        event = replace(event, at=self.at)
        result = self.clock.timed(type(event).__name__, lambda: step(self.state, event))
        return result.answer, result.effects

    def call(self, *events: Event) -> None:
        """Applies events and lets the executors execute the commands."""
        self.carry_out(self.batch(*events))

    def carry_out(self, effects: list[Effect]) -> None:
        """Lets the executors execute commands, and also the commands that the engine sends after
        their answers.
        """
        most = LaneLimits().urgent_items_max
        while answers := self.answers(effects):
            effects = []
            for at in range(0, len(answers), most):
                effects += self.batch(*answers[at : at + most])

    def wait(self, seconds: float) -> None:
        self.at = Instant(self.at.monotonic_ms + int(seconds * 1e3), self.at.time_ms)
        self.call(Ticked(self.at))

    def report_all(self) -> None:
        """Sends a heartbeat of every executor."""
        self.report_of(list(self.state.hosts))

    def report_of(self, names: Sequence[str]) -> None:
        """Sends heartbeats of the named executors."""
        most = LaneLimits().urgent_items_max
        for at in range(0, len(names), most):
            self.carry_out(self.batch(*map(self.reported, names[at : at + most])))

    def reported(self, name: str) -> Event:
        executor = self.state.hosts[name].executor
        report = self.report(name, executor.command_number)
        return SlotsReported(self.at, name, name, executor.registration_number, report)

    def job(self, *names: str) -> None:
        self.call(*(JobRegistered(self.at, n, n, "default", None, "s", "r") for n in names))

    def submit(
        self,
        job: str,
        specs: Sequence[RequestSpec] = (),
        gangs: Sequence[GangSpec] = (),
        ranges: tuple[RangeSpec, ...] = (),
    ) -> None:
        """Submits requests in calls, and divides the calls into events as the service does."""
        for at in range(0, max(1, len(specs)), CALL_ITEMS):
            some = tuple(specs[at : at + CALL_ITEMS])
            names = {spec.gang_id for spec in some}
            of_call = tuple(gang for gang in gangs if gang.gang_id in names)
            call = Submission(some, tuple(range(len(some))), {}, of_call)
            for make in submission_events(job, call, ranges):
                self.call(make(self.at))

    def cancel(self, job: str, names: Sequence[str]) -> None:
        """Cancels requests. If a step does not reach all requests, sends the remaining requests
        again.
        """
        for some in _chunks(names):
            left = some
            while left:
                outcomes, effects = self.answered(RequestsCancelled(self.at, job, left))
                self.carry_out(effects + self.batch())
                left = left[len(outcomes) :]

    def release(self, job: str, names: Sequence[str]) -> None:
        for some in _chunks(names):
            left = tuple((name, 0) for name in some)
            while left:
                outcomes, effects = self.answered(SlotsReleased(self.at, job, left))
                self.carry_out(effects + self.batch())
                left = left[len(outcomes) :]

    def cancel_range(self, job: str, name: str, count: int) -> None:
        outcomes: list[Any] = []
        while not outcomes:
            event = RequestsCancelled(self.at, job, (), ranges=((name, 0, count),))
            outcomes, effects = self.answered(event)
            self.carry_out(effects + self.batch())

    def read(self, kind: str, fn: Callable[[], object]) -> None:
        self.clock.timed(f"read: {kind}", fn)

    def read_in_slices(self, kind: str, begin: Callable[[State], Paused[object]]) -> None:
        partial = PartialRead(begin, time.process_time)
        while not self.clock.timed(f"read: {kind}", lambda: partial.run_slice(self.state)):
            pass


def specs_of(prefix: str, count: int, classes: int, *, cpu_milli: int) -> list[RequestSpec]:
    """Returns requests that take the scheduling classes in rotation."""
    profiles = [ResourceProfile(cpu_milli, (64 + n) * MIB) for n in range(classes)]
    return [
        RequestSpec(f"{prefix}-{n}", profiles[n % classes], allow_pending=True)
        for n in range(count)
    ]


def live(life: Life, hosts: int, requests: int, classes: int) -> None:  # noqa: PLR0915 -- a script
    """Runs all parts of the script."""
    during, state = life.clock.during, life.state
    with during("register the hosts, one of them large, and fill them"):
        for event in life.registrations():
            life.call(event)
        life.call(large_host(life))
        life.job("base", "large")
        life.submit("base", ranges=(a_range("base", 15 * hosts, 1_000),))
        life.submit("large", ranges=(a_range("large", LARGE_SLOTS, 100, LARGE),))
    jobs = [f"job-{number}" for number in range(10)]
    each = requests // len(jobs)
    with during(f"queue {requests} requests of {classes} classes"):
        life.job(*jobs)
        for job in jobs:
            life.submit(job, specs_of(job, each, classes // len(jobs), cpu_milli=15_900))
    with during("submit 100,000 more at once, and cancel 10,000 of them"):
        life.job("more")
        life.submit("more", specs_of("more", 100_000, classes // 10, cpu_milli=15_901))
        life.cancel("more", [f"more-{number}" for number in range(10_000)])
    with during("end the job that has 90,000 of them"):
        life.call(JobEndRequested(life.at, "more", "ENDED"))
    with during("submit 100,000 of which many can be placed"):
        life.job("small")
        life.submit("small", specs_of("small", 100_000, classes // 10, cpu_milli=100))
    with during("end the job with 100,000"):
        life.call(JobEndRequested(life.at, "small", "ENDED"))
    with during("a range of 500,000: submit, cancel"):
        life.job("ranges")
        life.submit("ranges", ranges=(a_range("r", 500_000, 15_800),))
        life.cancel_range("ranges", "r", 500_000)
    with during("a range of 20,000 that is placed: submit, cancel"):
        life.submit("ranges", ranges=(a_range("s", 20_000, 100),))
        life.cancel_range("ranges", "s", 20_000)
    with during("1,000 gangs of 8, all different: submit, cancel"):
        life.job("gangs")
        specs, gangs = some_gangs("gang", 1_000, 8)
        life.submit("gangs", specs, gangs)
        life.cancel("gangs", [f"{gang.gang_id}.0" for gang in gangs])
    with during("a gang of 1,000: submit, cancel"):
        specs, gangs = some_gangs("huge", 1, 1_000)
        life.submit("gangs", specs, gangs)
        life.cancel("gangs", ["huge-0.0"])
    with during("1,000 gangs of 8 with a timeout: submit, wait"):
        specs, gangs = some_gangs("late", 1_000, 8, timeout_ms=1_000)
        life.submit("gangs", specs, gangs)
        for _ in range(20):
            life.wait(0.2)
    with during("1,000 gangs of 8: submit, end the job"):
        specs, gangs = some_gangs("over", 1_000, 8)
        life.submit("gangs", specs, gangs)
        life.call(JobEndRequested(life.at, "gangs", "ENDED"))
    with during("a new host registers"):
        life.call(life.registration(hosts, state.hosts["host-000000"].total, life.profiles[0]))
    with during("the large host registers again; reports; is drained, lost, forgotten"):
        host = state.hosts["large"]
        report = life.report("large", host.executor.command_number)
        life.call(ExecutorRegistered(life.at, host.executor.registration, report))
        life.report_all()
        life.call(DrainRequested(life.at, "large", deadline_ms=1_000))
        life.wait(2)
        life.report_all()
        life.wait(8)
        life.report_all()
    with during("the large host is filled again, and lost; 99 others, too"):
        life.call(
            ExecutorRegistered(
                life.at,
                host.executor.registration,
                life.report("large", host.executor.command_number),
            )
        )
        for _ in range(2):
            life.wait(8)
            life.report_of(list(state.hosts)[: hosts - 99])
        life.call(ForgetRequested(life.at, "large"))
    with during("groups: a maximum is set, raised, removed"):
        for most in (1_000, 100_000_000, None):
            life.call(GroupSet(life.at, "default", maximum={"cpu_milli": most}))
        life.call(GroupSet(life.at, "default", weight=3.0))
    with during("release 10,000 slots"):
        base = [f"base.{number}" for number in range(10_000)]
        life.release("base", base)
    with during("reads"):
        reads(life, jobs[0])
    with during("the ended jobs are deleted"):
        life.wait(settings_retention(life) + 1)
        life.report_all()
        for _ in range(60):
            life.wait(0.2)


def settings_retention(life: Life) -> float:
    return life.state.settings.ended_retention_ms / 1e3


def reads(life: Life, job: str) -> None:
    state = life.state
    life.read("list 100 requests", lambda: list_requests(state, limit=100))
    life.read("list 100 of a job", lambda: list_requests(state, job_id=job, limit=100))
    prefix = ("nothing-has-this-prefix",)
    life.read("requests by prefix", lambda: list_requests(state, allocation_ids=prefix, limit=100))
    life.read("list 100 jobs", lambda: list_jobs(state, limit=100))
    life.read("list 100 slots", lambda: list_slots(state, limit=100))
    life.read("list 100 slots of a job", lambda: list_slots(state, job_id="base", limit=100))
    life.read("list 100 executors", lambda: list_executors(state, limit=100))
    life.read_in_slices("sums of the cluster", cluster_view)
    life.read("explain", lambda: explain(state, f"{job}-0"))
    metrics = ResourceManagerMetrics("bench")
    life.read_in_slices(
        "gauges of the cluster",
        lambda state: observe_cluster(metrics, state, GroupUse(), lambda: life.at),
    )
    some = list(state.hosts)[:HOSTS_AT_ONCE]
    life.read(
        "gauges of hosts",
        lambda: observe_hosts(metrics, some, MeasuredUse(lambda: 0), lambda: life.at, state),
    )
    sweep = findings(state)
    while life.clock.timed("read: invariants", lambda: next(sweep, state)) is not state:
        pass


def large_host(life: Life) -> ExecutorRegistered:
    """Returns a host with room for a thousand slots. Only requests with the label of this host use
    it.
    """
    total = {"cpu_milli": 100 * LARGE_SLOTS, "memory_bytes": 64 * MIB * LARGE_SLOTS}
    life.totals["large"], life.tables["large"], life.numbers["large"] = total, {}, 1
    registration = Registration("large", "large", "large:7000", total, {}, SMALL, labels=(LARGE,))
    return ExecutorRegistered(life.at, registration, Report(1, 0, 0, available=total))


def a_range(name: str, count: int, cpu_milli: int, *labels: tuple[str, str]) -> RangeSpec:
    spec = RequestSpec(
        name, ResourceProfile(cpu_milli, 16 * MIB), required_labels=labels, allow_pending=True
    )
    return RangeSpec(spec, 0, count)


def some_gangs(
    prefix: str, count: int, members: int, *, timeout_ms: int | None = None
) -> tuple[list[RequestSpec], list[GangSpec]]:
    """Returns gangs of different kinds that fit only on empty hosts."""
    gangs = [
        GangSpec(f"{prefix}-{n}", GangPlacement.ANYWHERE, timeout_ms=timeout_ms)
        for n in range(count)
    ]
    specs = [
        RequestSpec(
            f"{gang.gang_id}.{member}",
            ResourceProfile(15_000 + number % 900, 16 * MIB),
            gang_id=gang.gang_id,
            allow_pending=True,
        )
        for number, gang in enumerate(gangs)
        for member in range(members)
    ]
    return specs, gangs


def _chunks(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    return (tuple(names[at : at + CHUNK_ITEMS_MAX]) for at in range(0, len(names), CHUNK_ITEMS_MAX))


def _mark(seconds: float) -> str:
    return "!" if seconds > LIMIT_S else " "


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, default=5_000)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument(
        "--slowest", type=int, default=5, help="number of kinds of steps to show for each part"
    )
    arguments = parser.parse_args()
    gc.disable()
    clock = Clock(arguments.slowest)
    life = Life(clock, arguments.hosts, EngineSettings(memory_bytes_min=0))
    live(life, arguments.hosts, arguments.requests, arguments.classes)
    clock.show()


if __name__ == "__main__":
    main()

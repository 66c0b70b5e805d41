"""One seeded run of a cluster: first with faults, then healed, then emptied.

A `Plan` says what happens. Every part has a separate random source. So a run with a smaller plan
differs as little as possible.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from finegrain.cpu_policy import HostPolicy
from finegrain.cpuset import EMPTY
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    MANAGED_MEMORY_BYTES,
    TASK_HEAP_MEMORY_BYTES,
)
from resource_manager.engine.executors.host_settings import OF_ONE_HOST
from resource_manager.engine.model.entities import JobState
from resource_manager.engine.model.events import HostPolicySet, JobEndRequested, UndrainRequested
from resource_manager.engine.model.settings import Provisioning
from tests.simulation.checks import MANY_HOSTS, Checks
from tests.simulation.cloud import STORMY, Cloud, CloudTroubles, some_shapes
from tests.simulation.cpu_machines import some_machine
from tests.simulation.database import LEASE_MS, Database
from tests.simulation.device_faults import heal_devices, uncordon_all, unpark_all
from tests.simulation.device_machines import some_devices, total_with, with_parking
from tests.simulation.executor import Executor
from tests.simulation.faults import (
    FAULTS,
    IN_DEVICE_STORM,
    OF_CPUS,
    OF_DEVICES,
    OF_PARKING,
    OF_PROVIDERS,
)
from tests.simulation.follower import WATCH_MS
from tests.simulation.group_operator import GroupOperator
from tests.simulation.healed import check_empty, check_healed
from tests.simulation.job_master import (
    CPUS,
    DEPENDENCIES,
    DEVICE_SHARES,
    DEVICE_STORM,
    DEVICES,
    EARLY,
    FAIR_SHARES,
    GANGS,
    PRIORITIES,
    RANGES,
    RESIZES,
    REVOCABLE,
    TIMES,
    USERS,
    JobMaster,
)
from tests.simulation.manager import Manager
from tests.simulation.network import Loop, Network, Weather
from tests.simulation.slot_host import HostPlan, Troubles, some_host
from tests.simulation.some_settings import some_settings

STORMY_MS = 25_000
EARLY_MS = 2_000  # with early requests: job masters request, and no executor has started
COME_BACK_MS = 9_000
HEAL_MS = 20_000  # plus the time after which a silent executor is lost
EMPTY_MS = 22_000
ORDERS_END_MS = 3_000
ATTEMPTS_MAX = 12  # for a fault that finds no target
STORY_LINES = 30

PROVIDERS = "providers"
WISHES = frozenset({GANGS, RESIZES, PROVIDERS})
ALL_WISHES = WISHES | {RANGES, FAIR_SHARES}
WITH_CPUS = ALL_WISHES | {CPUS}
WITH_DEVICES = WITH_CPUS | {DEVICES}
WITH_DEVICE_STORM = frozenset({RESIZES, CPUS, DEVICES, DEVICE_STORM})
WITH_DEVICE_SHARES = WITH_DEVICE_STORM | {DEVICE_SHARES}
WITH_EARLY = WISHES | {EARLY}
WITH_REVOCATION = WISHES | {RANGES, REVOCABLE}
WITH_PRIORITIES = WISHES | {RANGES, PRIORITIES}
WITH_TIMES = ALL_WISHES | {TIMES, DEPENDENCIES, USERS}

LEAST = {"grants": 6, "ends": 6, "faults": 5, "batches": 300}
"""The least that a run must do to be meaningful."""

LEAST_WITH_CPUS = {"grants": 2, "ends": 2}
"""The same with cpu policies, where some requests fit few hosts only."""


@dataclass(frozen=True)
class Plan:
    """Parameters of a run. None: drawn from the seed."""

    seed: int
    hosts: int | None = None
    jobs: int | None = None
    stormy_ms: int = STORMY_MS
    bad_weather: bool = True
    without: frozenset[str] = frozenset()  # kinds of faults that do not happen
    without_numbers: frozenset[int] = frozenset()  # single faults that do not happen
    demands_work: bool = True
    # The features that a run uses in addition to single slots on existing hosts.
    wishes: frozenset[str] = WISHES

    @property
    def is_large(self) -> bool:
        """Returns whether there are very many hosts.

        Executors then report less often, and jobs request more.
        """
        return (self.hosts or 0) > MANY_HOSTS


@dataclass(frozen=True)
class Result:
    """Numbers about a run."""

    seed: int
    hosts: int
    events: int
    batches: int
    grants: int
    ends: int
    resizes: int
    gangs: int  # granted
    started: int  # executors started by a provider
    fair: Counter[str]  # groups set, slots reused, reservations
    faults: Counter[str]
    messages: Counter[str]
    trace: str  # a digest of the whole log


class Failed(AssertionError):
    """Raised for a seed that has found a bug. It has the end of the seed's log."""

    def __init__(self, plan: Plan, error: Exception, at_ms: int, lines: list[str]) -> None:
        self.plan, self.error, self.at_ms = plan, error, at_ms
        text = f"{type(error).__name__}: {error}"
        super().__init__("\n".join([f"seed {plan.seed} at {at_ms} ms: {text}", *lines]))
        self.lines = lines


class World:
    """All parts of one run."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = rng = self.chance("world")
        self.loop = Loop()
        self.network = Network(self.loop, self.chance("network"))
        self.checks = Checks()
        self.story: list[str] = []
        self.faults: Counter[str] = Counter()
        self.troubles = Troubles()
        self.restoring = False
        provided = PROVIDERS in plan.wishes and not plan.is_large
        provided = provided and self.chance("provided").random() < 0.5
        provisioning = some_shapes(self.chance("shapes")) if provided else Provisioning()
        fair_shares = FAIR_SHARES in plan.wishes
        self.settings = some_settings(
            plan.is_large, self.rng, self.chance, provisioning, fair_shares
        )
        if REVOCABLE in plan.wishes:
            self.settings = replace(self.settings, revocation=True)
        self.calm = rng.choice((1, 2))
        drawn_hosts, drawn_jobs = rng.choice((3, 3, 3, 4, 4, 5, 5, 8, 8, 20)), rng.randint(4, 10)
        managers = rng.choice((1, 2, 2))
        lease_ms = rng.choice((None, LEASE_MS, LEASE_MS))
        self.jobs_max = plan.jobs or (40 if plan.is_large else drawn_jobs)
        self.jobs_made = self.by_hand = 0
        self.database = Database(self.loop, self.chance("database"), self.checks, lease_ms)
        self.checks.database = self.database
        self.managers = [
            Manager(
                name, self.loop, self.chance(name), self.network, self.database, self.settings,
                self.checks, self.log,
            )
            for name in ("rm-a", "rm-b")[:managers]
        ]  # fmt: skip
        self.cloud = self._build_cloud(provisioning) if provided else None
        self.operator: GroupOperator | None = None
        if fair_shares:
            self.operator = GroupOperator(
                self.loop, self.chance("operator"), self.network, list(self.managers), self.checks,
                self.log, self.chance("users") if USERS in plan.wishes else None,
            )  # fmt: skip
        for number in range(plan.hosts or (min(3, drawn_hosts - 2) if provided else drawn_hosts)):
            self._add_host(f"host-{number:02}")

    def chance(self, name: str) -> Random:
        """Returns a separate random source for a part of the world."""
        return Random(f"{self.plan.seed}/{name}")

    def log(self, line: str) -> None:
        """Adds a line to the log."""
        self.story.append(f"{self.loop.now_ms:7} {line}")

    def leader(self) -> Manager | None:
        """Returns the manager that leads, whether or not it knows."""
        for manager in self.managers:
            if manager.leading and self.database.leads(manager.holder, manager.epoch):
                return manager
        return None

    def _build_cloud(self, provisioning: Provisioning) -> Cloud:
        shapes = {shape.name: shape for shape in provisioning.shapes}
        chance, log = self.chance("cloud"), self.log
        cloud = Cloud(self.loop, chance, self.checks, log, shapes, self.add_executor)
        self.checks.provisions.cloud = cloud
        for manager in self.managers:
            manager.cloud = cloud
        return cloud

    def _add_host(self, name: str) -> None:
        plan = some_host(self.chance(name))
        machine = some_machine(self.chance(f"{name}/cpus")) if CPUS in self.plan.wishes else None
        if machine is not None:
            total = {**plan.total, **machine.total}
            for part in (TASK_HEAP_MEMORY_BYTES, MANAGED_MEMORY_BYTES):
                total.pop(part, None)
            plan = replace(plan, total=total, machine=machine)
            if DEVICES in self.plan.wishes:
                nodes = len(machine.machine.node_memory)
                devices = some_devices(self.chance(f"{name}/devices"), name, nodes)
                if DEVICE_STORM in self.plan.wishes:
                    devices = with_parking(self.chance(f"{name}/parking"), devices)
                plan = replace(plan, total=total_with(total, devices), devices=devices)
                self.checks.devices.adds(devices)
        self.add_executor(name, plan)

    def add_executor(self, name: str, plan: HostPlan, shape: str = "") -> Executor:
        """Creates an executor. Does not start it."""
        if CPUS in self.plan.wishes:  # present executors report separate best-effort capacity
            cpu_milli = plan.total[CPU_MILLI]
            plan = replace(plan, total={BEST_EFFORT_CPU_MILLI: cpu_milli, **plan.total})
        executor = Executor(
            name, self.loop, self.chance(f"{name}/executor"), self.network, list(self.managers),
            self.checks, self.log, plan, self.troubles,
        )  # fmt: skip
        executor.provided_as = shape
        if self.plan.is_large:
            executor.report_ms = 8_000
        self.checks.executors[name] = executor
        for manager in self.managers:
            manager.executors[name] = executor
        return executor

    # -- the run -----------------------------------------------------------------------------

    def run(self) -> Result:
        """Runs all phases.

        Raises:
            Failed: a check failed, or too little happened.
        """
        try:
            self._storm()
            self._heal()
            self._empty()
            if self.plan.demands_work:
                self._require_work()
        except Exception as error:
            raise Failed(self.plan, error, self.loop.now_ms, self._tell(error)) from error
        did = self.checks.did
        return Result(
            self.plan.seed,
            len(self.checks.executors),
            self.loop.ran,
            did["batches"],
            did["grants"],
            did["ends"],
            did["resizes"],
            self.checks.gangs.granted,
            self.cloud.starts if self.cloud else 0,
            self.checks.fair.did,
            self.faults,
            self.network.hurt,
            hashlib.sha256("\n".join(self.story).encode()).hexdigest(),
        )

    def _storm(self) -> None:
        rng = self.rng
        for manager in self.managers:
            manager.start()
        for name, executor in self.checks.executors.items():
            pause_ms = self.chance(f"{name}/start").choice((10, 1_000, 10_000))
            pause_ms += EARLY_MS if EARLY in self.plan.wishes else 0
            self.loop.after(pause_ms, executor.start)
        self.troubles.carve_fails = rng.choice((0.0, 0.05, 0.3))
        self.troubles.offer_declined = rng.choice((0.0, 0.5))
        self.troubles.resized = rng.choice((0.0, 0.3))
        self.troubles.use = rng.choice((0.0, 0.8))
        self.troubles.move_fails = self.chance("moves").choice((0.0, 0.5))
        if self.cloud:
            self.cloud.troubles = rng.choice((CloudTroubles(), STORMY, STORMY))
        self._plan_faults()
        self._keep_jobs()
        if self.operator:
            self.operator.act()
        if self.plan.bad_weather:
            self._next_weather(self.chance("weather"))
        self._look_for_orphans()
        self.loop.run_until(self.plan.stormy_ms)

    def _heal(self) -> None:
        self.log("everything heals")
        begun_ms = self.loop.now_ms
        self.network.weather = Weather()
        self.network.cut.clear()
        self.network.undialled.clear()
        self.database.slow_until_ms = self.database.down_until_ms = 0
        self.troubles.carve_fails = self.troubles.offer_declined = self.troubles.use = 0.0
        self.troubles.move_fails = 0.0
        for manager in self.managers:
            manager.cut_off = False
            manager.next_commit = ""
        if self.cloud:
            self.cloud.heal()
        for executor in self.checks.executors.values():
            executor.full_until_ms = 0
            executor.see_cpus(EMPTY, EMPTY)
            executor.dies_saving, executor.dies_resizing = False, ""
        heal_devices(self)
        for master in self.checks.masters.values():
            master.leaving = True  # requests nothing more
        if self.operator:
            self.operator.leaving = True
        self.loop.run_until(begun_ms + COME_BACK_MS)  # crashed processes restart in this time
        for name in [e.executor_id for e in self.checks.executors.values() if not e.provided_as]:
            self._leader().submit(lambda at, name=name: UndrainRequested(at, name))  # type: ignore[misc]
            if name in self._leader().state.host_settings:
                self._leader().submit(
                    lambda at, name=name: HostPolicySet(at, name, HostPolicy(), OF_ONE_HOST)  # type: ignore[misc]
                )
        uncordon_all(self)
        unpark_all(self)
        # A host with a new identity is accepted only after the former identity is lost.
        self.loop.run_until(begun_ms + HEAL_MS + self.settings.lost_timeout_ms)
        self._let_orders_end()
        check_healed(self.checks, self._leader().state)

    def _let_orders_end(self) -> None:
        """Waits until recent decisions are executed and the job masters know them.

        Reservations begin and end as time passes, so there may be some at any moment. If slots are
        revoked, other slots are ordered only after the revoked slots have used their grace period.
        """
        wait_ms = ORDERS_END_MS
        if self.settings.revocation:
            wait_ms += self.settings.revocation_grace_ms
        for _ in range(wait_ms // WATCH_MS):
            state = self._leader().state
            ordered = any(
                host.in_flight or host.to_allocate or host.to_free for host in state.hosts.values()
            )
            if TIMES in self.plan.wishes:  # slots end at any moment
                ordered = ordered or any(
                    {tuple(slot.key): str(slot.state) for slot in executor.table}
                    != {key: str(slot.state) for key, slot in host.slots.items()}
                    for executor in self.checks.executors.values()
                    if (host := state.hosts.get(executor.executor_id)) is not None
                )
            if not ordered and all(
                master.sequence == state.jobs[name].last_sequence
                for name, master in self.checks.masters.items()
                if master.up and not master.over and name in state.jobs
            ):
                return
            self.loop.run_until(self.loop.now_ms + WATCH_MS)

    def _empty(self) -> None:
        self.log("all jobs end")
        for master in self.checks.masters.values():
            master.leave()
        for name in self._jobs_of_nobody():
            self.log(f"operator terminates {name}")
            self._leader().submit(
                lambda at, name=name: JobEndRequested(at, name, "TERMINATED")  # type: ignore[misc]
            )
        self.loop.run_until(self.loop.now_ms + EMPTY_MS)
        check_empty(self.checks, self._leader().state)

    def _jobs_of_nobody(self) -> list[str]:
        """Returns jobs that had ended, are active again after a restore, and have no lease.

        Their masters have stopped, so an administrator has to end them.
        """
        if not self.faults["books are restored"]:
            return []
        return [
            name
            for name, job in self._leader().state.jobs.items()
            if job.state is JobState.ACTIVE
            and job.lease_ms is None
            and self.checks.masters[name].over
        ]

    def _leader(self) -> Manager:
        leader = self.leader()
        if leader is None:
            self.checks.require(["nobody leads"])
        assert leader is not None
        return leader

    def _require_work(self) -> None:
        did = {**self.checks.did, "faults": self.faults.total()}
        wanted = LEAST | (LEAST_WITH_CPUS if CPUS in self.plan.wishes else {})
        self.checks.require(
            f"only {did.get(name, 0)} {name}, expected {least}"
            for name, least in wanted.items()
            if did.get(name, 0) < least
        )

    def _tell(self, error: Exception) -> list[str]:
        """Returns the last lines of the log, and all lines about jobs that the error names."""
        words = {word.strip("(),:;'") for word in str(error).replace("'", " ").split()}
        names = {
            word.split("/")[0] for word in words if word.startswith("job-") and word[-1] != "-"
        }
        about = [line for line in self.story if any(name in line for name in names)]
        return sorted({*about[-STORY_LINES:], *self.story[-STORY_LINES:]})

    # -- jobs, faults, weather ---------------------------------------------------------------

    def _keep_jobs(self) -> None:
        if self.loop.now_ms > self.plan.stormy_ms:
            return
        living = [m for m in self.checks.masters.values() if m.up and not m.over and not m.leaving]
        if len(living) < self.jobs_max:
            self.jobs_made += 1
            name = f"job-{self.jobs_made:02}"
            self.checks.masters[name] = master = JobMaster(
                name, self.loop, self.chance(name), self.network, list(self.managers),
                self.checks, self.log, self.troubles,
                (self.plan.wishes, self.chance),
                200 if self.plan.is_large else 6,
            )  # fmt: skip
            master.start()
        self.loop.after(300, self._keep_jobs)

    def _look_for_orphans(self) -> None:
        self.checks.alone()
        self.loop.after(5_000 if self.plan.is_large else 500, self._look_for_orphans)

    def _next_weather(self, rng: Random) -> None:
        if self.loop.now_ms > self.plan.stormy_ms:
            return
        bad = rng.random() < 0.5
        self.network.weather = Weather(0.1, 0.1, 0.1) if bad else Weather(0.01, 0.02, 0.02)
        self.loop.after(rng.randint(500, 5_000), lambda: self._next_weather(rng))

    def _planned_faults(self) -> Iterator[tuple[int, str, int]]:
        """Yields time, kind and number of each fault."""
        wishes = self.plan.wishes
        kinds = [kind for kind in FAULTS if self.cloud is not None or kind not in OF_PROVIDERS]
        if CPUS not in wishes:
            kinds = [kind for kind in kinds if kind not in OF_CPUS]
        if DEVICES not in wishes:
            kinds = [kind for kind in kinds if kind not in OF_DEVICES]
        weights = {kind: FAULTS[kind][0] for kind in kinds if kind not in OF_PARKING}
        yield from self._some_faults("faults", weights, 1_600, calm=self.calm)
        if DEVICE_STORM in wishes:
            yield from self._some_faults("device storm", IN_DEVICE_STORM, 900, first=10_000)

    def _some_faults(
        self, source: str, weights: dict[str, int], pause_ms: int, *, calm: int = 1, first: int = 1
    ) -> Iterator[tuple[int, str, int]]:
        plan, rng = self.plan, self.chance(source)
        kinds = list(weights)
        at_ms, number = 0, first - 1
        while (at_ms := at_ms + rng.randint(100, pause_ms) * calm) < plan.stormy_ms - 1_000:
            kind = rng.choices(kinds, list(weights.values()))[0]
            number += 1
            if kind not in plan.without and number not in plan.without_numbers:
                yield at_ms, kind, number

    def fault_numbers(self) -> list[int]:
        """Returns the numbers of the planned faults."""
        return [number for _, _, number in self._planned_faults()]

    def planned_kinds(self) -> set[str]:
        """Returns the kinds of the planned faults."""
        return {kind for _, kind, _ in self._planned_faults()}

    def _plan_faults(self) -> None:
        for at_ms, kind, number in self._planned_faults():
            self._plan_fault(at_ms, kind, number)

    def _plan_fault(self, at_ms: int, kind: str, number: int) -> None:
        rng = self.chance(f"fault {number}")
        fault = FAULTS[kind][1]

        def strike(attempts: int = ATTEMPTS_MAX) -> None:
            if self.loop.now_ms > self.plan.stormy_ms - 1_000:
                return
            if fault(self, rng):
                self.faults[kind] += 1
            elif attempts:
                self.loop.after(200, lambda: strike(attempts - 1))

        self.loop.after(at_ms, strike)

"""One seeded life of a cluster: first with faults, then healed, then emptied."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.entities import ExecutorState
from resource_manager.engine.events import (
    DrainRequested,
    ForgetRequested,
    UndrainRequested,
)
from resource_manager.engine.placement.feasibility import waiting_reason
from resource_manager.engine.settings import EngineSettings
from tests.simulation.checks import Checks
from tests.simulation.executor import Executor
from tests.simulation.job_master import JobMaster
from tests.simulation.manager import Manager
from tests.simulation.network import Loop, Network, Weather
from tests.simulation.slot_host import Troubles

STORMY_MS = 25_000
HEAL_MS = 20_000
EMPTY_MS = 25_000
STORY_LINES = 30

LEAST = {"grants": 10, "ends": 10, "faults": 5, "batches": 300}
"""A run that did less has shown nothing."""


@dataclass(frozen=True)
class Result:
    """What a run did."""

    seed: int
    events: int
    batches: int
    grants: int
    ends: int
    faults: int
    messages_hurt: int
    trace: str  # digest of the whole story


class Failed(AssertionError):
    """A seed that showed a bug, with its story."""


class World:
    """Everything of one run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.loop = Loop()
        self.network = Network(self.loop, rng)
        self.checks = Checks()
        self.story: list[str] = []
        self.faults = 0
        self.troubles = Troubles()
        settings = EngineSettings(
            lost_timeout_ms=4_000,
            strategy=rng.choice(("pack", "spread")),
            pack_candidates=rng.choice((1, 2, 8)),
            command_items_max=rng.choice((1, 3, 1_000)),
            command_retry_max_ms=2_000,
            unreachable_after_ms=rng.choice((1_000, 2_500)),
            probe_max_ms=2_000,
            refusal_backoff_min_ms=rng.choice((100, 1_000)),
            refusal_backoff_max_ms=5_000,
            ended_retention_ms=rng.choice((3_000, 86_400_000)),
            label_indexes_max=rng.choice((1, 256)),
        )
        self.manager = Manager(self.loop, rng, self.network, settings, self.checks, self.log)
        for number in range(rng.choice((3, 3, 3, 4, 4, 5, 5, 8, 8, 20))):
            self._add_executor(f"host-{number:02}")
        self.jobs_max = rng.randint(4, 10)
        self.calm = rng.choice((1, 2))
        self.jobs_made = 0

    def log(self, line: str) -> None:
        """Adds to the story."""
        self.story.append(f"{self.loop.now_ms:7} {line}")

    def _add_executor(self, name: str) -> None:
        rng = self.rng
        total: dict[str, int] = {
            "cpu_milli": rng.choice((2_000, 4_000, 8_000)),
            "memory_bytes": rng.choice((1, 2, 4)) * GIB,
            "extended.license": rng.randint(0, 2),
        }
        if rng.random() < 0.1:  # declares its memory pools apart
            total["task_heap_memory_bytes"] = total.pop("memory_bytes")
            total["managed_memory_bytes"] = 128 * MIB
        executor = Executor(
            name, self.loop, rng, self.network, self.manager, self.checks, self.log,
            total={name: amount for name, amount in total.items() if amount},
            default_profile=ResourceProfile(total["cpu_milli"] // 4, 256 * MIB),
            labels=(("zone", rng.choice("abc")),),
            slots_max=rng.choice((0, 0, 3)),
            orphan_ms=rng.choice((None, 6_000)),
            troubles=self.troubles,
        )  # fmt: skip
        self.manager.executors[name] = self.checks.executors[name] = executor

    # -- the run -----------------------------------------------------------------------------

    def run(self) -> Result:
        """Lives through all phases.

        Raises:
            Failed: something that must hold did not, or too little happened.
        """
        try:
            self._storm()
            self._heal()
            self._empty()
            self._require_work()
        except Exception as error:
            raise Failed(self._tell(error)) from error
        return Result(
            self.seed,
            self.loop.ran,
            self.manager.batches,
            self.checks.grants,
            self.checks.ends,
            self.faults,
            self.network.lost + self.network.repeated + self.network.delayed,
            hashlib.sha256("\n".join(self.story).encode()).hexdigest(),
        )

    def _storm(self) -> None:
        rng = self.rng
        self.manager.start()
        for executor in self.checks.executors.values():
            self.loop.after(rng.choice((10, 1_000, 10_000)), executor.start)
        self.troubles.carve_fails = rng.choice((0.0, 0.05, 0.3))
        self.troubles.offer_declined = rng.choice((0.0, 0.5))
        self.troubles.resized = rng.choice((0.0, 0.3))
        self._keep_jobs()
        self._next_fault()
        self._next_weather()
        self.loop.run_until(STORMY_MS)

    def _heal(self) -> None:
        self.log("everything heals")
        self.network.weather = Weather()
        self.network.cut.clear()
        self.network.undialled.clear()
        self.troubles.carve_fails = self.troubles.offer_declined = 0.0
        self.manager.crash_at = ""
        for master in self.checks.masters.values():
            master.leaving = True  # asks for nothing more
        self.loop.run_until(STORMY_MS + 8_000)  # whoever is down comes back
        for name in self.manager.executors:
            self.manager.submit(lambda at, name=name: UndrainRequested(at, name))  # type: ignore[misc]
        self.loop.run_until(STORMY_MS + HEAL_MS)
        state = self.manager.state
        self.checks.healed(
            state, lambda request: waiting_reason(state, state.queue.shape_of(request.spec))
        )

    def _empty(self) -> None:
        self.log("all jobs end")
        for master in self.checks.masters.values():
            master.leave()
        self.loop.run_until(STORMY_MS + HEAL_MS + EMPTY_MS)
        self.checks.empty(self.manager.state)

    def _require_work(self) -> None:
        did = {
            "grants": self.checks.grants,
            "ends": self.checks.ends,
            "faults": self.faults,
            "batches": self.manager.batches,
        }
        self.checks.require(
            f"only {did[name]} {name}, expected {least}"
            for name, least in LEAST.items()
            if did[name] < least
        )

    def _tell(self, error: Exception) -> str:
        """The last lines, and those that speak of what the error names."""
        text = f"{type(error).__name__}: {error}"
        words = {word.strip("(),:;") for word in text.replace("'", "").split()}
        names = {
            word.split("/")[0] for word in words if word.startswith("job-") and word[-1] != "-"
        }
        about = [line for line in self.story if any(name in line for name in names)]
        lines = sorted({*about[-STORY_LINES:], *self.story[-STORY_LINES:]})
        return "\n".join([f"seed {self.seed} at {self.loop.now_ms} ms: {text}", *lines])

    # -- jobs, faults, weather ---------------------------------------------------------------

    def _keep_jobs(self) -> None:
        if self.loop.now_ms > STORMY_MS:
            return
        living = [m for m in self.checks.masters.values() if m.up and not m.over and not m.leaving]
        if len(living) < self.jobs_max:
            self.jobs_made += 1
            name = f"job-{self.jobs_made:02}"
            self.checks.masters[name] = master = JobMaster(
                name, self.loop, self.rng, self.network, self.manager, self.checks, self.log,
                unknown=self.rng.random() < 0.25,
                lease_ms=self.rng.choice((None, 3_000, 6_000, 10_000)),
            )  # fmt: skip
            master.start()
        self.loop.after(300, self._keep_jobs)

    def _next_weather(self) -> None:
        if self.loop.now_ms > STORMY_MS:
            return
        bad = self.rng.random() < 0.5
        self.network.weather = Weather(0.1, 0.1, 0.1) if bad else Weather(0.01, 0.02, 0.02)
        self.loop.after(self.rng.randint(500, 5_000), self._next_weather)

    def _next_fault(self) -> None:
        if self.loop.now_ms > STORMY_MS - 1_000:
            return
        fault = self.rng.choices(
            (self._rm_dies, self._executor_dies, self._cut_off, self._close_port, self._break,
             self._operate, self._job_ends),
            (3, 3, 3, 2, 1, 3, 1),
        )[0]  # fmt: skip
        self.faults += bool(fault())
        self.loop.after(self.rng.randint(100, 1_600) * self.calm, self._next_fault)

    def _rm_dies(self) -> bool:
        if not self.manager.up:
            return False
        how = self.rng.choice(("now", "before", "after"))
        if how == "now":
            self.manager.crash()
        else:
            self.manager.crash_at = how
        return True

    def _some_executor(self) -> Executor:
        return self.rng.choice(list(self.checks.executors.values()))

    def _executor_dies(self) -> bool:
        executor = self._some_executor()
        if not executor.up:
            return False
        executor.crash(reboot=self.rng.random() < 0.3)
        return True

    def _cut_off(self) -> bool:
        name, way = self._some_executor().name, self.rng.randint(0, 2)
        cuts = [("rm", name), (name, "rm")]
        cut = {cuts[way]} if way < 2 else set(cuts)
        self.log(f"network loses {sorted(cut)}")
        self.network.cut |= cut
        self.loop.after(self.rng.choice((300, 2_000, 8_000)), lambda: self._join(cut))
        return True

    def _join(self, cut: set[tuple[str, str]]) -> None:
        self.network.cut -= cut

    def _close_port(self) -> bool:
        """The executor reaches the manager, and not the other way round."""
        way = ("rm", self._some_executor().name)
        self.log(f"{way[1]} cannot be dialled")
        self.network.undialled.add(way)
        self.loop.after(
            self.rng.choice((2_000, 6_000, 12_000)), lambda: self.network.undialled.discard(way)
        )
        return True

    def _break(self) -> bool:
        return self._some_executor().break_slot()

    def _operate(self) -> bool:
        manager, name = self.manager, self._some_executor().name
        if not manager.up or name not in manager.state.hosts:
            return False
        executor = manager.state.hosts[name].executor
        if executor.state is ExecutorState.LOST:
            self.log(f"operator forgets {name}")
            manager.submit(lambda at: ForgetRequested(at, name))
        elif executor.draining:
            self.log(f"operator undrains {name}")
            manager.submit(lambda at: UndrainRequested(at, name))
        else:
            deadline_ms = self.rng.choice((None, 0, 1_500))
            self.log(f"operator drains {name} within {deadline_ms}")
            manager.submit(lambda at: DrainRequested(at, name, "", deadline_ms))
        return True

    def _job_ends(self) -> bool:
        living = [m for m in self.checks.masters.values() if m.up and m.registered and not m.over]
        if not living:
            return False
        master = self.rng.choice(living)
        if self.rng.random() < 0.5 or master.lease_ms is None:
            self.log(f"{master.name} leaves")
            master.leave()
        else:
            self.log(f"{master.name} falls silent")
            master.fall_silent()
        return True


def simulate(seed: int) -> Result:
    """One run; see `World.run`."""
    return World(seed).run()

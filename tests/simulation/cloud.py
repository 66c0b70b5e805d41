"""A simulated provider: its machines run executors and outlive resource managers.

It guarantees only the promises of `resource_manager/providers/provider.py`. A start may fail, hang
or be late, or its machine may have less than its shape. A machine may never register, or end by
itself. A stop may fail or be slow. Calls about one executor are executed in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from finegrain.resources import GIB, MIB, ResourceProfile
from resource_manager.engine.model.settings import ExecutorShape, Provisioning
from resource_manager.providers.provider import Observation, Presence, Started
from tests.simulation.network import Loop, Reply
from tests.simulation.slot_host import HostPlan

if TYPE_CHECKING:
    from tests.simulation.checks import Checks
    from tests.simulation.executor import Executor

ORPHAN_MS = 6_000
STARTED_MS = (20, 200, 900)
BOOT_MS = (100, 600, 1_500)
STOPPED_MS = (10, 100, 700, 2_500)


class ProviderTrouble(Exception):
    """A start or a stop failed, or its outcome is unknown."""


@dataclass
class CloudTroubles:
    """Probabilities of trouble per start or stop."""

    start_fails: float = 0.0  # half of the time the machine runs all the same
    start_hangs: float = 0.0
    late: float = 0.0  # it starts around its start timeout
    mute: float = 0.0  # it runs, but contacts no RM until the cluster heals
    smaller: float = 0.0
    ends: float = 0.0  # it ends by itself some time later
    stop_fails: float = 0.0
    disobeys: float = 0.0  # a start that was stopped continues


STORMY = CloudTroubles(0.08, 0.05, 0.08, 0.05, 0.1, 0.08, 0.35, 0.5)


@dataclass(eq=False)
class Machine:
    """A machine that was started. `executor` is set when an executor runs on the machine."""

    executor_id: str
    shape: ExecutorShape
    stopped: bool = False  # True also if it was stopped before it began to run
    executor: Executor | None = None

    @property
    def runs(self) -> bool:
        return self.executor is not None and not self.stopped


@dataclass(eq=False)
class Cloud:
    """All machines. The key is the id of the executor.

    Args:
        make: creates the executor of a machine from id, plan and shape, without starting it.
    """

    loop: Loop
    rng: Random
    checks: Checks
    log: Callable[[str], None]
    shapes: dict[str, ExecutorShape]
    make: Callable[[str, HostPlan, str], Executor]
    troubles: CloudTroubles = field(default_factory=CloudTroubles)
    machines: dict[str, Machine] = field(default_factory=dict)
    starts: int = 0
    _mute: list[Machine] = field(default_factory=list)

    # -- calls of the provider ------------------------------------------------------------

    def start(self, executor_id: str, shape: str, reply: Reply) -> None:
        """Starts a machine; answers with Started or ProviderTrouble, or never."""
        self.checks.provisions.started(executor_id)
        known = self.machines.get(executor_id)
        if known is not None and not known.stopped:
            self.loop.after(self._of(STARTED_MS), lambda: reply(Started(executor_id)))
            return
        self.starts += 1
        machine = self.machines[executor_id] = Machine(executor_id, self.shapes[shape])
        fate, troubles = self.rng.random(), self.troubles
        if fate < troubles.start_fails:
            self.log(f"provider fails to start {executor_id}")
            if self.rng.random() < 0.5:
                machine.stopped = True
            answer: object = ProviderTrouble("it could not be started")
        elif fate < troubles.start_fails + troubles.start_hangs:
            self.log(f"provider hangs over {executor_id}")
            machine.stopped = self.rng.random() < 0.5
            answer = None
        else:
            answer = Started(executor_id)
        if not machine.stopped:
            self._boot(machine)
        if answer is not None:
            self.loop.after(self._of(STARTED_MS), lambda: reply(answer))

    def stop(self, executor_id: str, reply: Reply) -> None:
        """Stops a machine. When it is destroyed, answers with None. If this fails, answers with
        ProviderTrouble.
        """

        def done() -> None:
            if self.rng.random() < self.troubles.stop_fails:
                self.log(f"provider fails to stop {executor_id}")
                reply(ProviderTrouble("it could not be stopped"))
                return
            if machine is not None:
                self._destroy(machine)
            reply(None)

        machine = self.machines.get(executor_id)
        self.loop.after(self._of(STOPPED_MS), done)

    def status(self, executor_id: str) -> Observation:
        """Returns what the provider observes of a machine."""
        machine = self.machines.get(executor_id)
        if machine is None:
            return Observation(Presence.UNKNOWN)
        return Observation(Presence.ENDED if machine.stopped else Presence.RUNS)

    # -- events of machines ---------------------------------------------------------------

    def _boot(self, machine: Machine) -> None:
        troubles, rng = self.troubles, self.rng
        fate, boot_ms = rng.random(), self._of(BOOT_MS)
        if fate < troubles.late:
            boot_ms = int(machine.shape.start_timeout_ms * rng.uniform(0.6, 2.5))
        elif fate < troubles.late + troubles.mute:
            self._mute.append(machine)
            return
        self.loop.after(boot_ms, lambda: self._run(machine))

    def _run(self, machine: Machine) -> None:
        if machine.executor is not None:
            return
        if machine.stopped:
            if self.rng.random() >= self.troubles.disobeys:
                return
            if self.machines[machine.executor_id] is not machine:
                return
            machine.stopped = False
            self.checks.provisions.disobeyed(machine.executor_id)
        rng, shape = self.rng, machine.shape
        total = dict(shape.total)
        if rng.random() < self.troubles.smaller:
            total = {name: max(1, amount // 2) for name, amount in total.items()}
        plan = HostPlan(
            total=total,
            default_profile=shape.default_profile,
            labels=shape.labels,
            slots_max=shape.slots_max,
            orphan_ms=rng.choice((None, ORPHAN_MS)),
        )
        self.log(f"provider runs {machine.executor_id} with {total}")
        machine.executor = self.make(machine.executor_id, plan, shape.name)
        machine.executor.start()
        if rng.random() < self.troubles.ends:
            self.loop.after(rng.randint(500, 8_000), lambda: self._end(machine))

    def _end(self, machine: Machine) -> None:
        if machine.runs:
            self.log(f"{machine.executor_id} ends by itself")
            self._destroy(machine)

    def end_one(self, rng: Random) -> bool:
        """Lets a running machine end by itself; returns False if there is none."""
        running = [machine for machine in self.machines.values() if machine.runs]
        if running:
            self._end(rng.choice(running))
        return bool(running)

    def _destroy(self, machine: Machine) -> None:
        machine.stopped = True
        if machine.executor is not None:
            machine.executor.destroy()
            self.checks.destroyed(machine.executor)

    def heal(self) -> None:
        """Ends all trouble. Machines that contacted no RM now start their executors."""
        self.troubles = CloudTroubles()
        for machine in self._mute:
            self._run(machine)
        self._mute.clear()

    def running(self) -> set[str]:
        """Returns the ids of executors that run or are starting."""
        return {name for name, machine in self.machines.items() if not machine.stopped}

    def _of(self, times_ms: tuple[int, ...]) -> int:
        return self.rng.choice(times_ms)


def some_shapes(rng: Random) -> Provisioning:
    """Draws shapes, limits and short timeouts."""
    drawn = (
        ("small", 2_000, 1, 0, 1.0),
        ("middle", 4_000, 4, 1, rng.choice((1.5, 2.5))),
        ("large", 8_000, 8, 2, rng.choice((2.5, 5.0))),
    )
    start_timeout_ms = rng.choice((2_500, 5_000))
    shapes = tuple(
        ExecutorShape(
            name=name,
            provider="cloud",
            total={
                "cpu_milli": cpu,
                "memory_bytes": gib * GIB,
                **({"extended.license": licenses} if licenses else {}),
            },
            default_profile=ResourceProfile(cpu // 4, 256 * MIB),
            labels=(("zone", rng.choice("abc")),),
            slots_max=rng.choice((0, 0, 4)),
            cost=cost,
            count_max=rng.choice((0, 1, 3)),
            start_timeout_ms=start_timeout_ms,
        )
        for name, cpu, gib, licenses, cost in rng.sample(drawn, rng.randint(1, 3))
    )
    return Provisioning(
        shapes=shapes,
        total_min=rng.choice(({}, {}, {"cpu_milli": rng.choice((2_000, 6_000))})),
        total_max={"cpu_milli": rng.choice((12_000, 24_000))},
        idle_timeout_ms=rng.choice((500, 2_500)),
        provided_lost_timeout_ms=rng.choice((500, 4_000)),
        plan_interval_ms=rng.choice((100, 1_000)),
        planned_requests_max=rng.choice((5, 10_000)),
        backoff_min_ms=rng.choice((100, 500)),
        backoff_max_ms=2_000,
    )

"""Random mixes of groups and jobs for the simulator, and a comparison with the ideal shares."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hypothesis import strategies as st

from finegrain.resources import CPU_MILLI, GIB, MEMORY_BYTES, MIB, ResourceProfile
from resource_manager.engine.model.settings import EngineSettings, Fairness, Measure, Order
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.ideal import ROOT, IdealFlow, IdealTree
from resource_manager.simulator.idle import IdleCheck
from resource_manager.simulator.log import by_job
from resource_manager.simulator.nodes import Node
from resource_manager.simulator.share_error import Comparison, Usage

COMES_MAX_S = 120
HORIZON_S = 780
PLENTY = 1e9


@dataclass(frozen=True, slots=True)
class MixedGroup:
    """A resource group, below another one or the root."""

    name: str
    parent: str
    weight: float


@dataclass(frozen=True, slots=True)
class MixedJob:
    """A job that has work until the end.

    Each thread takes one core and `memory_mib` of memory. Threads run for 0.5 to 1.5 times the mean
    duration, or for exactly the mean if `alike`.
    """

    name: str
    group: str
    at_s: int
    mean_s: int
    alike: bool
    memory_mib: int
    seed: int

    def durations_ms(self, count: int) -> list[int]:
        """Returns the duration of each thread."""
        mean_ms = self.mean_s * 1_000
        if self.alike:
            return [mean_ms] * count
        chance = random.Random(self.seed)
        return [chance.randrange(mean_ms // 2, mean_ms * 3 // 2) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Mix:
    """The groups, jobs and nodes of a run, and how usage is measured."""

    groups: tuple[MixedGroup, ...]
    jobs: tuple[MixedJob, ...]
    cores: tuple[int, ...]  # cores of each node
    measure: Measure


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    """Draws up to three groups, nested or siblings, two to five jobs, and 6 to 10 cores."""
    groups: list[MixedGroup] = []
    for number in range(draw(st.integers(1, 3))):
        parent = draw(st.sampled_from(["", *(each.name for each in groups)]))
        groups.append(MixedGroup(f"g{number}", parent, draw(st.sampled_from([1, 1.5, 2, 4]))))
    jobs = tuple(
        MixedJob(
            f"job-{number}",
            draw(st.sampled_from(groups)).name,
            draw(st.sampled_from([0, 0, 45, COMES_MAX_S])),
            draw(st.sampled_from([8, 15, 20])),
            draw(st.booleans()),
            draw(st.sampled_from([64, 256, 1024])),
            draw(st.integers(0, 99)),
        )
        for number in range(draw(st.integers(2, 5)))
    )
    cores = draw(st.sampled_from([(1,) * 6, (4, 4), (2, 3, 1), (3, 4, 3)]))
    return Mix(tuple(groups), jobs, cores, draw(st.sampled_from(["slots", "cpu", "dominant"])))


def run_mix(
    mix: Mix, horizon_s: int = HORIZON_S, order: Order = "fair"
) -> tuple[Cluster, IdleCheck]:
    """Runs a mix until `horizon_s`. At that time, all jobs still have work."""
    nodes = [
        Node(f"node-{number}", {CPU_MILLI: cores * 1_000, MEMORY_BYTES: cores * 4 * GIB})
        for number, cores in enumerate(mix.cores)
    ]
    settings = EngineSettings(fairness=Fairness(order, mix.measure))
    cluster = Cluster(nodes, settings, stopwatch=lambda: 0.0)
    idle = IdleCheck(cluster)
    for group in mix.groups:
        cluster.set_group(group.name, weight=group.weight, parent=group.parent or None)
    for job in mix.jobs:
        count = horizon_s * sum(mix.cores) // job.mean_s + sum(mix.cores)
        cluster.submit(
            job.name,
            job.durations_ms(count),
            group=job.group,
            profile=ResourceProfile(1_000, task_heap_memory_bytes=job.memory_mib * MIB),
            at_ms=job.at_s * 1_000,
        )
    cluster.run(horizon_s * 1_000)
    return cluster, idle


def beside_the_ideal(mix: Mix, cluster: Cluster) -> Comparison:
    """Compares the cores that flows received with their ideal shares.

    In every measure of a mix, a thread costs as much as one core.
    """
    tree = IdealTree(
        [
            *(IdealFlow(each.name, each.parent or ROOT, each.weight) for each in mix.groups),
            *(IdealFlow(each.name, each.group) for each in mix.jobs),
        ]
    )
    running = cluster.log.running(by_job)
    changes_ms = {at_ms for steps in running.values() for at_ms in steps.times_ms}
    times_ms = sorted(changes_ms | {job.at_s * 1_000 for job in mix.jobs})
    usages = [
        Usage(
            at_ms / 1_000,
            sum(mix.cores),
            {name: steps.at(at_ms) for name, steps in running.items()},
            {job.name: PLENTY for job in mix.jobs if job.at_s * 1_000 <= at_ms},
        )
        for at_ms in times_ms
    ]
    return Comparison(tree, usages, cluster.now_ms / 1_000)

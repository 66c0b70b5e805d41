"""Measures the fair choice of the next request among very many groups and jobs.

    python -m bench.fair [--groups 1000] [--jobs 100] [--requests 1000] [--hosts 1000]
        [--decisions 2000] [--order fair] [--shapes 1 --shapes 10] [--alone 100000] [--profile]

Each group has the same number of jobs, and each job waits with a range of requests. Executors are
simulated and accept every order at once. The benchmark prints the CPU time of this process in two
cases: all jobs request the same slot profile, or there are ten profiles and each job requests one
of them:

- submission: all jobs with their ranges;
- burst: the time per slot of one pass that fills the empty cluster;
- steady: the cluster is full. One slot ends, another slot is placed, and some time passes before
  the next slot ends. "choose and place" is `place_waiting`. The other work of a slot is shown
  separately;
- side by side: `--alone` requests are placed in one pass, first as requests of one job, then of 2
  jobs and of 10 jobs.

Half of the groups have a weight that differs from 1.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import pstats
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

from bench.engine import Bench, show
from finegrain.resources import GIB, ResourceProfile
from finegrain.values.states import SlotState
from resource_manager.engine.model.effects import Effect
from resource_manager.engine.model.entities import Instant, RangeSpec, RequestSpec
from resource_manager.engine.model.events import (
    Decide,
    Event,
    GroupSet,
    JobRegistered,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.engine.scheduling import cycle
from resource_manager.engine.scheduling.cycle import place_waiting
from resource_manager.engine.state import State
from resource_manager.engine.step import step

SECOND_MS = 1_000


class FairBench(Bench):
    """Runs the engine with equal hosts, groups with jobs, and a clock."""

    def __init__(self, hosts: int, shapes: int, **settings: Any) -> None:
        cores = [1_000] if shapes == 1 else [250 * (1 + number % 8) for number in range(shapes)]
        workload = {
            "hosts": {
                "count": hosts,
                "cpu_milli": 16_000,
                "heap_mb": 65_536,
                "offheap_mb": 0,
                "managed_mb": 0,
                "network_mb": 0,
            },
            "profiles": [
                {
                    "cpu_milli": cpu_milli,
                    "heap_mb": 512 + 64 * number,
                    "offheap_mb": 0,
                    "managed_mb": 0,
                    "network_mb": 0,
                }
                for number, cpu_milli in enumerate(cores)
            ],
        }
        super().__init__(
            workload,
            EngineSettings(jobs_max=1 << 20, requests_max=1 << 40, pack_candidates=1, **settings),
        )
        self.total = {"cpu_milli": 16_000, "memory_bytes": 64 * GIB}
        self.now_ms = 0
        self.choosing: list[float] = []  # CPU seconds of each call of place_waiting
        self.profile: cProfile.Profile | None = None

    @property
    def now(self) -> Instant:
        return Instant(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def take_in(self, *events: Event) -> None:
        for event in events:
            step(self.state, event)
        self.state.changes.take()

    def decide(self, *events: Event) -> list[Effect]:
        """Applies events, then decides until no work is left."""
        effects: list[Effect] = []
        for event in events:
            effects.extend(step(self.state, event).effects)
        while True:
            effects.extend(step(self.state, Decide(self.now)).effects)
            self.state.changes.take()
            if not self.state.unfinished:
                return effects

    def answer(self, effects: list[Effect]) -> None:
        """Lets executors answer. The decisions after the answers are not measured."""
        while events := self.answers(effects):
            effects = self.decide(*events)

    def submissions(  # type: ignore[override]
        self, groups: int, jobs: int, requests: int
    ) -> Iterator[tuple[Event, ...]]:
        rng = random.Random(5)
        for group in range(groups):
            weight = float(1 + group % 4) if group % 2 else 1.0
            yield (GroupSet(self.now, f"g{group}", weight=weight),)
        for job in range(jobs):
            for group in range(groups):
                name = f"j{group}.{job}"
                yield self.job(name, f"g{group}", rng.choice(self.profiles), requests)

    def job(
        self, name: str, group: str, profile: ResourceProfile, requests: int
    ) -> tuple[Event, ...]:
        spec = RequestSpec(name, profile)
        return (
            JobRegistered(self.now, name, name, group, None, "operator/ann", "r"),
            RequestsSubmitted(self.now, name, (), ranges=(RangeSpec(spec, 0, requests),)),
        )


def timed_choice(bench: FairBench) -> None:
    """Makes the engine measure the CPU time of each choice."""

    def measured(state: State) -> None:
        if bench.profile is not None:
            bench.profile.enable()
        started = time.process_time()
        place_waiting(state)
        bench.choosing.append(time.process_time() - started)
        if bench.profile is not None:
            bench.profile.disable()

    cycle.place_waiting = measured


def run_many(options: argparse.Namespace, shapes: int) -> None:
    bench = FairBench(options.hosts, shapes, fairness=Fairness(order=options.order))
    timed_choice(bench)
    bench.decide(*bench.registrations())
    started = time.process_time()
    waiting = 0
    for events in bench.submissions(options.groups, options.jobs, options.requests):
        bench.take_in(*events)
        waiting += options.requests * (len(events) > 1)
    seconds = time.process_time() - started
    per_job = seconds / options.groups / options.jobs * 1e6
    print(
        f"{options.groups} groups x {options.jobs} jobs x {options.requests} requests"
        f" ({waiting:,}), {options.hosts} hosts, {shapes} shapes, by {options.order}"
    )
    show("add all requests", seconds, f"{per_job:.0f} us per job")
    bench.choosing.clear()
    effects = bench.decide()
    slots = len(bench.state.slots)
    seconds = sum(bench.choosing)
    note = f"{slots} slots, {len(bench.choosing)} decisions, {seconds / slots * 1e6:.1f} us a slot"
    show("burst: fill the cluster", seconds, note)
    bench.answer(effects)
    run_steady(bench, options)


def run_steady(bench: FairBench, options: argparse.Namespace) -> None:
    rng = random.Random(7)
    slots = [key for key, slot in bench.state.slots.items() if slot.state is SlotState.ALLOCATED]
    costs, totals, placed = [], [], 0
    bench.profile = cProfile.Profile() if options.profile else None
    for _ in range(options.decisions):
        bench.now_ms += rng.randrange(1, 5 * SECOND_MS)
        at = rng.randrange(len(slots))
        name, generation = slots[at]
        job_id = bench.state.slots[name, generation].job_id
        release = SlotsReleased(bench.now, job_id, ((name, generation),))
        effects = bench.decide(release)
        freed = bench.answers(effects)
        before = len(bench.state.slots)
        bench.choosing.clear()
        started = time.process_time()
        effects = bench.decide(*freed)
        totals.append(time.process_time() - started)
        costs.append(sum(bench.choosing))
        new = list(bench.state.slots)[before - 1 :]
        placed += len(new)
        slots[at] = slots[-1]
        slots.pop()
        slots += new
        bench.answer(effects)
    for what, seconds in (("steady: choose and place", costs), ("  with the whole step", totals)):
        each = sorted(seconds)
        median, most = statistics.median(each) * 1e6, each[-1] * 1e6
        mean = sum(each) / len(each) * 1e6
        note = f"median {median:.0f}, 99 %: {each[len(each) * 99 // 100] * 1e6:.0f}, max {most:.0f}"
        print(f"  {what:<44}{mean:>10.1f} us  {note}, {placed} placed")
    if bench.profile is not None:
        pstats.Stats(bench.profile).sort_stats("tottime").print_stats(40)


def run_side_by_side(options: argparse.Namespace) -> None:
    """Places equal numbers of requests, from one job and from several jobs."""
    print(f"{options.alone:,} requests of one job, and of several jobs")
    alone = 0.0
    for order in ("arrival", "fair"):
        for jobs in (1, 2, 10):
            hosts = options.alone // 16 + 1
            bench = FairBench(hosts, 1, fairness=Fairness(order=order))
            timed_choice(bench)
            bench.decide(*bench.registrations())
            for number in range(jobs):
                bench.take_in(
                    *bench.job(f"j{number}", "default", bench.profiles[0], options.alone // jobs)
                )
            bench.choosing.clear()
            bench.decide()
            seconds = sum(bench.choosing)
            alone = alone or seconds
            note = f"{len(bench.state.slots)} slots, {seconds / alone:.2f} of one by arrival"
            show(f"{order}, {jobs} jobs", seconds, note)
            gc.collect()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--groups", type=int, default=1_000)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--requests", type=int, default=1_000)
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--decisions", type=int, default=2_000)
    parser.add_argument("--order", choices=("fair", "arrival"), default="fair")
    parser.add_argument("--shapes", type=int, action="append")
    parser.add_argument("--alone", type=int, default=100_000, help="0: leave this part out")
    parser.add_argument("--profile", action="store_true", help="where the time of a choice goes")
    options = parser.parse_args()
    gc.disable()
    for shapes in options.shapes or [1, 10]:
        run_many(options, shapes)
        gc.collect()
    if options.alone:
        run_side_by_side(options)


if __name__ == "__main__":
    main()

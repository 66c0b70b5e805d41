"""Measures the resource manager's engine alone: no database, no RPC, and simulated executors that
accept every order.

    python -m bench.engine [--hosts 1000] [--slots 10000] [--strategy first-fit --strategy pack]
        [--candidates 8] [--passes 5] [--workload FILE]

The benchmark prints the CPU time of this process, for each strategy:

- counted: one placement pass that fills an empty cluster. The input of the pass is a list of
  entries with counts. The output is the number of slots of each entry on each host. The time
  includes the correction of the indexes at the end. The figure is the least time of several passes,
  each on a new cluster.
- expanded: a pass with events and effects. For each slot it makes a request, a slot and an order.
  It is measured from the submission until the commands are written. The benchmark also shows the
  steps before and after the pass.
- arrivals: jobs with 10 slots arrive at the full cluster, one at a time. The slots of each job are
  granted and then released. The benchmark also shows a full report of every host, an explanation,
  and the sums of the cluster.
- release: all slots are released.

Both passes call the same function (`Placer.place`). "hosts used" is the number after the pass.

`gen_workload` makes the workload from a fixed seed. It has N equal hosts of 16 cores and 64 GiB
with a pool per memory part, 24 slot profiles, and jobs of 5 to 100 slots. Each job uses 2 to 5 of
the profiles. With `--workload`, the benchmark reads the workload from a file of the same format
("finegrain-wl-1") instead.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finegrain.resources import MIB, Amounts, ResourceProfile, booking, subtract, total_of
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.explain.cluster import cluster_view
from resource_manager.engine.explain.paused import at_once
from resource_manager.engine.explain.requests import explain
from resource_manager.engine.model.effects import Effect, SendAllocate, SendFree
from resource_manager.engine.model.entities import Instant, Registration, RequestSpec
from resource_manager.engine.model.events import (
    CommandAnswered,
    Decide,
    DrainRequested,
    Event,
    ExecutorRegistered,
    JobRegistered,
    RequestsCancelled,
    RequestsSubmitted,
    SlotsReleased,
    SlotsReported,
)
from resource_manager.engine.model.reported import Report, ReportedSlot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.placement.placer import Placer, Run
from resource_manager.engine.restoring import fresh
from resource_manager.engine.step import step

AT = Instant(0, 1_700_000_000_000)
_MASK = (1 << 64) - 1
_CHOICES = {
    "cpu_milli": [100, 250, 250, 500, 500, 500, 750, 1000, 1000, 1500, 2000, 4000],
    "heap_mb": [128, 256, 512, 1024, 2048, 4096],
    "offheap_mb": [0, 0, 64, 128, 256, 512],
    "managed_mb": [0, 0, 256, 512, 1024, 2048],
    "network_mb": [0, 32, 64, 64, 128, 256],
}
_HOST = {
    "cpu_milli": 16000,
    "heap_mb": 40960,
    "offheap_mb": 4096,
    "managed_mb": 16384,
    "network_mb": 4096,
}


class _SplitMix64:
    """Makes random numbers with Sebastiano Vigna's SplitMix64, which is small and gives equal
    numbers on every machine.
    """

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, n: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % n


def gen_workload(hosts: int, slots: int, arrivals: int = 200) -> dict[str, Any]:
    """Returns a workload. Equal arguments give an equal workload."""
    random = _SplitMix64(20251120)
    profiles: list[dict[str, int]] = []
    while len(profiles) < 24:
        profile = {name: xs[random.below(len(xs))] for name, xs in _CHOICES.items()}
        if profile not in profiles:
            profiles.append(profile)

    def distinct(count: int) -> list[int]:
        ids: list[int] = []
        while len(ids) < count:
            drawn = random.below(len(profiles))
            if drawn not in ids:
                ids.append(drawn)
        return ids

    jobs: list[list[list[int]]] = []
    left = slots
    while left > 0:
        total = min([5, 10, 20, 50, 100][random.below(5)], left)
        kinds = min(2 + random.below(4), total)
        entries = [[profile_id, 1] for profile_id in distinct(kinds)]
        for _ in range(total - kinds):
            entries[random.below(kinds)][1] += 1
        jobs.append(entries)
        left -= total
    non_batchables = [
        [[profile_id, count] for profile_id, count in zip(distinct(3), (4, 3, 3), strict=True)]
        for _ in range(arrivals)
    ]
    return {
        "hosts": dict(_HOST, count=hosts),
        "profiles": profiles,
        "jobs": jobs,
        "arrivals": non_batchables,
    }


class Bench:
    """Runs the engine with a cluster whose executors accept every order at once."""

    def __init__(self, workload: dict[str, Any], settings: EngineSettings) -> None:
        self.workload = workload
        self.state = fresh(settings, 1, AT)
        self.profiles = [
            ResourceProfile(
                p["cpu_milli"],
                p["heap_mb"] * MIB,
                p["offheap_mb"] * MIB,
                p["managed_mb"] * MIB,
                p["network_mb"] * MIB,
            )
            for p in workload["profiles"]
        ]
        self.totals: dict[str, Amounts] = {}
        self.tables: dict[str, dict[tuple[str, int], ReportedSlot]] = {}
        self.numbers: dict[str, int] = {}

    def batch(self, *events: Event) -> list[Effect]:
        """Applies events. Then decides until no work is left, in the same way as the service. Drops
        the changed rows.
        """
        effects: list[Effect] = []
        for event in (*events, Decide(AT)):
            effects.extend(step(self.state, event).effects)
        self.state.changes.take()
        while self.state.unfinished:
            effects.extend(step(self.state, Decide(AT)).effects)
            self.state.changes.take()
        return effects

    def registration(self, number: int, total: Amounts, default: ResourceProfile) -> Event:
        """Returns the first registration of an empty executor."""
        name = f"host-{number:06d}"
        self.totals[name], self.tables[name], self.numbers[name] = total, {}, 1
        registration = Registration(name, name, f"{name}:7000", total, {}, default)
        return ExecutorRegistered(AT, registration, Report(1, 0, 0, available=total))

    def registrations(self) -> list[Event]:
        host = self.workload["hosts"]
        total = {
            "cpu_milli": host["cpu_milli"],
            "task_heap_memory_bytes": host["heap_mb"] * MIB,
            "task_off_heap_memory_bytes": host["offheap_mb"] * MIB,
            "managed_memory_bytes": host["managed_mb"] * MIB,
            "network_memory_bytes": host["network_mb"] * MIB,
        }
        return [
            self.registration(number, total, self.profiles[0]) for number in range(host["count"])
        ]

    def submissions(self, prefix: str, jobs: list[list[list[int]]]) -> Iterator[list[Event]]:
        for number, entries in enumerate(jobs):
            job_id = f"{prefix}{number}"
            specs = tuple(
                RequestSpec(f"{job_id}-{entry}-{index}", self.profiles[profile_id])
                for entry, (profile_id, count) in enumerate(entries)
                for index in range(count)
            )
            yield [
                JobRegistered(AT, job_id, job_id, "default", None, "s", "r"),
                RequestsSubmitted(AT, job_id, specs),
            ]

    def report(self, name: str, command_number: int) -> Report:
        self.numbers[name] += 1
        slots = self.tables[name].values()
        total = self.totals[name]
        separate_pools = "memory_bytes" not in total
        booked = total_of(booking(slot.profile, separate_pools=separate_pools) for slot in slots)
        available = subtract(total, booked)
        return Report(self.numbers[name], 1, command_number, False, 0, tuple(slots), available)

    def answers(self, effects: list[Effect]) -> list[Event]:
        """Returns the answers of the executors to commands."""
        events: list[Event] = []
        for effect in effects:
            if not isinstance(effect, SendAllocate | SendFree):
                continue
            table = self.tables[effect.executor_id]
            if isinstance(effect, SendAllocate):
                keys = [(o.slot.allocation_id, o.slot.generation) for o in effect.orders]
                for order in effect.orders:
                    slot = order.slot
                    table[slot.allocation_id, slot.generation] = ReportedSlot(
                        slot.allocation_id,
                        slot.generation,
                        slot.job_id,
                        slot.profile,
                        SlotState.ALLOCATED,
                    )
            else:
                keys = [(name, generation) for name, generation, _ in effect.slots]
                for key in keys:
                    del table[key]
            events.append(
                CommandAnswered(
                    AT,
                    effect.executor_id,
                    1,
                    effect.command_number,
                    tuple(ItemOutcome(name) for name, _ in keys),
                    self.report(effect.executor_id, effect.command_number),
                )
            )
        return events

    def settle(self, effects: list[Effect]) -> float:
        """Answers commands until no command is left; returns the CPU seconds of the engine."""
        spent = 0.0
        while events := self.answers(effects):
            started = time.process_time()
            effects = self.batch(*events)
            spent += time.process_time() - started
        return spent


def counted(
    workload: dict[str, Any], settings: EngineSettings
) -> tuple[float, list[tuple[int, Run]]]:
    """Runs one counted pass; returns the CPU seconds, and the hosts of the slots of each entry."""
    bench = Bench(workload, settings)
    bench.batch(*bench.registrations())
    shapes = [bench.state.queue.class_of(RequestSpec("", profile)) for profile in bench.profiles]
    entries = [(shapes[number], count) for job in workload["jobs"] for number, count in job]
    started = time.process_time()
    placing = Placer(bench.state.hosts)
    runs = [placing.place(shape, count) for shape, count in entries]
    placing.finish()
    seconds = time.process_time() - started
    return seconds, [(entry, run) for entry, placed in enumerate(runs) for run in placed]


def show(what: str, seconds: float, note: str = "") -> None:
    print(f"  {what:<44}{seconds * 1_000:>10.2f} ms  {note}")


def run_counted(workload: dict[str, Any], settings: EngineSettings, passes: int) -> None:
    results = [counted(workload, settings) for _ in range(passes)]
    runs = results[0][1]
    used = len({host_id for _, (host_id, _) in runs})
    slots = sum(count for _, (_, count) in runs)
    note = f"hosts used {used}, {len(runs)} runs, {slots} slots placed"
    show("counted: one pass over all entries", min(seconds for seconds, _ in results), note)


def run_expanded(bench: Bench) -> None:
    def timed(*events: Event) -> tuple[float, list[Effect]]:
        started = time.process_time()
        effects = bench.batch(*events)
        return time.process_time() - started, effects

    seconds, _ = timed(*bench.registrations())
    show("register all hosts", seconds)
    jobs = list(bench.submissions("job-", bench.workload["jobs"]))
    started = time.process_time()
    for events in jobs:
        for event in events:
            step(bench.state, event)
    taken_in = time.process_time() - started
    show("add all jobs and requests", taken_in)
    seconds, effects = timed()
    used = sum(bool(host.slots) for host in bench.state.hosts.values())
    show("place everything and write the commands", seconds)
    show("expanded: both", taken_in + seconds, f"hosts used {used}")
    show("process all answers", bench.settle(effects))
    run_arrivals(bench)

    reports: list[Event] = [
        SlotsReported(AT, name, name, 1, bench.report(name, host.executor.command_number))
        for name, host in bench.state.hosts.items()
    ]
    show("one full report of every host", timed(*reports)[0])
    run_questions(bench)
    releases: list[Event] = []
    for job_id, job in bench.state.jobs.items():
        if job.slot_keys:
            releases.append(SlotsReleased(AT, job_id, tuple((key[0], 0) for key in job.slot_keys)))
    seconds, effects = timed(*releases)
    show("release everything: until commands", seconds)
    show("  and its answers", bench.settle(effects))


def run_arrivals(bench: Bench) -> None:
    arrivals, answered = [], []
    for number, events in enumerate(bench.submissions("single-", bench.workload["arrivals"])):
        started = time.process_time()
        effects = bench.batch(*events)
        arrivals.append(time.process_time() - started)
        answered.append(bench.settle(effects))
        submitted = events[1]
        assert isinstance(submitted, RequestsSubmitted)
        slots = tuple((spec.allocation_id, 0) for spec in submitted.requests)
        bench.settle(bench.batch(SlotsReleased(AT, f"single-{number}", slots)))
    median = statistics.median(arrivals)
    show("a 10-slot job arrives: until commands (median)", median, f"max {max(arrivals) * 1e3:.2f}")
    show("  and its answers (median)", statistics.median(answered))


def run_questions(bench: Bench) -> None:
    """Explains a request that fits on no host, because all hosts are full or drained."""
    for name, host in bench.state.hosts.items():
        if not host.slots:
            bench.batch(DrainRequested(AT, name))
    whole = ResourceProfile(bench.workload["hosts"]["cpu_milli"], 64 * MIB)
    bench.batch(
        JobRegistered(AT, "asker", "asker", "default", None, "s", "r"),
        RequestsSubmitted(AT, "asker", (RequestSpec("whole-host", whole),)),
    )
    for what, ask in (
        ("explain why a request waits", lambda: explain(bench.state, "whole-host")),
        ("sums of the cluster", lambda: at_once(cluster_view(bench.state))),
    ):
        seconds = []
        for _ in range(3):
            started = time.process_time()
            ask()
            seconds.append(time.process_time() - started)
        show(what, statistics.median(seconds))
    bench.batch(RequestsCancelled(AT, "asker", ("whole-host",)))


STRATEGIES: dict[str, dict[str, Any]] = {
    "first-fit": {"strategy": "pack", "pack_candidates": 1},
    "pack": {"strategy": "pack"},
    "spread": {"strategy": "spread"},
    "balanced": {"strategy": "balanced"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--strategy", choices=STRATEGIES, action="append")
    parser.add_argument("--candidates", type=int, help="hosts that pack compares")
    parser.add_argument("--passes", type=int, default=5, help="counted passes")
    parser.add_argument("--workload", type=Path)
    arguments = parser.parse_args()
    if arguments.workload:
        workload = json.loads(arguments.workload.read_text())
    else:
        workload = gen_workload(arguments.hosts, arguments.slots)
    gc.disable()
    for name in arguments.strategy or ["first-fit", "pack"]:
        chosen = dict(STRATEGIES[name])
        if name == "pack" and arguments.candidates:
            chosen["pack_candidates"] = arguments.candidates
        settings = EngineSettings(memory_bytes_min=0, **chosen)
        print(f"{workload['hosts']['count']} hosts, {name}")
        run_counted(workload, settings, arguments.passes)
        run_expanded(Bench(workload, settings))
        gc.collect()


if __name__ == "__main__":
    main()

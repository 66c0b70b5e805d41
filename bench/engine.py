"""Measures the resource manager's engine alone: no database, no RPC, virtual executors that always
agree.

    python bench/engine.py [--hosts 100] [--slots 1000] [--strategy pack] [--candidates 8]
        [--workload FILE]

Prints, as CPU time of this process: one pass over everything from empty, with registration before
it and the answers after it; the arrival of 10-slot jobs at the filled cluster, one at a time, each
answered and released again; one full report of every host; and the release of everything. "hosts
used" is after the pass.

The workload is the one of `gen_workload` below (N equal hosts of 16 cores and 64 GiB with a pool
per memory part, 24 slot profiles, jobs of 5 to 100 slots over 2 to 5 of them), made anew from a
fixed seed, or read from a file of the same format ("finegrain-wl-1").
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from finegrain.resources import MIB, ResourceProfile, booking, subtract, total_of
from resource_manager.engine.effects import Effect, SendAllocate, SendFree
from resource_manager.engine.entities import (
    Instant,
    Registration,
    Report,
    ReportedSlot,
    RequestSpec,
    SlotState,
)
from resource_manager.engine.events import (
    CommandAnswered,
    Decide,
    Event,
    ExecutorRegistered,
    ItemOutcome,
    JobRegistered,
    RequestsSubmitted,
    SlotsReleased,
    SlotsReported,
)
from resource_manager.engine.settings import EngineSettings
from resource_manager.engine.state import State
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
    """Sebastiano Vigna's SplitMix64: small, and the same everywhere."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, n: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % n


def gen_workload(hosts: int, slots: int, arrivals: int = 200) -> dict[str, Any]:
    """The workload; same arguments, same result."""
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
    singles = [
        [[profile_id, count] for profile_id, count in zip(distinct(3), (4, 3, 3), strict=True)]
        for _ in range(arrivals)
    ]
    return {
        "hosts": dict(_HOST, count=hosts),
        "profiles": profiles,
        "jobs": jobs,
        "arrivals": singles,
    }


class Bench:
    """A cluster whose executors agree with every order at once."""

    def __init__(self, workload: dict[str, Any], settings: EngineSettings) -> None:
        self.workload = workload
        self.state = State.fresh(settings, 1, AT)
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
        host = workload["hosts"]
        self.total = {
            "cpu_milli": host["cpu_milli"],
            "task_heap_memory_bytes": host["heap_mb"] * MIB,
            "task_off_heap_memory_bytes": host["offheap_mb"] * MIB,
            "managed_memory_bytes": host["managed_mb"] * MIB,
            "network_memory_bytes": host["network_mb"] * MIB,
        }
        self.tables: dict[str, dict[tuple[str, int], ReportedSlot]] = {}
        self.numbers: dict[str, int] = {}

    def batch(self, *events: Event) -> list[Effect]:
        """Events and a decision, as the service takes them; what changed is taken and dropped."""
        effects: list[Effect] = []
        for event in (*events, Decide(AT)):
            effects.extend(step(self.state, event).effects)
        self.state.take_changes()
        return effects

    def registrations(self) -> list[Event]:
        events: list[Event] = []
        for number in range(self.workload["hosts"]["count"]):
            name = f"host-{number:06d}"
            self.tables[name] = {}
            self.numbers[name] = 1
            registration = Registration(
                name, name, f"{name}:7000", self.total, {}, self.profiles[0]
            )
            events.append(
                ExecutorRegistered(AT, registration, Report(1, 0, 0, available=self.total))
            )
        return events

    def submissions(self, prefix: str, jobs: list[list[list[int]]]) -> Iterator[list[Event]]:
        for number, entries in enumerate(jobs):
            job_id = f"{prefix}{number}"
            specs = tuple(
                RequestSpec(f"{job_id}.{entry}.{index}", self.profiles[profile_id])
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
        booked = total_of(booking(slot.profile, separate_pools=True) for slot in slots)
        available = subtract(self.total, booked)
        return Report(self.numbers[name], 1, command_number, False, 0, tuple(slots), available)

    def answers(self, effects: list[Effect]) -> list[Event]:
        """What the executors answer to these commands."""
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
        """Answers until nothing is left to answer; CPU seconds of the engine."""
        spent = 0.0
        while events := self.answers(effects):
            started = time.process_time()
            effects = self.batch(*events)
            spent += time.process_time() - started
        return spent


def show(what: str, seconds: float, note: str = "") -> None:
    print(f"{what:<44}{seconds * 1_000:>12.2f} ms  {note}")


def run(bench: Bench) -> None:
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
    show("take in all jobs and requests", time.process_time() - started)
    seconds, effects = timed()
    used = sum(bool(host.slots) for host in bench.state.hosts.values())
    show("place everything and write the commands", seconds, f"hosts used {used}")
    show("take in all answers", bench.settle(effects))

    arrivals, answered = [], []
    for number, events in enumerate(bench.submissions("single-", bench.workload["arrivals"])):
        seconds, effects = timed(*events)
        arrivals.append(seconds)
        answered.append(bench.settle(effects))
        submitted = events[1]
        assert isinstance(submitted, RequestsSubmitted)
        slots = tuple((spec.allocation_id, 0) for spec in submitted.requests)
        bench.settle(bench.batch(SlotsReleased(AT, f"single-{number}", slots)))
    median = statistics.median(arrivals)
    show("a 10-slot job arrives: until commands (median)", median, f"max {max(arrivals) * 1e3:.2f}")
    show("  and its answers (median)", statistics.median(answered))

    reports: list[Event] = [
        SlotsReported(AT, name, name, 1, bench.report(name, host.executor.command_number))
        for name, host in bench.state.hosts.items()
    ]
    show("one full report of every host", timed(*reports)[0])
    releases: list[Event] = []
    for job_id, job in bench.state.jobs.items():
        if job.slot_keys:
            releases.append(SlotsReleased(AT, job_id, tuple((key[0], 0) for key in job.slot_keys)))
    seconds, effects = timed(*releases)
    show("release everything: until commands", seconds)
    show("  and its answers", bench.settle(effects))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, default=1_000)
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--strategy", choices=["pack", "spread"], default="pack")
    parser.add_argument("--candidates", type=int, default=EngineSettings().pack_candidates)
    parser.add_argument("--workload", type=Path)
    arguments = parser.parse_args()
    if arguments.workload:
        workload = json.loads(arguments.workload.read_text())
    else:
        workload = gen_workload(arguments.hosts, arguments.slots)
    settings = EngineSettings(
        strategy=arguments.strategy, pack_candidates=arguments.candidates, memory_bytes_min=0
    )
    print(f"{workload['hosts']['count']} hosts, {arguments.strategy}", file=sys.stderr)
    gc.disable()
    run(Bench(workload, settings))


if __name__ == "__main__":
    main()

"""Measures the cost of placing slots with dedicated cpus, without database and RPC. Simulated
executors accept every order.

    python -m bench.pinned [--hosts 1000 --hosts 10000] [--strict 0] [--slots 300]

Each host has two packages. Each package is a NUMA node of eight cores with two threads. Nine of ten
hosts are nearly full: a pinned slot has one thread of each core, and a plain slot has most of the
other threads. For each number of hosts, the benchmark prints the CPU time of this process per slot,
from the call until the command is written:

- slots that are placed and released one after the other (median and maximum). There are four kinds:
  plain slots, pinned slots, slots with whole cores, and slots on one NUMA node;
- many pinned slots of one job at once;
- a slot that the index excludes on all hosts;
- a slot that fits on no host, although the index admits it on all hosts. Measured are the first
  search, and the end of a slot with the search that follows;
- the rejection of a request that would not fit even on an empty host.

With `--strict N`, N hosts align all slots. Requests that name only amounts are also placed on these
hosts.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    ExclusivePolicy,
    NumaPolicy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import GIB, MIB, ResourceProfile, booking, subtract, total_of
from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import SlotState
from resource_manager.engine.model.effects import Effect, SendAllocate, SendFree
from resource_manager.engine.model.entities import Instant, Registration, RequestSpec
from resource_manager.engine.model.events import (
    CommandAnswered,
    Decide,
    Event,
    ExecutorRegistered,
    JobRegistered,
    RequestsSubmitted,
    SlotsReleased,
)
from resource_manager.engine.model.reported import Report, ReportedSlot
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.restoring import fresh
from resource_manager.engine.state import State
from resource_manager.engine.step import step

AT = Instant(0, 1_700_000_000_000)
NODES, CORES, THREADS = 2, 8, 2
CPUS = NODES * CORES * THREADS
TOTAL = {
    "cpu_milli": 1_000 * CPUS,
    "best_effort_cpu_milli": 1_000 * CPUS,
    "memory_bytes": 128 * GIB,
}

LSR = CpuPolicy(QosClass.LSR)
WHOLE = CpuPolicy(QosClass.LSR, BindPolicy.FULL_PCPUS, bind_required=True)
ONE_NODE = CpuPolicy(QosClass.LSR, numa=NumaPolicy.SINGLE_NUMA_NODE, numa_required=True)
APART = CpuPolicy(
    QosClass.LSR,
    BindPolicy.SPREAD_BY_PCPUS,
    bind_required=True,
    exclusive=ExclusivePolicy.PCPU_LEVEL,
    exclusive_required=True,
)


def topology() -> str:
    """Returns the topology that all hosts have."""
    whole = NODES * CORES
    cores = [CpuSet(core + thread * whole for thread in range(THREADS)) for core in range(whole)]
    return json.dumps(
        {
            "online_cpus": f"0-{CPUS - 1}",
            "allowed_cpus": f"0-{CPUS - 1}",
            "cores": [
                {"cpus": str(each), "package_index": at // CORES, "numa_node_id": at // CORES}
                for at, each in enumerate(cores)
            ],
            "numa_nodes": [
                {
                    "numa_node_id": node,
                    "memory_bytes": 64 * GIB,
                    "distances": [10, 20][:: 1 - 2 * node],
                }
                for node in range(NODES)
            ],
        }
    )


def announced(*, strict: bool) -> str:
    """Returns the description of a host's cpus, as the text that a registration stores."""
    numa = [{"numa_node_id": node, "memory_bytes": 64 * GIB} for node in range(NODES)]
    policy = {"policy": {"alignment": "SingleNUMANode"}} if strict else {}
    return json.dumps({"slot_cpus": f"0-{CPUS - 1}", "numa": numa, **policy})


@dataclass
class Cluster:
    """Runs the engine with hosts that accept every order at once."""

    hosts: int
    strict: int = 0
    state: State = field(default_factory=lambda: fresh(EngineSettings(memory_bytes_min=0), 1, AT))
    tables: dict[str, dict[tuple[str, int], ReportedSlot]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    made: int = 0

    def register(self) -> None:
        known = topology()
        events: list[Event] = []
        for number in range(self.hosts):
            name = f"host-{number:06d}"
            self.tables[name], self.numbers[name] = {}, 1
            registration = Registration(
                name,
                name,
                f"{name}:7000",
                TOTAL,
                {},
                ResourceProfile(1_000, 256 * MIB),
                topology=known,
                host_cpus=announced(strict=number < self.strict),
            )
            events.append(ExecutorRegistered(AT, registration, Report(1, 0, 0, available=TOTAL)))
        self.batch(*events, JobRegistered(AT, "job", "job", "default", None, "s", "r"))

    def decide(self, *events: Event) -> list[Effect]:
        """Applies events, then makes one decision, which places requests until its budget is used
        up.
        """
        effects: list[Effect] = []
        for event in (*events, Decide(AT)):
            effects.extend(step(self.state, event).effects)
        self.state.changes.take()
        return effects

    def batch(self, *events: Event) -> list[Effect]:
        """Applies events. Then decides until no work is left, in the same way as the service."""
        effects = self.decide(*events)
        while self.state.unfinished:
            effects += self.decide()
        return effects

    def timed(self, *events: Event) -> tuple[float, float]:
        """Applies events. Returns the CPU seconds until the commands are written, and until all
        answers are applied.
        """
        started = time.process_time()
        effects = self.batch(*events)
        first = spent = time.process_time() - started
        while answers := self.answers(effects):
            started = time.process_time()
            effects = self.batch(*answers)
            spent += time.process_time() - started
        return first, spent

    def looks(self, specs: tuple[Any, ...]) -> list[float]:
        """Returns the CPU seconds of each decision, until the engine has tried all requests without
        room.
        """
        spent: list[float] = []
        events: list[Event] = [RequestsSubmitted(AT, "job", specs)]
        more = True
        while more:
            started = time.process_time()
            self.decide(*events)
            spent.append(time.process_time() - started)
            events, more = [], self.state.unfinished
        return spent

    def ask(self, count: int, cpu_milli: int, policy: CpuPolicy, mib: int = 64) -> tuple[Any, ...]:
        """Returns `count` equal requests."""
        profile = ResourceProfile(cpu_milli, mib * MIB)
        specs = []
        for _ in range(count):
            self.made += 1
            spec = RequestSpec(f"r{self.made}", profile, allow_pending=True, cpu_policy=policy)
            specs.append(spec)
        return tuple(specs)

    def place(self, specs: tuple[Any, ...]) -> float:
        return self.timed(RequestsSubmitted(AT, "job", specs))[0]

    def release(self, *names: str) -> float:
        return self.timed(SlotsReleased(AT, "job", tuple((name, 0) for name in names)))[1]

    def answers(self, effects: list[Effect]) -> list[Event]:
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
                        assignment=slot.assignment,
                    )
            else:
                keys = [(name, generation) for name, generation, _ in effect.slots]
                for key in keys:
                    del table[key]
            outcomes = tuple(ItemOutcome(name) for name, _ in keys)
            report = self.report(effect.executor_id, effect.command_number)
            events.append(
                CommandAnswered(AT, effect.executor_id, 1, effect.command_number, outcomes, report)
            )
        return events

    def report(self, name: str, command_number: int) -> Report:
        self.numbers[name] += 1
        slots = self.tables[name].values()
        booked = total_of(booking(slot.profile, separate_pools=False) for slot in slots)
        available = subtract(TOTAL, booked)
        return Report(self.numbers[name], 1, command_number, False, 0, tuple(slots), available)


def show(what: str, seconds: list[float], note: str = "") -> None:
    median, most = statistics.median(seconds) * 1e6, max(seconds) * 1e6
    print(f"  {what:<58}{median:>9.0f} us  at most {most:>8.0f}  {note}")


def one_by_one(cluster: Cluster, what: str, cpu_milli: int, policy: CpuPolicy, slots: int) -> None:
    spent = []
    for _ in range(slots):
        specs = cluster.ask(1, cpu_milli, policy)
        spent.append(cluster.place(specs))
        cluster.release(specs[0].allocation_id)
    show(f"one at a time: {what}", spent)


def run(hosts: int, strict: int, slots: int) -> None:
    cluster = Cluster(hosts, strict)
    cluster.register()
    print(f"{hosts} hosts, {strict} of which align every slot")
    # Place an exclusive slot with one thread of each core on most hosts, and plain slots on the
    # other threads.
    full = hosts * 9 // 10
    filling = cluster.ask(full, 1_000 * NODES * CORES, APART)
    seconds = cluster.place(filling)
    show("one decision, one thread of each core, per slot", [seconds / full], f"{full} slots")
    rest = cluster.ask(full, 1_000 * (NODES * CORES - 4), PLAIN)
    seconds = cluster.place(rest)
    show("one decision, plain, per slot", [seconds / full], f"{full} slots")
    one_by_one(cluster, "plain", 2_000, PLAIN, slots)
    one_by_one(cluster, "pinned, no bind policy", 2_000, LSR, slots)
    one_by_one(cluster, "pinned, whole cores", 4_000, WHOLE, slots)
    one_by_one(cluster, "pinned, on one NUMA node", 8_000, ONE_NODE, slots)
    many = cluster.ask(slots, 2_000, LSR)
    show("one decision, pinned, per slot", [cluster.place(many) / slots], f"{slots} slots")
    cluster.release(*(spec.allocation_id for spec in many))
    free = hosts - full
    cluster.place(cluster.ask(free, 1_000 * NODES * CORES, APART))
    specs = cluster.ask(1, 4_000, WHOLE)
    show("waits, the index excludes every host", [cluster.place(specs)])
    looks = cluster.looks(cluster.ask(1, 1_000, APART))
    note = f"{len(looks)} decisions, {sum(looks) * 1e3:.0f} ms in all"
    show("waits, enough cpus but none suitable: first decisions", looks, note)
    spent = [cluster.release(spec.allocation_id) for spec in rest[:slots]]
    show("  a slot is released, and the next decision", spent)
    specs = cluster.ask(1, 1_000 * CPUS, ONE_NODE)
    show("waits, no host would be suitable even when empty", [cluster.place(specs)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, action="append")
    parser.add_argument("--strict", type=int, default=0)
    parser.add_argument("--slots", type=int, default=300)
    arguments = parser.parse_args()
    gc.disable()
    for hosts in arguments.hosts or [1_000, 10_000]:
        run(hosts, min(hosts, arguments.strict), arguments.slots)
        gc.collect()


if __name__ == "__main__":
    main()

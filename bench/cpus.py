"""Measures the CPU time to choose the cpus and NUMA nodes of a slot on one large host.

    python -m bench.cpus [--repeat 20] [--seed 1] [--by-need]

There are three hosts. The first has two packages of 64 cores with two threads each (256 cpus, 2
NUMA nodes). The second has the same cpus on 8 NUMA nodes. The third has 8 NUMA nodes and eight
threads per core (1,024 cpus). The benchmark measures each host in three states: empty, half full
(slots of 4 cpus, node after node) and fragmented (half of the threads are in use, chosen at
random). It prints the CPU time of this process per decision, for slots of 2 to 200 cpus, including
slots that do not fit:

- choice of cpus: only `take`, for each bind policy and NUMA strategy;
- whole decision: `assign`, for each NUMA alignment policy. `assign` makes an assignment or a
  refusal from a request and the ledger of the host. "shared pool" is a slot without dedicated cpus;
- first decision of a kind: `assign` before the results for an empty host are in the cache. Equal
  hosts share the cached results.

Each row has the median and the maximum over the sizes and strategies.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product

from finegrain.cpu_assignment import CpuAssignment
from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from finegrain.cpuset import CpuSet
from finegrain.resources import CPU_MILLI, GIB, MEMORY_BYTES
from resource_manager.engine.cpus import empty_hosts
from resource_manager.engine.cpus.assign import assign
from resource_manager.engine.cpus.layout import CpuLayout, Node, layout_of_rows
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.take import CpuDemand, ExclusiveClaims, take

NEEDS = (2, 8, 20, 50, 100, 200)
BINDS = (BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
LEVELS = (ExclusivePolicy.NONE, ExclusivePolicy.PCPU_LEVEL, ExclusivePolicy.NUMA_NODE_LEVEL)
ALIGNMENTS = (
    NumaPolicy.NONE,
    NumaPolicy.BEST_EFFORT,
    NumaPolicy.RESTRICTED,
    NumaPolicy.SINGLE_NUMA_NODE,
)


def host(packages: int, nodes: int, cores: int, threads: int) -> CpuLayout:
    """Returns a host whose packages have equal numbers of nodes, cores per node and threads per
    core.
    """
    total = packages * nodes * cores
    rows = [
        (thread * total + core, core, core // cores, core // (cores * nodes))
        for core in range(total)
        for thread in range(threads)
    ]
    layout = layout_of_rows(rows, memory_bytes=256 * GIB)
    far = [
        replace(node, distances=tuple(_distance(node, other) for other in layout.nodes))
        for node in layout.nodes
    ]
    return CpuLayout(layout.cores, tuple(far), layout.packages, layout.pinnable)


def _distance(one: Node, other: Node) -> int:
    if one is other:
        return 10
    return 12 if one.packages == other.packages else 32


HOSTS = {
    "256 cpus, 2 NUMA nodes": host(2, 1, 64, 2),
    "256 cpus, 8 NUMA nodes": host(2, 4, 16, 2),
    "1,024 cpus, 8 NUMA nodes, SMT8": host(4, 2, 16, 8),
}


def held_cpus(layout: CpuLayout, state: str, seed: int) -> list[CpuSet]:
    """Returns the cpus of each slot on the host, in one of the states of the benchmark."""
    if state == "half full":
        half = layout.cpus.bit_count() // 2
        threads = [cpu for node in layout.nodes for cpu in CpuSet.from_bits(node.mask)]
        return [CpuSet(threads[at : at + 4]) for at in range(0, half, 4)]
    if state == "fragmented":
        rng = random.Random(seed)
        return [CpuSet.of(cpu) for cpu in CpuSet.from_bits(layout.cpus) if rng.random() < 0.5]
    return []


def filled(layout: CpuLayout, held: list[CpuSet], strategy: NumaStrategy) -> CpuLedger:
    """Returns the ledger of the host. Every third slot is exclusive on its cores or nodes."""
    ledger = CpuLedger(layout, EffectivePolicy(numa_strategy=strategy))
    for number, cpus in enumerate(held):
        level = LEVELS[number % len(LEVELS)] if number < 24 else ExclusivePolicy.NONE
        ledger.add(("held", number), CpuAssignment(QosClass.LSR, cpus=cpus, exclusive=level))
    return ledger


def timed(call: Callable[[], object], repeat: int) -> float:
    """Returns the CPU time per call, in seconds."""
    started = time.process_time()
    for _ in range(repeat):
        call()
    return (time.process_time() - started) / repeat


Sample = tuple[int, float]  # needed cpus and seconds


def show(what: str, samples: list[Sample], by_need: bool) -> None:
    seconds = [each for _, each in samples]
    median, worst = statistics.median(seconds) * 1e6, max(seconds) * 1e6
    line = f"  {what:<52}{median:>6.0f} us, worst {worst:>6.0f} us"
    if by_need:
        medians = (
            statistics.median(took for need, took in samples if need == each) * 1e6
            for each in dict.fromkeys(need for need, _ in samples)
        )
        line += "  by need: " + " ".join(f"{each:.0f}" for each in medians)
    print(line)


def choices(ledger: CpuLedger, bind: BindPolicy, repeat: int) -> Iterator[Sample]:
    """Measures `take` with one bind policy, for every exclusive policy and size."""
    claims = ExclusiveClaims(ledger.claimed_cores, ledger.claimed_nodes)
    for need, level in product(NEEDS, LEVELS):
        strategy = ledger.policy.numa_strategy
        demand = CpuDemand(need, bind, exclusive=level, strategy=strategy)
        for each in (demand, replace(demand, bind_required=True)):
            call = partial(take, ledger.layout, ledger.free, claims, each)
            yield need, timed(call, repeat)


def decisions(
    ledger: CpuLedger, alignment: NumaPolicy, qos: QosClass, repeat: int, *, cold: bool = False
) -> Iterator[Sample]:
    """Measures `assign` with one alignment policy, for every bind policy, exclusive policy and
    size.
    """
    any_policy = CpuPolicy(qos, numa=alignment, numa_required=alignment is not NumaPolicy.NONE)
    policies = [any_policy]
    if qos.is_pinned:
        policies = [
            replace(any_policy, bind=bind, exclusive=level)
            for bind, level in product(BINDS, LEVELS)
        ]
    for need, policy in product(NEEDS, policies):
        demand = CpuRequest(policy, ((CPU_MILLI, need * 1_000), (MEMORY_BYTES, need * GIB)))

        def decide(demand: CpuRequest = demand) -> object:
            if cold:
                empty_hosts.fewest_nodes_when_empty.cache_clear()
            return assign(ledger, demand)

        decide()
        yield need, timed(decide, repeat)


def run(layout: CpuLayout, state: str, options: argparse.Namespace) -> None:
    held = held_cpus(layout, state, options.seed)
    ledgers = [filled(layout, held, strategy) for strategy in NumaStrategy]
    repeat, by_need = options.repeat, options.by_need
    for bind in BINDS:
        for ledger in ledgers:
            samples = list(choices(ledger, bind, repeat))
            show(f"choice of cpus: {bind}, {ledger.policy.numa_strategy}", samples, by_need)
    for qos, what in ((QosClass.LSR, ""), (QosClass.LS, ", shared pool")):
        for alignment in ALIGNMENTS:
            samples = [
                each for ledger in ledgers for each in decisions(ledger, alignment, qos, repeat)
            ]
            show(f"whole decision: {alignment}{what}", samples, by_need)
    samples = [
        each
        for ledger in ledgers
        for alignment in ALIGNMENTS
        for each in decisions(ledger, alignment, QosClass.LSR, max(repeat // 10, 1), cold=True)
    ]
    show("first decision of a kind", samples, by_need)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--repeat", type=int, default=20, help="calls per figure")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random allocations")
    parser.add_argument("--by-need", action="store_true", help="also print medians for each need")
    options = parser.parse_args()
    gc.disable()
    for name, layout in HOSTS.items():
        for state in ("empty", "half full", "fragmented"):
            print(f"{name}, {state}:")
            run(layout, state, options)
            gc.collect()


if __name__ == "__main__":
    main()

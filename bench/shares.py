"""Measures the shares of groups with slots of unequal sizes, against the best attainable shares.

    python -m bench.shares [--mixes 30] [--minutes 20] [--seed 1]

Each mix has three simulated hosts with 8 cores and 32 GiB, and two to four groups with work until
the end. The slots of a group are heavy in cpu or in memory, and run for 10 to 30 s. Usage is the
dominant share. The first fifth of the time is not measured.

The reference is the fluid schedule with dominant shares (DRF; Ghodsi et al. 2011) on the hosts as
they are: all groups get the same multiple of their weight, and this multiple is as large as whole
slots on whole hosts allow. This multiple is the value of a game, which `attainable` solves by
multiplicative weights.

For each mix, the benchmark prints the largest shortfall of any group against the reference, and the
mean fraction in use of cpu or of memory; the larger of both fractions counts.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp

from finegrain.resources import CPU_MILLI, GIB, MEMORY_BYTES, ResourceProfile
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.drawing import table_text
from resource_manager.simulator.log import by_group
from resource_manager.simulator.nodes import Node

HOSTS, CPU, MEMORY = 3, 8_000, 32 * GIB
SIZES = (
    (500, 4),  # thousandths of a core, GiB
    (500, 6),
    (1_000, 6),
    (1_000, 8),
    (1_000, 1),
    (2_000, 1),
    (2_000, 2),
    (4_000, 4),
)
ROUNDS = 4_000
"""With this number of rounds, the reference is exact to about 1 %."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group, and the size of its slots."""

    name: str
    weight: int
    cpu_milli: int
    memory_gib: int

    @property
    def cost(self) -> float:
        """The dominant share of one slot."""
        return max(self.cpu_milli / (HOSTS * CPU), self.memory_gib * GIB / (HOSTS * MEMORY))


def mix(chance: random.Random) -> list[Group]:
    """Returns the groups of one mix."""
    sizes = chance.sample(SIZES, chance.randint(2, 4))
    return [Group(f"g{at}", chance.choice((1, 1, 2, 4)), *size) for at, size in enumerate(sizes)]


def packings(groups: Sequence[Group]) -> list[tuple[int, ...]]:
    """Returns all numbers of slots of each group that fit together on one host."""

    def fill(at: int, cpu: int, gib: int) -> Iterator[tuple[int, ...]]:
        if at == len(groups):
            yield ()
            return
        group = groups[at]
        for count in range(min(cpu // group.cpu_milli, gib // group.memory_gib) + 1):
            for rest in fill(at + 1, cpu - count * group.cpu_milli, gib - count * group.memory_gib):
                yield (count, *rest)

    return list(fill(0, CPU, MEMORY // GIB))


def attainable(groups: Sequence[Group]) -> float:
    """Returns the largest dominant share per weight that all groups can have at the same time, on
    average over time.
    """
    gains = [
        [
            HOSTS * count * group.cost / group.weight
            for count, group in zip(each, groups, strict=True)
        ]
        for each in packings(groups)
    ]
    largest = max(map(max, gains))
    had = [0.0] * len(groups)
    for _ in range(ROUNDS):
        # The weight of a group is higher if the group has had less until now.
        least = min(had)
        counts = [exp(-0.05 * (each - least) / largest) for each in had]
        best = max(gains, key=lambda gain: sum(map(float.__mul__, counts, gain)))
        had = [one + more for one, more in zip(had, best, strict=True)]
    return min(had) / ROUNDS


def run(groups: Sequence[Group], minutes: float, seed: int) -> tuple[list[float], float, int]:
    """Returns the mean dominant share of each group, the fraction in use, and the reservations."""
    nodes = [Node(f"node-{at}", {CPU_MILLI: CPU, MEMORY_BYTES: MEMORY}) for at in range(HOSTS)]
    fairness = Fairness(usage_measure="dominant")
    cluster = Cluster(nodes, EngineSettings(fairness=fairness))
    end_ms = round(minutes * 60_000)
    for at, group in enumerate(groups):
        chance = random.Random(f"{seed}/{at}")
        cluster.set_group(group.name, weight=group.weight)
        count = 2 * HOSTS * CPU // group.cpu_milli * (end_ms // 20_000 + 1)
        cluster.submit(
            group.name,
            [chance.randrange(10_000, 30_000) for _ in range(count)],
            group=group.name,
            profile=ResourceProfile(group.cpu_milli, task_heap_memory_bytes=group.memory_gib * GIB),
        )
    cluster.run(end_ms)
    running = cluster.log.running(by_group)
    slots = [
        running[group.name].mean(end_ms // 5, end_ms) if group.name in running else 0.0
        for group in groups
    ]
    shares = [each * group.cost for each, group in zip(slots, groups, strict=True)]
    cpu = sum(each * group.cpu_milli for each, group in zip(slots, groups, strict=True))
    memory = sum(each * group.memory_gib * GIB for each, group in zip(slots, groups, strict=True))
    used = max(cpu / (HOSTS * CPU), memory / (HOSTS * MEMORY))
    return shares, used, cluster.events["reservation_made"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--mixes", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows, worst, use = [], [], []
    for number in range(args.mixes):
        groups = mix(random.Random(f"{args.seed}/{number}"))
        shares, used, made = run(groups, args.minutes, number)
        best = attainable(groups)
        lacks = [
            1 - share / (best * group.weight) for share, group in zip(shares, groups, strict=True)
        ]
        worst.append(max(0.0, *lacks))
        use.append(used)
        sizes = ", ".join(
            f"{group.cpu_milli / 1000:g} cpu {group.memory_gib} GiB x{group.weight}"
            for group in groups
        )
        text = " ".join(f"{each:+.1%}" for each in lacks)
        rows.append([sizes, text, f"{worst[-1]:.1%}", f"{used:.1%}", str(made)])
    print(table_text(["slots x weight", "shortfalls", "largest", "in use", "reservations"], rows))
    mean = sum(worst) / len(worst)
    print(
        f"largest shortfall: mean {mean:.1%}, most {max(worst):.1%};"
        f" in use {sum(use) / len(use):.1%}"
    )


if __name__ == "__main__":
    main()

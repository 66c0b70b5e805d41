"""Measures the shares of jobs whose threads have different sizes.

    python -m bench.sizes [--hosts 6] [--mean 20] [--hours 1]

Simulated hosts have 4 cores, and time is virtual. Usage is counted in cores. A job with threads of
one core has all cores when another job arrives, whose threads need 2, 3 or 4 cores. The two jobs
have work until the end, so each job should get half of the cores. The core of a small thread that
ends is too little for a large thread, so only reservations make room for large threads. A
reservation begins after `starvation_timeout`, which is 1 or 5 minutes in this benchmark. For each
size and timeout, the benchmark prints the mean cores of the job with large threads in each quarter
of the time. It also prints the fair share of this job, the number of reservations, and the fraction
of the capacity in use.
"""

from __future__ import annotations

import argparse
import random
from itertools import pairwise

from finegrain.resources import ResourceProfile
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.simulator.cluster import Cluster
from resource_manager.simulator.drawing import table_text
from resource_manager.simulator.log import by_job, cores
from resource_manager.simulator.nodes import equal_nodes

CORES = 4
COMES_MS = 60_000


def row(size: int, timeout_s: int, hosts: int, mean_s: int, hours: float) -> list[str]:
    """Returns one line of the table."""
    fairness = Fairness(usage_measure="cpu", starvation_timeout_ms=timeout_s * 1_000)
    cluster = Cluster(equal_nodes(hosts, CORES), EngineSettings(fairness=fairness))
    end_ms = round(hours * 3_600_000)
    for name, each, at_ms in (("small", 1, 0), ("large", size, COMES_MS)):
        chance = random.Random(each)
        count = end_ms * hosts * CORES // (mean_s * 1_000 * each) + hosts * CORES
        durations = [chance.randrange(mean_s * 500, mean_s * 1_500) for _ in range(count)]
        cluster.submit(name, durations, profile=ResourceProfile(each * 1_000), at_ms=at_ms)
    cluster.run(end_ms)
    running = cluster.log.running(by_job, cores)
    ends = [COMES_MS + (end_ms - COMES_MS) * quarter // 4 for quarter in range(5)]
    had = [running["large"].mean(*each) if "large" in running else 0.0 for each in pairwise(ends)]
    used = sum(each.mean(COMES_MS, end_ms) for each in running.values()) / (hosts * CORES)
    means = [f"{each:.1f}" for each in had]
    made = str(cluster.events["reservation_made"])
    return [str(size), f"{timeout_s} s", *means, f"{hosts * CORES / 2:g}", made, f"{used:.1%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--mean", type=int, default=20, help="mean duration of a thread in seconds")
    parser.add_argument("--hours", type=float, default=1.0)
    args = parser.parse_args()
    rows = [
        row(size, timeout_s, args.hosts, args.mean, args.hours)
        for size in (2, 3, 4)
        for timeout_s in (60, 300)
    ]
    quarters = [f"quarter {number}" for number in range(1, 5)]
    print(table_text(["cores", "timeout", *quarters, "fair", "reservations", "in use"], rows))


if __name__ == "__main__":
    main()

"""Measures the planning of executors: which executors to request for a backlog.

    python -m bench.planning [--requests 10000] [--shapes 20] [--passes 5]

For each backlog, the benchmark prints the least and the median CPU time of this process for one
plan. It also prints the number of executors that the plan requests, and compares their cost with a
lower bound. The bound is the linear relaxation, in which executors and requests can be divided. The
backlogs are:

- three backlogs: equal requests; 24 and 1,000 different requests; requests that are all different;
- requests that are all different: with a tenth of the executors already requested, and with all
  executors requested;
- requests that are all different, with limits on the totals: the plan can serve about a third of
  them. Then the same backlog with a tenth of the executors already requested. Then the same backlog
  in three zones, where every second request names a zone;
- large requests that nearly fill an executor.

At the end, the whole engine plans for requests that are all different. The benchmark prints the
number of decisions of the planning pass, the time of the longest decision, and the total time.

Executor shapes have 4 to 64 cpus, with 2 to 8 GiB for each cpu. The price of a shape is
proportional to its size, plus or minus a tenth. All random numbers come from a fixed seed.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from dataclasses import replace

from bench.engine import AT, Bench
from finegrain.resources import GIB, MEMORY_GRAIN_BYTES, MIB, ResourceProfile
from resource_manager.engine.model.entities import Instant, RequestSpec
from resource_manager.engine.model.events import Decide, JobRegistered, RequestsSubmitted
from resource_manager.engine.model.scheduling_key import SLOTS
from resource_manager.engine.model.settings import EngineSettings, ExecutorShape, Provisioning
from resource_manager.engine.placement.elastic import Capacity
from resource_manager.engine.planning.draft import Supply
from resource_manager.engine.planning.packing import Demand
from resource_manager.engine.planning.planning import Backlog, Plan, make_plan
from resource_manager.engine.step import step

SEED = 20251120


def supplies(count: int, chance: random.Random) -> list[Supply]:
    """Returns executor shapes."""
    made = []
    for _ in range(count):
        cpus = chance.choice([4, 8, 16, 32, 64])
        total = {"cpu_milli": cpus * 1_000, "memory_bytes": cpus * chance.choice([2, 4, 8]) * GIB}
        price = cpus * 0.03 + total["memory_bytes"] / GIB * 0.004
        made.append(Supply(_capacity(total), total, price * chance.uniform(0.9, 1.1)))
    return made


def _capacity(total: dict[str, int]) -> Capacity:
    return Capacity(
        {
            "cpu_milli": total["cpu_milli"],
            "memory_bytes": total["memory_bytes"] // MEMORY_GRAIN_BYTES,
            SLOTS: 1 << 53,
        }
    )


def backlog(
    requests: int, different: int, shapes: list[Supply], chance: random.Random, cpus_max: float = 4
) -> Backlog:
    """Returns requests of several kinds in random order."""
    demands = []
    for _ in range(different):
        amounts = {
            "cpu_milli": chance.randrange(100, int(cpus_max * 1_000)),
            "memory_bytes": chance.randrange(128 * MIB, int(cpus_max * 4) * GIB)
            // MEMORY_GRAIN_BYTES,
            SLOTS: 1,
        }
        demands.append(Demand(amounts, amounts))
    line = [(number % different, 1) for number in range(requests)]
    chance.shuffle(line)
    return Backlog(demands, _runs(line), shapes)


def labelled(asked: Backlog, chance: random.Random) -> Backlog:
    """Returns a backlog in three zones; every second request names a zone."""
    zones = [{"zone": name} for name in "abc"]
    demands = [
        replace(each, labels=tuple(chance.choice(zones).items())) if at % 2 else each
        for at, each in enumerate(asked.demands)
    ]
    shapes = [
        replace(each, capacity=replace(each.capacity, labels=zones[at % 3]))
        for at, each in enumerate(asked.supplies)
    ]
    there = replace(asked, demands=demands, supplies=shapes, limits={})
    new = make_plan(there).new[::10]
    on_the_way = {f"e{at}": shapes[each.supply].capacity for at, each in enumerate(new)}
    kept = {f"e{at}": each.content for at, each in enumerate(new)}
    return replace(there, pending=on_the_way, kept=kept, limits=asked.limits)


def _runs(line: list[tuple[int, int]]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for kind, count in line:
        if runs and runs[-1][0] == kind:
            runs[-1] = kind, runs[-1][1] + count
        else:
            runs.append((kind, count))
    return runs


def bound(asked: Backlog, plan: Plan) -> float:
    """Returns a lower bound of the cost of executors that serve the same requests as the plan.

    The function solves the dual of the linear relaxation. It looks for prices of cpu and memory at
    which no executor is worth more than its cost. Among these prices, it finds those at which the
    served amounts have the largest value. At the optimum, two of these conditions are equalities.
    """
    cpu = memory = 0
    for new in plan.new:
        for kind, count in new.content.items():
            amounts = asked.demands[kind].pooled
            cpu += amounts["cpu_milli"] * count
            memory += amounts["memory_bytes"] * count
    rows = [
        (each.capacity.amounts["cpu_milli"], each.capacity.amounts["memory_bytes"], each.cost)
        for each in asked.supplies
    ]
    rows += [(-1, 0, 0.0), (0, -1, 0.0)]
    best = 0.0
    for a, b, c in rows:
        for d, e, f in rows:
            if (determinant := a * e - b * d) == 0:
                continue
            x, y = (c * e - b * f) / determinant, (a * f - c * d) / determinant
            if all(x * g + y * h <= i + 1e-9 for g, h, i in rows):
                best = max(best, x * cpu + y * memory)
    return best


def measure(title: str, asked: Backlog, passes: int) -> Plan:
    """Prints a line about one backlog."""
    taken: list[float] = []
    for _ in range(passes):
        gc.collect()
        began = time.process_time()
        plan = make_plan(asked)
        taken.append((time.process_time() - began) * 1_000)
    cost = sum(asked.supplies[new.supply].cost for new in plan.new)
    least = bound(asked, plan) if plan.new else 0.0
    print(
        f"{title:36} {min(taken):7.1f} {statistics.median(taken):7.1f} ms  "
        f"{len(plan.new):6} executors, cost {cost:9.1f}"
        + (f" ({cost / least:.3f} of the bound)" if least else "")
        + (f", {sum(plan.left.values())} left" if plan.left else "")
    )
    return plan


def through_engine(asked: Backlog) -> None:
    """Prints how long the decisions of a planning pass take."""
    default = ResourceProfile(1_000, 256 * MIB)
    shapes = tuple(
        ExecutorShape(f"shape-{at}", "bench", each.total, default, cost=each.cost)
        for at, each in enumerate(asked.supplies)
    )
    bench = Bench(
        {"profiles": [], "hosts": None}, EngineSettings(provisioning=Provisioning(shapes))
    )
    bench.batch(JobRegistered(AT, "job", "job", "default", None, "s", "r"))
    profiles = [
        ResourceProfile(each.pooled["cpu_milli"], each.pooled["memory_bytes"] * MEMORY_GRAIN_BYTES)
        for each in asked.demands
    ]
    specs = [RequestSpec(f"r{at}", profiles[kind]) for at, (kind, _) in enumerate(asked.queue)]
    for start in range(0, len(specs), 100):
        bench.batch(RequestsSubmitted(AT, "job", tuple(specs[start : start + 100])))
    gc.collect()
    gc.disable()
    later = Instant(AT.monotonic_ms + 2_000, AT.time_ms + 2_000)
    taken: list[float] = []
    while not taken or bench.state.unfinished:
        began = time.process_time()
        step(bench.state, Decide(later))
        taken.append((time.process_time() - began) * 1_000)
        bench.state.changes.take()
    print(
        f"through the engine: {len(taken)} decisions, longest {max(taken):.1f} ms, in all"
        f" {sum(taken):.0f} ms, {len(bench.state.provisions)} executors"
    )


def main() -> None:
    """Runs all backlogs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--shapes", type=int, default=20)
    parser.add_argument("--passes", type=int, default=5)
    options = parser.parse_args()
    chance = random.Random(SEED)
    shapes = supplies(options.shapes, chance)
    requests = options.requests
    print(f"{requests} requests, {len(shapes)} executor shapes: least and median CPU time")
    for different in (1, 24, min(1_000, requests)):
        title = "all equal" if different == 1 else f"{different} different"
        measure(title, backlog(requests, different, shapes, chance), options.passes)
    asked = backlog(requests, requests, shapes, chance)
    plan = measure("all different", asked, options.passes)
    some = plan.new[: len(plan.new) // 10]
    on_the_way = {f"e{number}": shapes[new.supply].capacity for number, new in enumerate(some)}
    kept = {f"e{number}": new.content for number, new in enumerate(some)}
    again = replace(asked, pending=on_the_way, kept=kept)
    measure("all different, a tenth on the way", again, options.passes)
    everything = {f"e{n}": shapes[new.supply].capacity for n, new in enumerate(plan.new)}
    kept = {f"e{n}": new.content for n, new in enumerate(plan.new)}
    measure(
        "all different, all on the way",
        replace(asked, pending=everything, kept=kept),
        options.passes,
    )
    total = sum(shapes[new.supply].total["cpu_milli"] for new in plan.new)
    limited = replace(asked, limits={"cpu_milli": total // 3})
    measure("all different, limits for a third", limited, options.passes)
    title = "the same, a tenth on the way"
    measure(title, replace(limited, pending=again.pending, kept=again.kept), options.passes)
    measure("the same, half with labels", labelled(limited, chance), options.passes)
    large = backlog(requests, requests, shapes, chance, cpus_max=48)
    measure("all different and large", large, options.passes)
    through_engine(asked)


if __name__ == "__main__":
    main()

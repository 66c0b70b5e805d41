"""Measures how the cost of a decision grows with the queue, the executors and the groups.

    python -m bench.growth [--depths 1000 10000 100000 1000000] [--executors 100 1000 5000]
        [--groups 1 10 100 1000] [--decisions 400]

The engine runs alone, as in `bench.fair`: the cluster is full, one slot ends, and the next request
gets its capacity. A decision is the whole step, with events and commands. One size varies at a
time:

- depths: the number of waiting requests, all of 100 jobs, without ranges;
- executors: the number of hosts, all full, for 100 jobs;
- groups: the number of groups, with one job each.

The benchmark alternates between all sizes of a list, so other work on the machine affects all sizes
equally. The curve shows the median CPU time of a decision, and its ratio to the first size.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence

from bench.fair import FairBench
from finegrain.values.states import SlotState
from resource_manager.engine.model.entities import RequestSpec, SlotKey
from resource_manager.engine.model.events import RequestsSubmitted, SlotsReleased
from resource_manager.engine.model.settings import Fairness

JOBS = 100
SLOTS_PER_HOST = 16
AT_ONCE = 500


class Sized:
    """A full cluster, with requests that wait."""

    def __init__(self, *, hosts: int = 200, groups: int = 0, waiting: int = 10_000) -> None:
        self.bench = bench = FairBench(hosts, 1, fairness=Fairness())
        self._rng = random.Random(3)
        self.seconds: list[float] = []
        bench.answer(bench.decide(*bench.registrations()))
        jobs = groups or JOBS
        for events in bench.submissions(groups, 1, 0) if groups else ():
            if len(events) == 1:
                bench.take_in(*events)
        share = (hosts * SLOTS_PER_HOST + waiting) // jobs + 1
        for number in range(jobs):
            group = f"g{number}" if groups else "default"
            registered, _ = bench.job(f"job{number}", group, bench.profiles[0], 1)
            bench.take_in(registered)
            for first in range(0, share, AT_ONCE):
                specs = tuple(
                    RequestSpec(f"{number}.{n}", bench.profiles[0])
                    for n in range(first, min(share, first + AT_ONCE))
                )
                bench.take_in(RequestsSubmitted(bench.now, f"job{number}", specs))
        bench.answer(bench.decide())
        self._slots = [
            key for key, slot in bench.state.slots.items() if slot.state is SlotState.ALLOCATED
        ]

    def decide(self) -> None:
        """Ends a slot, and measures the decision that gives its capacity to the next request."""
        bench = self.bench
        bench.now_ms += self._rng.randrange(1, 1_000)
        at = self._rng.randrange(len(self._slots))
        name, generation = self._slots[at]
        job_id = bench.state.slots[name, generation].job_id
        released = SlotsReleased(bench.now, job_id, ((name, generation),))
        freed = bench.answers(bench.decide(released))
        known = len(bench.state.slots) - 1
        began = time.process_time()
        effects = bench.decide(*freed)
        self.seconds.append(time.process_time() - began)
        new: list[SlotKey] = list(bench.state.slots)[known:]
        self._slots[at] = self._slots[-1]
        self._slots[-1:] = new
        bench.answer(effects)


def curve(title: str, sizes: Sequence[int], make: Callable[[int], Sized], decisions: int) -> None:
    """Measures all sizes, alternating between them, and prints one line for each size."""
    gc.enable()
    gc.collect()
    made = [(size, make(size)) for size in sizes]
    gc.disable()
    for _ in range(decisions):
        for _, each in made:
            each.decide()
    print(title)
    first = statistics.median(made[0][1].seconds)
    for size, each in made:
        median = statistics.median(each.seconds)
        longest = sorted(each.seconds)[len(each.seconds) * 99 // 100]
        print(
            f"  {size:>9,}  {1e6 * median:7.0f} us  99 %: {1e6 * longest:7.0f} us"
            f"  {median / first:5.2f} of the first"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--depths", type=int, nargs="*", default=[1_000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--executors", type=int, nargs="*", default=[100, 1_000, 5_000])
    parser.add_argument("--groups", type=int, nargs="*", default=[1, 10, 100, 1_000])
    parser.add_argument("--decisions", type=int, default=400)
    options = parser.parse_args()
    for title, sizes, make in (
        ("waiting requests", options.depths, lambda size: Sized(waiting=size)),
        ("executors", options.executors, lambda size: Sized(hosts=size)),
        ("groups", options.groups, lambda size: Sized(groups=size)),
    ):
        if sizes:
            curve(title, sizes, make, options.decisions)


if __name__ == "__main__":
    main()

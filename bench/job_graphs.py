"""Measures the time to compile the plan of a job graph, and to run its schedule without a cluster.

python -m bench.job_graphs [--tasks N]
"""

from __future__ import annotations

import argparse
import time
from itertools import pairwise

import finegrain_client as fg
from finegrain_client.graph.plan import Plan
from finegrain_client.graph.schedule import (
    DeployTask,
    Effect,
    JobEnded,
    JobStarted,
    RequestSlots,
    Schedule,
    SlotsGranted,
    TaskEnded,
)


def chain(slots: int, tasks: int) -> fg.JobGraph:
    """Returns a batch job whose regions run one after the other, each with a task in every slot."""
    graph = fg.JobGraph("chain", "batch")
    names = [f"o{at}" for at in range(tasks // slots)]
    for name in names:
        graph.operator(name, parallelism=slots)
    for producer, consumer in pairwise(names):
        graph.connect(producer, consumer, exchange="blocking", pattern="all-to-all")
    return graph


def pipeline(slots: int, tasks: int) -> fg.JobGraph:
    """Returns a streaming job with one region, whose operators are not chained."""
    graph = fg.JobGraph("pipeline", "streaming")
    names = [f"o{at}" for at in range(tasks // slots)]
    for name in names:
        graph.operator(name, parallelism=slots, uses_managed_memory=True)
    for producer, consumer in pairwise(names):
        graph.connect(producer, consumer, pattern="all-to-all")
    return graph


def run(plan: Plan) -> tuple[float, int]:
    """Runs the schedule; all requests are granted at once, and all tasks succeed.

    Returns the seconds, and the number of tasks.
    """
    schedule, tasks = Schedule(plan), 0
    began_s = time.perf_counter()
    waiting: list[Effect] = schedule.step(JobStarted())
    while waiting:
        following: list[Effect] = []
        for effect in waiting:
            match effect:
                case RequestSlots(request, _, places, first_slot):
                    hosts = ("host-a",) * len(places)
                    following += schedule.step(SlotsGranted(request, first_slot, hosts))
                case DeployTask(task):
                    tasks += 1
                    following += schedule.step(TaskEnded(task))
                case JobEnded(ok):
                    assert ok
                case _:
                    pass
        waiting = following
    assert schedule.ended
    return time.perf_counter() - began_s, tasks


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    tasks = parser.parse_args().tasks
    print("job | tasks | slots | regions | compile, s | schedule, s | per task, us")
    for make in chain, pipeline:
        for slots in (tasks // 100, tasks):
            graph = make(slots, tasks)
            began_s = time.perf_counter()
            plan = graph.compile()
            compiled_s = time.perf_counter() - began_s
            took_s, done = run(plan)
            print(
                f"{graph.spec.name} | {done} | {plan.slots_needed} | {len(plan.regions)} |"
                f" {compiled_s:.2f} | {took_s:.2f} | {took_s / done * 1e6:.1f}"
            )


if __name__ == "__main__":
    main()

"""Measures short tasks with HyperQueue, for comparison with `bench.tasks`.

    PYTHON bench/hyperqueue_tasks.py [--tasks 500] [--cores 4]

PYTHON belongs to an environment with the package `hyperqueue`; `bench.tasks --hyperqueue PYTHON`
runs this file. One job has `--tasks` tasks of `true`, on a server and a worker in this process,
after a small job that warms up. The result has tasks per second, and CPU milliseconds per task of
this process and its children, the tasks. HyperQueue neither stores tasks durably here nor limits
them with cgroups.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import sys
import tempfile
import time
from typing import Any


def cpu_s() -> float:
    """Returns the CPU seconds of this process and of its children that have ended."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(each)[:2]) for each in whose)


def run(client: Any, job: Any, tasks: int) -> None:
    """Runs one job of `true` to its end."""
    for _ in range(tasks):
        job.program(["true"])
    client.wait_for_jobs([client.submit(job)])


def main() -> None:
    """Runs the jobs and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--cores", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fg-bench-") as folder:
        os.environ["HOME"] = folder
        os.chdir(folder)
        hyperqueue: Any = importlib.import_module("hyperqueue")
        cluster_module: Any = importlib.import_module("hyperqueue.cluster")
        with hyperqueue.LocalCluster() as cluster:
            cluster.start_worker(cluster_module.WorkerConfig(cores=options.cores))
            client = cluster.client()
            run(client, hyperqueue.Job(), options.cores * 2)
            before_s, began_s = cpu_s(), time.monotonic()
            run(client, hyperqueue.Job(), options.tasks)
            wall_s, used_s = time.monotonic() - began_s, cpu_s() - before_s
    figures = {
        "tasks_per_s": round(options.tasks / wall_s, 1),
        "cpu_ms_per_task": round(1000 * used_s / options.tasks, 2),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()

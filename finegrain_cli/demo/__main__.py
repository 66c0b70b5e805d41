"""Runs the demo: starts a cluster, runs the job, checks that all resources are free, and stops the
cluster.

The exit code is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path

import finegrain_client as fg
from finegrain.errors import ConfigurationError, InvalidArgument
from finegrain.resources import MIB
from finegrain_cli.demo import wordcount
from finegrain_cli.demo.job_master import DemoPlan, count_words
from finegrain_cli.demo.program import program_for
from finegrain_cli.demo.report import DemoLog, report
from finegrain_cli.local.cluster import ExecutorShare, LocalCluster
from finegrain_cli.local.task_user import choose_task_user

# Control groups have the names of the executors. The names contain the pid, because two demos on
# the same host need different names.
EXECUTORS = (f"demo-{os.getpid()}-a", f"demo-{os.getpid()}-b")
FAKE_GPUS = "dgx-a100"
MEMORY_BYTES = 1024 * MIB
RELEASE_CHECKS = 100
RELEASE_CHECK_INTERVAL_S = 0.1
PACKAGES = ("finegrain", "finegrain_cli", "finegrain_client", "resource_manager", "task_executor")


def main(arguments: Sequence[str] = ()) -> int:
    """Runs the demo. Returns 0 if all checks succeeded."""
    log = DemoLog()
    cpus = sorted(os.sched_getaffinity(0))
    share_milli = min(1000, 1000 * len(cpus) // len(EXECUTORS))
    dedicated_cpus = len(cpus) >= len(EXECUTORS)  # if False, both executors share one cpu
    # Each executor gets a dedicated cpu. On a host with one cpu, each executor gets half of the
    # cpu's time.
    shares = [
        ExecutorShare(
            executor_id=name,
            cpus=str(cpu) if dedicated_cpus else "",
            cpu_milli=None if dedicated_cpus else share_milli,
            memory_bytes=MEMORY_BYTES,
        )
        for name, cpu in zip(EXECUTORS, cycle(cpus), strict=False)
    ]
    task_user = choose_task_user(_parser().parse_args(arguments).task_user)
    with ExitStack() as stack:
        program = stack.enter_context(program_for(task_user, _sources()))
        plan = DemoPlan(program, share_milli, *EXECUTORS, dedicated_cpus=dedicated_cpus)
        log.progress("starting one resource manager and two task executors on this host")
        cluster = LocalCluster(shares=shares, fake_gpus=FAKE_GPUS, task_user=task_user)
        stack.enter_context(cluster)
        words = asyncio.run(_run(cluster, plan, log))
        # Stop the cluster here, because `stop` returns the leftovers, and the end of the `with`
        # block does not.
        leftovers = cluster.stop()
        _check_words(words, plan, log)
    for left in leftovers:
        log.expect(False, f"left behind: {left}")
    print()
    print(report(log.records))
    print()
    common = ", ".join(f"{word} {count}" for word, count in words.most_common(8))
    print(f"{len(plan.program.files)} files, {words.total()} words; most common: {common}")
    if log.mismatches:
        print(f"{len(log.mismatches)} mismatches:")
        for each in log.mismatches:
            print(f"  {each}")
        return 1
    print("nothing is booked any more, and no process or cgroup is left")
    return 0


async def _run(local: LocalCluster, plan: DemoPlan, log: DemoLog) -> Counter[str]:
    async with fg.connect(local.address, credentials=local.credentials_file) as cluster:
        for executor in await cluster.executors():
            total = executor.total
            isolation = executor.isolation
            log.progress(
                f"{executor.executor_id}: {total['cpu_milli']} milli cpu, "
                f"{total['memory_bytes'] // MIB} MiB, "
                f"isolation {isolation.driver if isolation else 'unknown'}"
            )
            for note in isolation.notes if isolation else ():
                log.progress(f"  not enforced: {note}")
        words = await count_words(cluster, plan, log)
        await _check_all_released(cluster, log)
    return words


async def _check_all_released(cluster: fg.Cluster, log: DemoLog) -> None:
    """Waits until all slots are released, and then checks that no capacity is booked."""
    for _ in range(RELEASE_CHECKS):
        if not await cluster.slots():
            break
        await asyncio.sleep(RELEASE_CHECK_INTERVAL_S)
    info = await cluster.info()
    log.expect(not await cluster.slots(), "slots are left")
    log.expect(not await cluster.requests(), "requests are left")
    log.expect(not any(info.allocated.values()), f"still booked: {dict(info.allocated)}")
    for executor in await cluster.executors():
        log.expect(
            dict(executor.available) == dict(executor.total),
            f"not all capacity of {executor.executor_id} is available again: "
            f"{dict(executor.available)}",
        )
    log.progress("all capacity is available again")


def _check_words(words: Counter[str], plan: DemoPlan, log: DemoLog) -> None:
    direct = wordcount.count_words(str(path) for path in plan.program.files)
    log.expect(
        words == direct, "the word counts of the cluster differ from those of a single process"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev demo", description="Run the demo.")
    parser.add_argument(
        "--task-user",
        default="",
        metavar="USER",
        help="as root: user that runs tasks; default: who called sudo, else nobody",
    )
    return parser


def _sources() -> tuple[Path, ...]:
    """Returns the project's own source files from the directory in which it is installed."""
    from importlib.util import find_spec

    files: list[Path] = []
    for package in PACKAGES:
        spec = find_spec(package)
        for folder in spec.submodule_search_locations or () if spec else ():
            files += Path(folder).rglob("*.py")
    return tuple(sorted(files))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (ConfigurationError, InvalidArgument) as error:
        sys.exit(f"error: {error.message}")

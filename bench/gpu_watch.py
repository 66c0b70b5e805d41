"""Measures how long a slot can exceed its share of a GPU's memory at the enforcement level "watch".

    nice -n 5 python -m bench.gpu_watch [--runs 20]

A real executor (as root) reads fake GPUs from the test driver. In each run, a task exceeds its
share from a random moment on. The benchmark measures the time from this moment until the job master
learns that the task has ended. The calls of a real driver would take additional time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from pathlib import Path

from tests.support.nvml.fake_driver import FakeDriver
from tests.task_executor.service.executor_process import ExecutorProcess
from tests.task_executor.service.gpu_host import A, B, GpuHost, gpu_slot
from tests.task_executor.service.scripted_rm import ScriptedRM

SHARE_MIB = 40_000
AMOUNTS = (("gpu-core", 50), ("gpu-memory", SHARE_MIB << 20), ("gpu-memory-ratio", 50))
SEED = 1


async def measure(folder: Path, runs: int) -> list[float]:
    """Returns the seconds of each run."""
    rm = ScriptedRM()
    await rm.start()
    process = ExecutorProcess(folder, rm.address)
    driver_folder = folder / "driver"
    driver_folder.mkdir()
    host = GpuHost(FakeDriver(driver_folder), process, rm)
    moments = random.Random(SEED)
    found = []
    try:
        job_master = await host.starts()
        await rm.allocate(gpu_slot("slot", "GPU-a", 1, AMOUNTS))
        for run in range(runs):
            task_id = f"task-{run}"
            task = await job_master.submit("/bin/sleep", "600", task_id=task_id)
            host.plays(f"{A}{B}process 0 {task.pid} {SHARE_MIB}\n")
            await asyncio.sleep(1.5 + moments.random())
            begun = time.monotonic()
            host.plays(f"{A}{B}process 0 {task.pid} {SHARE_MIB + 1}\n")
            end = (await job_master.watch(task_id)).exit
            found.append(time.monotonic() - begun)
            if end.end_reason != "GPU_MEMORY_EXCEEDED":
                raise RuntimeError(f"the task has ended otherwise: {end}")
    finally:
        process.clean_up()
        await rm.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--runs", type=int, default=20)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fg-watch-") as folder:
        found = sorted(asyncio.run(measure(Path(folder), args.runs)))
    median = found[len(found) // 2]
    print(f"{len(found)} runs: median {median:.2f} s, longest {found[-1]:.2f} s")


if __name__ == "__main__":
    main()

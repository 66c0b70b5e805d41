"""Measures short tasks on a real cluster of one executor: tasks per second, latency, and CPU by
process.

    .venv/bin/python -m bench.tasks [--tasks 500] [--slots 4] [--single 50] [--executor-only]
        [--hyperqueue PYTHON] [--json]

The benchmark starts `finegrain up` with one executor, with durability and TLS. The isolation is the
strictest that this user may have, so root measures with cgroups.

1. batch: one batch of `--tasks` threads of `true` in `--slots` slots, which are used again. The
   result has tasks per second, and CPU milliseconds per task by process.
2. single: `--single` slots, requested one after the other, each with one task. The time is measured
   from the request to the exit that the client sees.
3. helper: `--tasks` tasks of `true` in one slot, one and eight at a time, started by the client of
   the helper alone, without a resource manager. `--executor-only` measures only this part.
4. hyperqueue (only with `--hyperqueue`): the batch of part 1 with HyperQueue, whose package the
   given Python has (`hyperqueue_tasks.py`).

The CPU seconds of a process include all its threads, and all processes for which it has waited. So
tasks count for the supervisor. Wall times depend on other work on the machine, so compare CPU
times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import finegrain_client as fg
from task_executor.helper.launch import HelperConfig, start_helper
from task_executor.host.helper_client import HelperClient, SlotLimits, TaskExited, TaskSpec

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
START_TIMEOUT_S = 120.0


def cpu_s(pid: int) -> float:
    """Returns the CPU seconds of a process and of all children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_S


def children_of(root: int) -> Iterator[int]:
    """Yields the descendants of a process."""
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        for pid in map(int, path.read_text().split()):
            yield pid
            yield from children_of(pid)


def role_of(pid: int, root: int, manager: int) -> str:
    """Returns which part of the cluster a process is."""
    if pid in (root, manager):
        return "up" if pid == root else "manager"
    if not _is_of_helper(pid):
        return "front"
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return "supervisor" if _is_of_helper(parent) else "helper"


def _is_of_helper(pid: int) -> bool:
    try:
        return b"task_executor.helper" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def cpu_by_role(root: int, helpers: list[int]) -> dict[str, float]:
    """Returns CPU seconds by part of the cluster."""
    used: dict[str, float] = defaultdict(float)
    manager = next(children_of(root))  # `up` starts the manager first
    for pid in {root, *children_of(root), *helpers, *(p for h in helpers for p in children_of(h))}:
        try:
            used[role_of(pid, root, manager)] += cpu_s(pid)
        except OSError:
            continue  # the process has ended
    return used


def _growth(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {role: used - before.get(role, 0.0) for role, used in after.items()}


def percentiles(values_s: list[float]) -> dict[str, float]:
    """Returns the median and the 99th percentile in milliseconds."""
    ordered = sorted(values_s)
    return {
        "p50_ms": round(1000 * statistics.median(ordered), 1),
        "p99_ms": round(1000 * ordered[int(0.99 * (len(ordered) - 1))], 1),
    }


@contextmanager
def local_cluster(folder: Path) -> Iterator[tuple[int, list[int]]]:
    """Runs `finegrain up`. Yields its pid, and the pids of helpers, which are detached."""
    os.environ |= {"HOME": str(folder), "FINEGRAIN_RUN_DIR": str(folder / "run")}
    (folder / "run").mkdir(mode=0o700)
    command = [sys.executable, "-m", "finegrain_cli", "up", "-o", "json"]
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        base = str(Path(ready["state_dir"]).parent)
        helpers = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and _is_helper(path, base)
        ]
        yield process.pid, helpers
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(START_TIMEOUT_S)


def _is_helper(process: Path, base: str) -> bool:
    try:
        return _is_of_helper(int(process.name)) and base in (process / "cmdline").read_text()
    except OSError:
        return False


async def measure_batch(tasks: int, slots: int, root: int, helpers: list[int]) -> dict[str, Any]:
    """Runs one batch. Before it, runs a small batch, so that the measured batch finds slots and
    connections.
    """
    slot = fg.SlotSpec(cpu_milli=250, memory_bytes=32 * fg.MIB)
    async with fg.connect() as cluster:
        await fg.BatchJob(cluster, fg.BatchSpec(slots * 2, ["true"], slot=slot)).run()
        before, began_s = cpu_by_role(root, helpers), time.monotonic()
        mine_s = time.process_time()
        spec = fg.BatchSpec(tasks, ["true"], slot=slot, slots_max=slots)
        outcome = await fg.BatchJob(cluster, spec).run()
        wall_s = time.monotonic() - began_s
        mine_s = time.process_time() - mine_s
        used = _growth(before, cpu_by_role(root, helpers))
    assert outcome.done == tasks, outcome
    per_task = {role: round(1000 * each / tasks, 2) for role, each in used.items()}
    return {
        "tasks_per_s": round(tasks / wall_s, 1),
        "cpu_ms_per_task": per_task | {"client": round(1000 * mine_s / tasks, 2)},
        "cluster_cpu_ms_per_task": round(1000 * sum(used.values()) / tasks, 2),
    }


async def measure_single(count: int, root: int, helpers: list[int]) -> dict[str, Any]:
    """Repeats these steps: requests a slot, runs one task in it, and releases it."""
    slot = fg.SlotSpec(cpu_milli=1000, memory_bytes=32 * fg.MIB)
    took_s: list[float] = []
    async with fg.connect() as cluster, cluster.job("bench") as job:
        for number in range(count + 5):
            if number == 5:
                before = cpu_by_role(root, helpers)
            began_s = time.monotonic()
            (request,) = await job.request_slots(slot)
            granted = await request.granted()
            result = await (await granted.run(["true"], wait_s=0.1)).wait()
            took_s.append(time.monotonic() - began_s)
            assert result.exit_code == 0, result
            await granted.release()
        used = _growth(before, cpu_by_role(root, helpers))
    per_task = {role: round(1000 * each / count, 2) for role, each in used.items()}
    return percentiles(took_s[5:]) | {"cpu_ms_per_slot_and_task": per_task}


async def measure_helper(tasks: int, at_once: int, folder: Path) -> dict[str, Any]:
    """Starts tasks in one slot through the client of the helper."""
    name = uuid.uuid4().hex[:6]
    config = HelperConfig(
        state_dir=str(folder / name),
        socket_path=str(folder / f"{name}.sock"),
        executor_id=f"bench-{name}",
        front_uid=os.getuid(),
        front_gid=os.getgid(),
        scratch_root=str(folder),
        allow_root_tasks=True,
    )
    pid = start_helper(config)
    client = await HelperClient.connect(config.socket_path)
    await client.create_slot(SlotLimits("slot", 1, cpu_milli=2000, memory_bytes=256 << 20))
    ended: dict[str, asyncio.Future[int | None]] = {}
    started_s: list[float] = []

    async def follow() -> None:
        async for event in client.events():
            if isinstance(event, TaskExited):
                ended[event.task_id].set_result(event.record.exit_code)

    async def run(task_id: str, room: asyncio.Semaphore) -> None:
        async with room:
            ended[task_id] = asyncio.get_running_loop().create_future()
            began_s = time.monotonic()
            spec = TaskSpec(
                task_id, "slot", 1, argv=["/bin/true"], env={}, cwd="/", uid=os.getuid(),
                gid=os.getgid(),
            )  # fmt: skip
            await client.start_task(spec)
            started_s.append(time.monotonic() - began_s)
            assert await ended[task_id] == 0
            await client.forget_task(task_id)

    following = asyncio.create_task(follow())
    room = asyncio.Semaphore(at_once)
    for number in range(10):
        await run(f"warm-{number}", room)
    started_s.clear()
    before_s, began_s = _tree_s(pid), time.monotonic()
    await asyncio.gather(*(run(f"task-{number}", room) for number in range(tasks)))
    wall_s, used_s = time.monotonic() - began_s, _tree_s(pid) - before_s
    following.cancel()
    await client.destroy_slot("slot", 1)
    await client.stop()
    await client.close()
    found = {"tasks_per_s": round(tasks / wall_s, 1)}
    return found | {"cpu_ms_per_task": round(1000 * used_s / tasks, 2)} | percentiles(started_s)


def measure_hyperqueue(python: str, tasks: int, slots: int) -> dict[str, Any]:
    """Runs the batch with HyperQueue."""
    script = Path(__file__).with_name("hyperqueue_tasks.py")
    command = [python, str(script), "--tasks", str(tasks), "--cores", str(slots)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _tree_s(root: int) -> float:
    return sum(map(cpu_s, {root, *children_of(root)}))


def main() -> None:
    """Runs the parts and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--single", type=int, default=50)
    parser.add_argument("--executor-only", action="store_true")
    parser.add_argument("--hyperqueue", metavar="PYTHON", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fg-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        for at_once in (1, 8):
            result = asyncio.run(measure_helper(options.tasks, at_once, folder))
            figures[f"helper, {at_once} at a time"] = result
        if not options.executor_only:
            with local_cluster(folder) as (root, helpers):
                batch = measure_batch(options.tasks, options.slots, root, helpers)
                figures["batch"] = asyncio.run(batch)
                single = measure_single(options.single, root, helpers)
                figures["single"] = asyncio.run(single)
    if options.hyperqueue:
        figures["hyperqueue"] = measure_hyperqueue(options.hyperqueue, options.tasks, options.slots)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for part, result in figures.items():
        print(part)
        for title, value in result.items():
            print(f"  {title:28} {value}")


if __name__ == "__main__":
    main()

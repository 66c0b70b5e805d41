"""Measures the CPU time and the memory that the client's batch runner needs per thread of work.

    python -m bench.batch [--threads 100000] [--slots 1000] [--seconds 0.5] [--folder DIR]
        [--results] [--profile]

This process also simulates the cluster: it grants slots, agrees to the reuse of slots, and ends
each task after `--seconds`. The state file is a real file on disk, and every commit is synced. The
benchmark prints the CPU time of this process per thread of work (including the simulated cluster)
and the threads per second. It also prints the growth of the memory of this process, the number of
its open files, and the size of the state file.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finegrain_client as fg
from finegrain.resources import ResourceProfile
from finegrain.values.outcomes import ThreadReport
from finegrain.values.states import RequestState
from finegrain_client.batch import runner
from finegrain_client.batch.scheduler_state import SlotKey
from finegrain_client.batch.slots import Granted, RequestFinished, SlotMessage
from finegrain_client.types.status import OutputChunk, TaskResult

SLOTS_MAX, SECONDS = 1000, 0.5
most = {"files": 0, "tasks": 0}


class Cluster:
    """Simulates the resource manager, its job and its slots."""

    job_id, secret, detached = "job", "secret", False

    def job(self, *_args: object, **_more: object) -> Cluster:
        return self

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        pass

    async def end(self) -> None:
        pass

    async def info(self) -> Any:
        most["files"] = max(most["files"], len(list(Path("/proc/self/fd").iterdir())))
        most["tasks"] = max(most["tasks"], len(asyncio.all_tasks()))
        return SimpleNamespace(total={"cpu_milli": SLOTS_MAX * 1000})


class Slots:
    """Simulates the slots of the batch: the interface that the runner uses."""

    def __init__(self, _job: Cluster, row: Any, _spec: fg.SlotSpec) -> None:
        self._range = row.range_id
        self._slots: dict[SlotKey, Slot] = {}
        self._next, self._end, self._waiting = 0, 0, dict[int, None]()
        self._news: asyncio.Queue[SlotMessage] = asyncio.Queue()

    @property
    def held(self) -> list[Slot]:
        return list(self._slots.values())

    def slot(self, key: SlotKey) -> Slot | None:
        return self._slots.get(key)

    def present(self) -> tuple[list[Granted], list[tuple[int, int]]]:
        return [], []

    async def listen(self, tell: Callable[[SlotMessage], None]) -> None:
        while True:
            tell(await self._news.get())

    async def ask(self, first: int, count: int) -> None:
        self._waiting |= dict.fromkeys(range(first, first + count))
        self._grant()

    async def give_up(self, runs: Sequence[tuple[int, int]]) -> None:
        pass

    async def release(
        self, keys: Sequence[SlotKey], reports: Mapping[SlotKey, ThreadReport]
    ) -> None:
        for key in keys:
            del self._slots[key]
            member = int(key[0].rpartition(".")[2])
            self._news.put_nowait(RequestFinished(key[0], member, RequestState.RELEASED, "", ""))
        self._grant()

    async def reuse(
        self,
        pairs: Sequence[tuple[SlotKey, int]],
        reports: Mapping[SlotKey, ThreadReport],
        new: tuple[int, int] | None = None,
    ) -> list[bool]:
        if new is not None:
            self._waiting |= dict.fromkeys(range(new[0], new[0] + new[1]))
        agreed = [self._waiting.pop(member, 0) is None for _, member in pairs]
        refused = [key for (key, _), yes in zip(pairs, agreed, strict=True) if not yes]
        await self.release(refused, reports)
        return agreed

    def _grant(self) -> None:
        while self._waiting and len(self._slots) < SLOTS_MAX:
            member = next(iter(self._waiting))
            del self._waiting[member]
            key = f"{self._range}.{member}", 1
            self._slots[key] = Slot()
            self._news.put_nowait(Granted(key, member, "host"))


class Slot:
    """A slot in which every command runs for the same time and prints one line."""

    executor_id, memory_bytes = "host", 0
    profile = ResourceProfile(cpu_milli=1000)

    async def run(
        self, _argv: object, *, output: Callable[[OutputChunk], None], **_more: object
    ) -> Any:
        begun = datetime.now(UTC)

        async def wait() -> TaskResult:
            await asyncio.sleep(SECONDS)
            output(
                OutputChunk(
                    "stdout", 0, b"one line of some sixty bytes that a thread of work says\n"
                )
            )
            end = datetime.now(UTC)
            return TaskResult("", 0, 0, False, False, False, 0, 0.0, end, 60, 0, 0)

        return SimpleNamespace(wait=wait, status=SimpleNamespace(start_time=begun))


def rss_kib() -> int:
    """Returns the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


async def measure(threads: int, folder: Path, results: bool) -> None:
    """Runs one batch to its end."""
    spec = fg.BatchSpec(threads, ["work", "{index}"])
    cluster: Any = Cluster()
    batch = fg.BatchJob(
        cluster,
        spec,
        state_file=folder / "state",
        results_dir=folder / "results" if results else None,
    )
    before_kib, wall, cpu = rss_kib(), time.monotonic(), time.process_time()
    (await batch.run()).check()
    wall, cpu = time.monotonic() - wall, time.process_time() - cpu
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size = (folder / "state").stat().st_size
    print(
        f"{threads} threads, {SLOTS_MAX} slots, {SECONDS} s each, outputs "
        f"{'in files' if results else 'in the state file'}: {cpu / threads * 1e6:.0f} us CPU each, "
        f"{threads / wall:.0f} threads/s; at most {most['tasks']} tasks of asyncio, "
        f"{most['files']} open files; memory {(peak_kib - before_kib) * 1024 / threads:.0f} bytes "
        f"each at its peak; state file {size / threads:.0f} bytes each"
    )


def main() -> None:
    """Reads the command line and measures."""
    global SLOTS_MAX, SECONDS  # the simulated cluster reads both
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=100_000)
    parser.add_argument("--slots", type=int, default=SLOTS_MAX)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--results", action="store_true", help="outputs in files")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    SLOTS_MAX, SECONDS = options.slots, options.seconds
    vars(runner)["BatchSlots"] = Slots
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        work = measure(options.threads, Path(folder), options.results)
        if not options.profile:
            asyncio.run(work)
            return
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, work)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

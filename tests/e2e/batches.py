"""A batch whose runner is a separate process, so that a test can kill the runner."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import finegrain_client as fg
from tests.e2e.driving import eventually

RUNNER = """
import asyncio, sys
import finegrain_client as fg

async def main():
    state_file, results_dir, work, threads = sys.argv[1:]
    spec = fg.BatchSpec(
        int(threads),
        ["sh", "-c", work],
        slot=fg.SlotSpec(cpu_milli=200, memory_bytes=16 * fg.MIB),
        retry_delay_s=0.1,
    )
    async with fg.connect() as cluster:
        batch = fg.BatchJob(cluster, spec, state_file=state_file, results_dir=results_dir)
        await batch.run()

asyncio.run(main())
"""


class Batch:
    """A batch whose runner is a process, and the notes of its commands."""

    def __init__(self, folder: Path, environment: dict[str, str], threads: int = 60) -> None:
        self.folder, self.environment, self.threads = folder, environment, threads
        self.state_file, self.results_dir = folder / "state", folder / "results"
        self.notes = folder / "notes"
        self.notes.touch()
        # Each command makes its note with one write, so lines of several commands do not mix.
        self.work = (
            f"sleep 0.2; echo $FINEGRAIN_BATCH_INDEX >> {self.notes}; echo {{index}} is done"
        )

    def start(self) -> subprocess.Popen[bytes]:
        args = (self.state_file, self.results_dir, self.work, self.threads)
        return subprocess.Popen(
            [sys.executable, "-c", RUNNER, *map(str, args)], env=self.environment
        )

    @property
    def done(self) -> int:
        """Threads that have their result."""
        if not self.state_file.exists():
            return 0
        try:
            return fg.batch.read_status(self.state_file).progress.done
        except fg.FinegrainError:
            return 0  # it is just being made

    def await_done(self, threads: int) -> None:
        eventually(lambda: self.done >= threads, f"{threads} threads are done")

    def check(self) -> Counter[int]:
        """Checks that every thread has one result and its output. Returns how often each command
        ran to its end.
        """
        results = list(fg.batch.read_thread_results(self.state_file))
        assert [each.index for each in results] == list(range(self.threads))
        assert all(each.ok for each in results)
        for index in range(self.threads):
            text = (self.results_dir / f"{index}.stdout").read_text()
            assert text == f"{index} is done\n"
        look = fg.batch.read_status(self.state_file)
        assert (look.progress.state, look.is_worked_on) == (fg.BatchState.ENDED, False)
        ran = Counter(map(int, self.notes.read_text().split()))
        assert set(ran) == set(range(self.threads))
        return ran

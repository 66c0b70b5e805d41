"""A process killed at any moment loses nothing it acknowledged and leaves nothing half-done."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from resource_manager.storage.schema import check
from resource_manager.storage.store import open_store

REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTER = Path(__file__).with_name("committer.py")


def run_until(url: str, first: int, lines: int) -> tuple[int, int]:
    """Runs the committer until it has acknowledged so many; returns its epoch and the last one."""
    process = subprocess.Popen(
        [sys.executable, str(COMMITTER), url, str(first)],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    epoch = int(process.stdout.readline().split()[1])
    for _ in range(lines):
        process.stdout.readline()
    process.kill()
    acknowledged = [int(line) for line in process.stdout.read().split()]
    process.wait()
    return epoch, max([first + lines - 1, *acknowledged])


@pytest.mark.slow
def test_kill_9_during_commits_loses_nothing_acknowledged(url: str):
    first, epochs = 0, []
    for lines in (1, 7, 30):
        epoch, last = run_until(url, first, lines)
        epochs.append(epoch)
        with open_store(url) as store:
            books = store.load()
        stored = sorted(int(each.job_id.removeprefix("job-")) for each in books.jobs)
        # The one under way when it died may be there, too.
        assert stored in (list(range(last + 1)), list(range(last + 2)))
        assert len(books.requests) == 20 * len(stored)
        assert books.counters["last"] == stored[-1]
        assert not [each for each in check(url) if each.severity == "error"]
        first = stored[-1] + 1
    assert epochs == sorted(set(epochs))

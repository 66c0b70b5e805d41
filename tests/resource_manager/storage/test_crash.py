"""Tests that a process killed at any moment loses nothing acknowledged, nor leaves a part."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resource_manager.engine.model.effects import Changes
from resource_manager.storage.opening import open_store
from resource_manager.storage.schema import check
from resource_manager.storage.sqlite_file import wal_of
from tests.support.books import job

pytestmark = pytest.mark.full

REPOSITORY = Path(__file__).resolve().parents[3]
COMMITTER = Path(__file__).with_name("committer.py")


def start(url: str, first: int) -> subprocess.Popen[str]:
    """Starts the committer with job number `first`."""
    return subprocess.Popen(
        [sys.executable, str(COMMITTER), url, str(first)],
        cwd=REPOSITORY,
        env={"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def run_until(url: str, first: int, lines: int) -> tuple[int, int]:
    """Runs the committer until it acknowledged `lines` jobs; returns its epoch and the last job."""
    process = start(url, first)
    assert process.stdout is not None
    epoch = int(process.stdout.readline().split()[1])
    told = "".join(process.stdout.readline() for _ in range(lines))
    process.kill()
    told += process.stdout.read()
    process.wait()
    acknowledged = [int(line) for line in told.split()]
    assert acknowledged[0] == first
    return epoch, acknowledged[-1]


@pytest.mark.slow
@pytest.mark.needs("postgresql")
def test_a_leader_that_froze_writes_nothing_when_it_wakes_up(postgresql_url: str) -> None:
    """The process is stopped during its commits. Its lease expires, another process leads, and then
    it continues.
    """
    process = start(postgresql_url, 0)
    assert process.stdout is not None
    assert process.stdout.readline() == "epoch 1\n"
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    with open_store(postgresql_url) as second:
        assert second.lead("second", wait_s=30) == 2
        before = second.load()
        process.send_signal(signal.SIGCONT)
        acknowledged = [int(line) for line in process.stdout.read().split()]
        assert process.wait() != 0
        assert second.load() == before
    stored = {int(each.job_id.removeprefix("job-")) for each in before.jobs}
    assert stored >= set(acknowledged)


def test_lives_that_are_cut_short_do_not_let_the_log_grow(tmp_path: Path) -> None:
    """Each run leaves its log as `kill -9` does; the next one merges it before it leads."""
    path = tmp_path / "books.db"
    sizes = []
    for life in range(5):
        left = tmp_path / f"left-{life}"
        left.mkdir()
        with open_store(f"sqlite:///{path}") as store:
            store.lead("leader")
            for number in range(50):
                store.commit(Changes([job(f"job-{life}-{number}", name="x" * 200)]))
            for each in (path, wal_of(path)):
                shutil.copy(each, left)
            sizes.append(wal_of(path).stat().st_size)
        path = left / path.name
    assert max(sizes) < 2 * min(sizes)
    with open_store(f"sqlite:///{path}") as store:
        assert len(store.load().jobs) == 5 * 50


@pytest.mark.slow
def test_kill_9_during_commits_loses_nothing_acknowledged(url: str) -> None:
    first, epochs = 0, []
    for lines in (1, 7, 30):
        epoch, last = run_until(url, first, lines)
        epochs.append(epoch)
        with open_store(url) as store:
            books = store.load()
        stored = sorted(int(each.job_id.removeprefix("job-")) for each in books.jobs)
        # The commit in progress when it died may be there, too.
        assert stored in (list(range(last + 1)), list(range(last + 2)))
        assert len(books.requests) == 20 * len(stored)
        assert books.counters["last"] == stored[-1]
        assert not [each for each in check(url) if each.severity == "error"]
        first = stored[-1] + 1
    assert epochs == sorted(set(epochs))

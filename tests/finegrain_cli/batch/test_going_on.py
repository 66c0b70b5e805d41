"""Batches that were started before: several commands continue them at once, in the background, or
while the terminal closes.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain.errors import AlreadyExists, Reason
from finegrain_cli.batch import detached
from finegrain_client.batch.rows import Changes
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.values import BatchState
from tests.finegrain_cli.batch.conftest import MakeBatch, Runners, result
from tests.support.cli import Finegrain
from tests.support.identities import credentials_file
from tests.support.patience import PATIENCE_S


def test_whoever_comes_second_is_shown_how_it_gets_on(
    finegrain: Finegrain, runners: Runners, make_batch: MakeBatch
) -> None:
    """Two commands continue a batch at the same time: one works on it, and the other shows the
    progress.
    """
    path = make_batch("load", threads=2)

    def faster() -> None:
        file = StateFile.open(path)
        results = [result(0), result(1)]
        file.write(1, Changes(results=results, meta={"state": BatchState.ENDED.value}))
        file.close()

    runners.meanwhile = faster
    runners.error = AlreadyExists("another runner works on it", reason=Reason.STORE_IN_USE)
    done = finegrain("batch", "--attach", "load")

    assert done.exit_code == 0
    assert "another process has just resumed the batch" in done.stderr
    assert "threads  2: 2 done, 0 failed" in done.stdout


def test_going_on_in_the_background_with_what_goes_on_returns_at_once(
    finegrain: Finegrain, runners: Runners, make_batch: MakeBatch
) -> None:
    file = StateFile.open(make_batch("load"))
    done = finegrain("batch", "--attach", "load", "--detach")
    file.close()

    assert (done.exit_code, done.stdout) == (0, "load\n")
    assert f"pid {os.getpid()} runs it already" in done.stderr


def test_what_could_not_be_gone_on_with_stays(
    finegrain: Finegrain, runners: Runners, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command removes only files that it has made."""
    path = tmp_path / "my.batch"
    StateFile.create(path, fg.BatchSpec(3, ["true"]), None).close()

    def refused(state_file: Path) -> None:
        raise detached.NotStartedError(8, state_file, "finegrain: no [ROLE_MISSING]")

    monkeypatch.setattr(detached, "start_detached", refused)
    assert finegrain("batch", "--attach", str(path), "--detach").exit_code == 8
    assert path.exists()


def test_a_runner_in_the_background_knows_no_modules_of_whoever_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('not the one of Python')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FINEGRAIN_MANAGER", "127.0.0.1:1")
    monkeypatch.setenv("FINEGRAIN_CREDENTIALS", str(credentials_file(tmp_path, "user/alice")))
    log = tmp_path / "log"
    assert (
        detached._start(["batch", "--runner", str(tmp_path / "nothing")], log).wait(PATIENCE_S) == 3
    )
    assert "there is no state file" in log.read_text()


def test_nohup_means_that_a_terminal_may_go(
    finegrain: Finegrain, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        runners.ends(2)
        runners.meanwhile = lambda: os.kill(os.getpid(), signal.SIGHUP)
        done = finegrain("batch", "--threads", "2", "--", "true")
    finally:
        signal.signal(signal.SIGHUP, former)

    assert (done.exit_code, runners.cancelled) == (0, [])

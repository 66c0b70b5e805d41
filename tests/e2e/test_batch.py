"""Batches on real executors, as people run them: they are started, left, interrupted, killed and
continued.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError
from finegrain_client.batch import BatchState, BatchStatus, read_status, state_files
from tests.e2e.driving import Cli, Outcome, Small, eventually, finish, unique
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.slow

SMALL = ("--cpu", "0.25", "--memory", "32M", "--quiet")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the batches' state files."""
    return tmp_path / "batches"


@pytest.fixture
def cli(small: Small, folder: Path) -> Iterator[Cli]:
    """The command line of a user who has no batches yet."""
    own = replace(small.cli, extra=dict(small.cli.extra) | {"FINEGRAIN_BATCH_DIR": str(folder)})
    yield own
    for path in state_files(folder):
        if read_status(path).progress.ended < read_status(path).spec.threads:
            own("batch", "--stop", str(path))


def batch(cli: Cli, threads: int, *command: str, flags: tuple[str, ...] = ()) -> Outcome:
    return cli("batch", "--threads", str(threads), *SMALL, *flags, "--", *command)


def only(folder: Path) -> BatchStatus:
    """The one batch there is."""
    (path,) = state_files(folder)
    return read_status(path)


def done(folder: Path) -> int:
    try:
        return only(folder).progress.done if state_files(folder) else 0
    except ConfigurationError:  # it is just being made
        return 0


def test_a_script_of_a_fresh_clone_runs_for_every_thread(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    script = tmp_path / "work.sh"
    script.write_text('#!/bin/sh\necho "thread $1 of $FINEGRAIN_BATCH_THREADS"\n')
    script.chmod(0o755)
    flags = ("--threads", "24", "--cpu", "0.25", "--memory", "128M", "--group", "medium")
    outcome = cli("batch", *flags, "--results", "out", "--", "./work.sh", "{index}", cwd=tmp_path)

    assert outcome.code == 0, outcome.stderr
    assert "threads  24: 24 done, 0 failed" in outcome.text
    assert "24 of 24 done" in outcome.stderr
    for index in range(24):
        text = (tmp_path / f"out/{index}.stdout").read_text()
        assert text == f"thread {index} of 24\n"
    results = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert [(each["index"], each["state"]) for each in results] == [
        (index, "DONE") for index in range(24)
    ]
    (job,) = [each for each in cli.items("jobs", "--all") if each["job_id"] == only(folder).job_id]
    assert (job["name"], job["group"], job["ended"]) == ("work.sh", "medium", True)
    advice = cli.json("advise", job["job_id"])
    assert advice["threads_observed"] == 24  # the last one, too: it is often the longest
    assert advice["share_within_target"] == 1.0


def test_the_advice_counts_a_thread_that_was_tried_again_once(cli: Cli, folder: Path) -> None:
    fails_first = "[ {attempt} -gt 1 ] || [ {index} -gt 3 ]"
    outcome = batch(cli, 12, "sh", "-c", fails_first, flags=("--retries", "2"))
    assert outcome.code == 0, outcome.stderr
    advice = cli.json("advise", only(folder).job_id)
    assert (advice["threads_observed"], advice["attempts_unfinished"]) == (12, 4)
    assert advice["attempts_unmatched"] == 0
    assert (
        "attempts     16, of which 4 finished no thread" in cli("advise", only(folder).job_id).text
    )


def test_a_runner_in_the_background_that_was_killed_is_replaced(
    cli: Cli, folder: Path, tmp_path: Path
) -> None:
    """No result is lost, and no result counts twice."""
    count = f'echo x >> "{tmp_path}/ran.{{index}}"; sleep 0.5'
    flags = ("--detach", "--name", "nightly", "--results", str(tmp_path / "out"))
    begun = batch(cli, 40, "sh", "-c", count, flags=flags)
    assert begun.code == 0, begun.stderr
    eventually(lambda: done(folder) >= 3, "some are done")
    runner = only(folder).runner_pid
    assert runner > 0  # 0 would mean all processes of this group
    os.kill(runner, signal.SIGKILL)
    eventually(lambda: not only(folder).is_worked_on, "the runner has gone")
    left = 40 - done(folder)
    attached = cli("batch", "--attach", "nightly", "-o", "json")

    assert attached.code == 0, attached.stderr
    shown = json.loads(attached.stdout)
    assert shown["batch"] == begun.text.strip()
    assert (left > 0, shown["progress"]["done"], shown["progress"]["failed"]) == (True, 40, 0)
    assert all((tmp_path / f"ran.{index}").exists() for index in range(40))
    results = json.loads((tmp_path / "out/results.json").read_text())["results"]
    assert [each["index"] for each in results] == list(range(40))


def test_ctrl_c_stops_it_and_gives_everything_back(cli: Cli, folder: Path, small: Small) -> None:
    process = cli.start("batch", "--threads", "900", *SMALL, "--name", "big", "--", "sleep", "0.1")
    eventually(lambda: done(folder) >= 1, "one is done")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == 130
    assert b"resume with finegrain batch --attach big-" in err
    assert b"threads  900: " in out
    assert only(folder).progress.state is BatchState.CANCELLED
    small.cli.settle()

    before = done(folder)
    again = cli.start("batch", "--attach", "big", "--quiet")
    eventually(lambda: done(folder) > before, "it goes on")
    assert cli("batch", "--stop", "big").code == 0
    assert again.wait(PATIENCE_S) == 130
    again.communicate()


def test_what_cannot_be_begun_in_the_background_is_said_here(cli: Cli, folder: Path) -> None:
    outcome = batch(cli, 4, "true", flags=("--group", "medum", "--detach"))

    assert outcome.code == 3
    assert "'medum'" in cli.error(outcome)
    assert outcome.stderr.splitlines()[0].endswith("[GROUP_UNKNOWN]")
    assert list(folder.iterdir()) == []


def test_what_fits_nowhere_is_said_once(cli: Cli) -> None:
    outcome = cli("batch", "--threads", "500", "--cpu", "64", "--quiet", "--", "true")

    assert outcome.code == 9
    (why,) = [line for line in outcome.text.splitlines() if line.startswith("stopped")]
    assert why.startswith("stopped  its slot requests were refused: no executor could host 64")
    assert why.endswith("; request less, or use --allow-pending to wait for another executor")


def test_a_batch_waits_for_another_one(cli: Cli, folder: Path, tmp_path: Path) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    first, second, third = unique("first"), unique("second"), unique("third")
    wait = f"until [ -e {go} ]; do sleep 0.1; done; exit 3"
    one = ("--threads", "1", *SMALL, "--retries", "0")
    begun = cli("batch", *one, "--name", first, "--detach", "--", "sh", "-c", wait)
    assert begun.code == 0, begun.stderr
    both = [
        cli.start("batch", *one, "--name", name, "--after", f"{first}{how}", "--", "touch", file)
        for name, how, file in ((second, ":failed", str(ran)), (third, "", str(tmp_path / "no")))
    ]
    eventually(
        lambda: sum(each["reason"] == "WAITING_DEPENDENCY" for each in cli.items("requests")) == 2,
        "both wait for the first",
    )
    assert not ran.exists()
    go.touch()
    after, never = map(finish, both)
    assert after.code == 0, after.stderr
    assert ran.exists()
    assert never.code != 0
    assert (
        "a job that it waits for has ended in another way" in never.stdout.decode() + never.stderr
    )
    assert not (tmp_path / "no").exists()

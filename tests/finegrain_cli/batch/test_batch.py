"""`finegrain batch`: starts, continues and stops batches; its output and exit codes. The runner is
scripted. The real runner has separate tests, also in tests/e2e.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.errors import NotFound, Reason
from finegrain_client.batch.status import default_folder, read_status
from finegrain_client.batch.values import BatchState
from resource_manager.engine.lifecycle.waiting import TO_WAIT
from tests.finegrain_cli.batch.conftest import MakeBatch, Runners, result
from tests.support.cli import Finegrain


def only_batch() -> Any:
    (path,) = default_folder().glob("*.batch")
    return read_status(path)


def test_as_in_the_manual(finegrain: Finegrain, runners: Runners) -> None:
    runners.ends(500)
    flags = ("--threads", "500", "--cpu", "0.25", "--memory", "128M", "--group", "medium")
    done = finegrain("batch", *flags, "--", "./work.sh", "{index}")

    assert done.exit_code == 0, done.output
    spec = only_batch().spec
    assert (spec.threads, spec.command, spec.group) == (500, ("./work.sh", "{index}"), "medium")
    assert spec.slot == fg.SlotSpec(cpu_milli=250, memory_bytes=128 * fg.MIB)
    assert (spec.name, spec.retries, spec.on_failure) == ("work.sh", 2, "continue")
    assert "threads  500: 500 done, 0 failed" in done.stdout
    assert "500 of 500 done" in done.stderr
    assert "done" not in done.stdout.replace("500 done", "")


def test_every_wish_reaches_the_batch(
    finegrain: Finegrain, runners: Runners, tmp_path: Path
) -> None:
    runners.ends(3)
    flags = (
        *("--threads", "3", "--name", "load", "--retries", "5", "--retry-delay", "250ms"),
        *("--on-failure", "stop", "--failures-max", "7", "--speculate", "--slots-max", "2"),
        *("--timeout", "90s", "--output-limit", "1M", "--user", "nobody", "--env", "KEY={index}"),
        *("--label", "zone=a", "--resource", "licence=2", "--pids", "64", "--cpu-limit", "2"),
        *(
            "--job-label",
            "team=ml",
            "--allow-pending",
            "--results",
            str(tmp_path / "out"),
            "--cwd",
            "/srv",
        ),
    )
    assert finegrain("batch", *flags, "--", "load").exit_code == 0

    batch = only_batch()
    spec = batch.spec
    assert (spec.name, spec.retries, spec.retry_delay_s) == ("load", 5, 0.25)
    assert (spec.on_failure, spec.failures_max, spec.speculate) == ("stop", 7, True)
    assert (spec.slots_max, spec.timeout_s, spec.output_limit_bytes) == (2, 90.0, fg.MIB)
    assert (spec.user, spec.cwd, spec.env["KEY"]) == ("nobody", "/srv", "{index}")
    assert (spec.slot.labels, spec.slot.extended) == ({"zone": "a"}, {"licence": 2})
    assert spec.job_labels == {"team": "ml"}
    assert (spec.slot.pids_max, spec.slot.cpu_limit_milli) == (64, 2000)
    assert spec.slot.allow_pending
    assert batch.results_dir == str(tmp_path / "out")
    assert (tmp_path / "out/results.csv").read_text(encoding="utf-8").count("DONE") == 3


@pytest.mark.parametrize(
    ("program", "where"),
    [("./work.sh", "here"), ("bin/work", "here"), ("work", ""), ("/bin/true", "")],
)
def test_a_program_with_a_relative_path_is_meant_to_be_here(
    finegrain: Finegrain,
    runners: Runners,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    where: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    runners.ends(1)
    finegrain("batch", "--threads", "1", "--", program)

    assert only_batch().spec.cwd == (str(tmp_path) if where else "")


def test_threads_that_failed_have_an_exit_code_of_their_own(
    finegrain: Finegrain, runners: Runners
) -> None:
    runners.ends(4, 2)
    done = finegrain("batch", "--threads", "4", "--name", "load", "--", "true")

    assert done.exit_code == 9
    assert "failed   thread 2 ended with exit code 7 (3 attempts)" in done.stdout
    assert "1 thread is not done; resume with finegrain batch --attach load-" in done.stderr
    assert "--retry-failed" in done.stderr


def test_a_batch_that_its_policy_stopped_says_why(finegrain: Finegrain, runners: Runners) -> None:
    runners.outcomes = {0: True, 1: False}
    runners.message = f"1 thread failed, and none may{TO_WAIT}"
    done = finegrain("batch", "--threads", "4", "--on-failure", "stop", "--", "true")

    assert done.exit_code == 9
    assert "stopped  1 thread failed, and none may; request less, or use --allow" in done.stdout
    assert "threads  4: 1 done, 1 failed, 2 left" in done.stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_stops_it_and_says_how_to_go_on(
    finegrain: Finegrain, runners: Runners, number: signal.Signals, code: int
) -> None:
    runners.outcomes, runners.signals = {0: True}, (number,)
    done = finegrain("batch", "--threads", "3", "--name", "load", "--", "true")

    assert done.exit_code == code
    assert len(runners.cancelled) == 1
    assert "stopping running tasks; repeat the signal to stop immediately" in done.stderr
    assert "stopped; resume with finegrain batch --attach load-" in done.stderr
    assert "threads  3: 1 done, 0 failed, 2 left" in done.stdout

    runners.signals = ()
    runners.outcomes = {1: True, 2: True}
    again = finegrain("batch", "--attach", "load")
    assert again.exit_code == 0
    assert "threads  3: 3 done, 0 failed" in again.stdout


def test_twice_means_at_once(
    finegrain: Finegrain, runners: Runners, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners.outcomes, runners.signals = {0: True}, (signal.SIGINT, signal.SIGINT)
    codes: list[int] = []
    monkeypatch.setattr("finegrain_cli.two_signals.os._exit", codes.append)
    done = finegrain("batch", "--threads", "3", "--name", "load", "--", "true")

    assert codes == [130]
    assert "stopped immediately; resume with finegrain batch --attach load-" in done.stderr


def test_as_json_for_programs(finegrain: Finegrain, runners: Runners) -> None:
    runners.ends(2, 1)
    done = finegrain("batch", "--threads", "2", "--json", "--quiet", "--", "true")
    shown = json.loads(done.stdout)

    assert (shown["kind"], shown["progress"]["done"]) == ("Batch", 1)
    assert [each["index"] for each in shown["failures"]] == [1]
    assert "of 2 done" not in done.stderr


def test_what_has_ended_is_told_again_and_failures_are_retried_on_demand(
    finegrain: Finegrain, runners: Runners, make_batch: MakeBatch
) -> None:
    ended = [result(0), result(1, ok=False)]
    make_batch("load", *ended, threads=2, state=BatchState.ENDED)

    assert finegrain("batch", "--attach", "load").exit_code == 9
    assert runners.retried == []
    finegrain("batch", "--attach", "load", "--retry-failed")
    assert runners.retried == [True]


def test_nothing_is_left_of_what_could_not_be_begun(finegrain: Finegrain, runners: Runners) -> None:
    runners.error = NotFound("there is no group 'medum'", reason=Reason.GROUP_UNKNOWN)
    done = finegrain("batch", "--threads", "2", "--group", "medum", "--", "true")

    assert done.exit_code == 3
    assert "there is no group 'medum'" in done.stderr
    assert list(default_folder().iterdir()) == []


def test_what_only_begins_like_the_state_file_is_left_alone(
    finegrain: Finegrain, runners: Runners, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "n-2").mkdir()
    runners.error = NotFound("there is no group 'medum'", reason=Reason.GROUP_UNKNOWN)
    before = {"notes.txt", "n-2", "home"}
    finegrain("batch", "--threads", "2", "--state", str(tmp_path / "n"), "--", "true")

    assert {each.name for each in tmp_path.iterdir()} == before


def test_a_disk_that_is_full_is_no_traceback(finegrain: Finegrain, runners: Runners) -> None:
    runners.error = OSError(28, "No space left on device", "/srv/out/7.stdout")
    done = finegrain("batch", "--threads", "2", "--name", "load", "--", "true")

    assert done.exit_code == 1
    assert "/srv/out/7.stdout cannot be written: No space left on device; fix that" in done.stderr


def test_results_that_cannot_be_written_are_said(
    finegrain: Finegrain, runners: Runners, tmp_path: Path
) -> None:
    runners.ends(2)
    (tmp_path / "file").touch()
    results = str(tmp_path / "file/out")
    done = finegrain("batch", "--threads", "2", "--results", results, "--", "true")

    assert done.exit_code == 1
    assert "cannot be written: Not a directory; fix that, then resume with" in done.stderr


def test_where_nobody_answers_nothing_is_made(finegrain: Finegrain, runners: Runners) -> None:
    runners.unreachable = True

    assert finegrain("batch", "--threads", "2", "--", "true").exit_code == 7
    assert not default_folder().exists()


def test_what_is_not_worked_on_is_stopped_by_ending_its_job(
    finegrain: Finegrain, runners: Runners, make_batch: MakeBatch
) -> None:
    path = make_batch("load", result(0))
    done = finegrain("batch", "--stop", "load")

    assert (done.exit_code, runners.cancelled) == (0, [path])
    assert "resume with finegrain batch --attach load" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "expected --threads N and -- COMMAND"),
        (("--threads", "3"), "expected --threads N and -- COMMAND"),
        (("--", "true"), "expected --threads N and -- COMMAND"),
        (("--threads", "3", "--attach", "x", "--", "true"), "or else --attach NAME"),
        (("--attach", "x", "--stop", "x"), "or else --attach NAME"),
        (("--threads", "2000000", "--", "true"), "threads is 2000000"),
        (("--threads", "3", "--cpu", "lots", "--", "true"), "--cpu is 'lots'"),
        (("--threads", "3", "--retry-failed", "--", "true"), "--attach NAME as well"),
        (("--threads", "3", "--env", "FINEGRAIN_X=1", "--", "true"), "FINEGRAIN_"),
    ],
)
def test_what_cannot_be_meant(
    finegrain: Finegrain, runners: Runners, arguments: tuple[str, ...], told: str
) -> None:
    done = finegrain("batch", *arguments)

    assert done.exit_code == 2, done.output
    assert told in done.stderr


def test_a_batch_that_is_not_there(finegrain: Finegrain, runners: Runners) -> None:
    assert finegrain("batch", "--attach", "nobody").exit_code == 3
    assert finegrain("batch", "--stop", "nobody").exit_code == 3
    assert finegrain("batches", "nobody").exit_code == 3


def test_batches_are_listed_newest_last(finegrain: Finegrain, make_batch: MakeBatch) -> None:
    make_batch("old", result(0), result(1, ok=False))
    make_batch("new", group="medium")
    lines = finegrain("batches").stdout.splitlines()

    assert lines[0].split() == [
        "BATCH",
        "STATE",
        "THREADS",
        "DONE",
        "FAILED",
        "RUNNING",
        "AGE",
        "RUNNER",
    ]
    assert lines[1].split()[:6] == ["old", "OPEN", "4", "1", "1", "0"]
    assert lines[2].split()[:6] == ["new", "OPEN", "4", "0", "0", "0"]
    (row,) = json.loads(finegrain("batches", "ne", "-o", "json").stdout)["items"]
    assert (row["batch"], row["spec"]["group"], row["runner_pid"]) == ("new", "medium", 0)
    assert "medium" in finegrain("batches", "-o", "wide").stdout


def test_a_shell_completes_names(finegrain: Finegrain, make_batch: MakeBatch) -> None:
    make_batch("load-1")
    make_batch("load-2")
    make_batch("other")
    line = "finegrain batch --attach lo"
    asked = {"_FINEGRAIN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "finegrain_cli"],
        env=dict(os.environ) | asked,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.split() == ["load-1", "load-2"], done.stderr

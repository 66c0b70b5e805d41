"""Tests of the state file: one runner, one result per thread, and nothing half written."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

import finegrain_client as fg
from finegrain_client.batch.lock import lock_path
from finegrain_client.batch.rows import AttemptRow, Changes, SubmittedRow
from finegrain_client.batch.schema import RESULTS
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.status import read_status, read_thread_results, state_files
from finegrain_client.batch.values import ThreadResult, unknown_result
from tests.support.full_values import full_value

SPEC = fg.BatchSpec(
    3,
    ["work", "{index}"],
    slot=fg.SlotSpec(cpu_milli=250, labels={"zone": "a"}),
    env={"LANG": "C"},
    failures_max=2,
)
BEGUN = AttemptRow(1, 1, 1, "r.1", 1, "host-a", 1000.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deeper" / "state"


def test_what_was_written_is_there_after_a_kill(path: Path) -> None:
    """The process ends right after `write` returned, without cleanup."""
    code = f"""
import os
import finegrain_client as fg
from pathlib import Path
from finegrain_client.batch.state_file import *
from finegrain_client.batch.values import ThreadResult, unknown_result
from tests.support.full_values import full_value
state = StateFile.create(Path({str(path)!r}), fg.BatchSpec(3, ["work"]), None)
row = state.add_job("job-1")
begun = AttemptRow(1, 1, 1, "r.1", 1, "host-a", 1000.5)
submitted = [SubmittedRow(0, 3)]
state.write(1, Changes(begun=[begun], results=[unknown_result(0, "why")], submitted=submitted))
os._exit(9)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 9
    known = StateFile.open(path).known()
    assert known.final == {0: fg.ThreadState.FAILED}
    assert known.open == [BEGUN]
    assert known.used == {("r.1", 1)}
    assert known.submitted == [SubmittedRow(0, 3)]
    assert known.job is not None
    assert (known.job.job_id, known.job.ended) == ("job-1", False)


def test_the_batch_is_read_as_it_was_written(path: Path) -> None:
    state = StateFile.create(path, SPEC, Path("results"))
    state.close()
    again = StateFile.open(path)
    assert again.spec == SPEC
    assert again.results_dir == Path("results").absolute()
    assert again.batch_id == state.batch_id


def test_the_first_result_stays(path: Path) -> None:
    state = StateFile.create(path, SPEC, None)
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = replace(unknown_result(0, "first"), start_time=moment, stdout_tail=b"\x00\xff")
    state.write(0, Changes(results=[first]))
    state.write(0, Changes(results=[unknown_result(0, "second")]))
    assert state.results() == [first]
    assert list(read_thread_results(path)) == [first]


def test_a_file_is_for_its_owner_only(path: Path) -> None:
    """It contains the environment of the threads."""
    state = StateFile.create(path, SPEC, None)
    modes = {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
    state.close()
    assert modes == {0o600}


def test_two_runners_never_work_on_one_batch(path: Path) -> None:
    state = StateFile.create(path, SPEC, None)
    with pytest.raises(fg.AlreadyExists, match=f"pid {os.getpid()}") as refused:
        StateFile.open(path)
    assert refused.value.reason == fg.Reason.STORE_IN_USE
    assert read_status(path).runner_pid == os.getpid()
    state.close()
    assert not read_status(path).is_worked_on
    StateFile.open(path).close()


def test_whoever_has_just_taken_the_lock_is_not_taken_for_the_last_one(path: Path) -> None:
    """The old pid may belong to another process by now, and stopping a batch signals that pid."""
    StateFile.create(path, SPEC, None).close()
    left = json.loads(lock_path(path).read_text())
    lock_path(path).write_text(json.dumps(left | {"began": "12"}))
    with lock_path(path).open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        batch = read_status(path)
        with pytest.raises(fg.AlreadyExists, match=r"working on .*state; wait"):
            StateFile.open(path)
    assert (batch.is_worked_on, batch.runner_pid, batch.runner_host) == (True, 0, "?")


def test_a_database_of_others_stays_as_it_is(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.execute("create table theirs (key)")
    before = path.read_bytes()
    for open_it in (StateFile.open, read_status):
        with pytest.raises(fg.ConfigurationError, match="not the state file"):
            open_it(path)
    assert path.read_bytes() == before


def test_a_batch_is_not_made_where_there_is_one(path: Path) -> None:
    StateFile.create(path, SPEC, None).close()
    with pytest.raises(fg.AlreadyExists, match="exists already"):
        StateFile.create(path, SPEC, None)


def test_what_ran_under_a_job_that_is_over_is_not_expected_back(path: Path) -> None:
    state = StateFile.create(path, SPEC, None)
    row = state.add_job("job-1")
    state.write(row.number, Changes(begun=[BEGUN], submitted=[SubmittedRow(0, 3)]))
    state.end_job(row.number)
    known = state.known()
    assert (known.open, known.submitted, known.losses) == ([], [], {})
    assert known.attempts == {1: 1}  # its number is not used again


def test_failures_can_be_forgotten(path: Path) -> None:
    state = StateFile.create(path, SPEC, None)
    row = state.add_job("job-1")
    ended = [(1, 1, "lost", "its host went"), (1, 2, "failed", "exit 1")]
    begun = [BEGUN, replace(BEGUN, attempt=2)]
    state.write(row.number, Changes(begun=begun, ended=ended, results=[unknown_result(1, "")]))
    known = state.known()
    assert (known.failures, known.losses) == ({1: 1}, {1: 1})
    assert state.forget_failures() == 1
    known = state.known()
    assert (known.final, known.failures, known.losses) == ({}, {}, {})
    assert known.attempts == {1: 2}
    assert known.lost == [BEGUN]  # its slot may return with the attempt in it


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b""])
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(fg.ConfigurationError) as refused:
        StateFile.open(path)
    assert refused.value.reason == fg.Reason.STORE_CORRUPT
    with pytest.raises(fg.ConfigurationError):
        read_status(path)


def test_a_file_of_the_first_version_is_read_and_upgraded(path: Path) -> None:
    state = StateFile.create(path, SPEC, None)
    row = state.add_job("job-1")
    state.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "alter table jobs add column secret text not null default 'x'; pragma user_version = 1"
        )
    assert list(read_thread_results(path)) == []
    again = StateFile.open(path)
    assert again.known().job == row
    assert again.add_job("job-2").job_id == "job-2"
    again.close()
    StateFile.open(path).close()


def test_a_file_of_another_version_is_refused(path: Path) -> None:
    StateFile.create(path, SPEC, None).close()
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 99")
    with pytest.raises(fg.ConfigurationError, match="version 99") as refused:
        StateFile.open(path)
    assert refused.value.reason == fg.Reason.STORE_SCHEMA


def test_a_file_that_is_not_there_is_not_made(path: Path) -> None:
    for open_it in (StateFile.open, read_status):
        with pytest.raises(fg.NotFound):
            open_it(path)
    assert not path.parent.exists()


def test_new_batches_lie_in_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_BATCH_DIR", str(tmp_path))
    name = fg.batch.default_state_file("sort & count")
    assert name.parent == tmp_path
    assert name.name.startswith("sort-count-")
    StateFile.create(name, SPEC, None).close()
    assert state_files() == [name]
    assert fg.batch.default_state_file("sort & count") != name


def test_every_field_of_a_result_comes_back_from_its_row() -> None:
    result = full_value(ThreadResult)
    row = RESULTS.encode(result)
    assert None not in row
    assert RESULTS.decode(row) == result
    assert row[:3] == (1, "FAILED", 3)

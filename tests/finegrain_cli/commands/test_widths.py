"""Lists fit the width of a terminal, and show ids that a person can type."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain_cli.last import last_allocation_id, last_job_id, remember
from finegrain_cli.text.fit import ShortIds, fitted, shortened
from finegrain_cli.text.output import Column
from tests.support.cli import (
    EXECUTOR,
    JOB,
    PROVIDERS,
    SLOT,
    WAITING,
    FakeCluster,
    Finegrain,
)

LONG = "a-host-of-this-cluster-with-a-very-long-name.rack-17.example.com"
LISTS = ("executors", "slots", "requests", "jobs", "events", "groups", "groups --jobs", "providers")


@pytest.fixture
def long_names(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """A cluster in which every name is long."""
    devices = {f"extended.{name}": 3 for name in ("license-of-a-simulator", "ports", "tape")}
    total = {**EXECUTOR.total, **devices}
    cluster.executor_list = [replace(EXECUTOR, executor_id=LONG, total=total, available=total)]
    cluster.slot_list = [replace(SLOT, executor_id=LONG)]
    cluster.request_list = [replace(WAITING, job_name=LONG, reason="WAITING_FOR_SOMETHING_LONG")]
    cluster.provided = PROVIDERS
    job = replace(JOB, name=LONG, end_reason="CANCELLED_BY_AN_OPERATOR", ended=True)
    monkeypatch.setattr(cluster, "jobs", lambda include_ended=False, matching=(): [job])
    monkeypatch.setenv("COLUMNS", "80")
    return cluster


@pytest.mark.parametrize("command", LISTS)
def test_every_list_fits_80_columns(
    finegrain: Finegrain, long_names: FakeCluster, command: str
) -> None:
    lines = finegrain(*command.split()).stdout.splitlines()

    # The last error of a provider is a sentence below its table.
    assert [line for line in lines if len(line) > 80 and "start.sh ended" not in line] == []


@pytest.mark.parametrize("columns", ["", "20", "80", "no number"])
def test_without_a_terminal_a_list_has_at_least_80_columns(
    finegrain: Finegrain, long_names: FakeCluster, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    at_80 = finegrain("slots").stdout
    monkeypatch.setenv("COLUMNS", columns)

    assert finegrain("slots").stdout == at_80


def test_a_wider_terminal_shows_more(
    finegrain: Finegrain, long_names: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LONG not in finegrain("slots").stdout
    monkeypatch.setenv("COLUMNS", "250")

    row = finegrain("slots").stdout.splitlines()[1]

    assert row.count(LONG) == 2  # the name of the job, and the executor


def test_wide_has_full_ids_and_names_whatever_the_width(
    finegrain: Finegrain, long_names: FakeCluster
) -> None:
    wide = finegrain("slots", "-o", "wide").stdout

    assert all(text in wide for text in (LONG, SLOT.allocation_id, SLOT.job_id))


def test_names_stand_before_ids_which_are_short(finegrain: Finegrain, cluster: FakeCluster) -> None:
    short = "000000000001"[-8:]
    for command in ("slots", "requests", "jobs"):
        assert finegrain(command).stdout.splitlines()[1].split()[:2] == ["nightly", short]


def test_free_ports_are_not_repeated_for_every_executor(
    finegrain: Finegrain, long_names: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")

    assert "tape 3" in finegrain("executors").stdout
    assert "ports" not in finegrain("executors").stdout
    assert "PORTS" in finegrain("executors", "-o", "wide").stdout


@pytest.mark.parametrize("job", ["nightly", "00000001", "01bbbbbb", JOB.job_id])
def test_lists_of_a_job_take_its_name_or_a_part_of_its_id(
    finegrain: Finegrain, cluster: FakeCluster, job: str
) -> None:
    for command in ("slots", "requests"):
        rows = json.loads(finegrain(command, "--job", job, "-o", "json").stdout)["items"]
        assert {row["job_id"] for row in rows} == {JOB.job_id}
    unknown = finegrain("slots", "--job", "nonesuch")
    assert (unknown.exit_code, "JOB_UNKNOWN" in unknown.stderr) == (3, True)


def test_last_names_my_latest_job_and_its_request(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    none_yet = finegrain("requests", "last")
    assert none_yet.exit_code == 3
    assert "finegrain run" in none_yet.stderr
    remember("older-job", "older-request")
    elsewhere = [finegrain("explain", "last"), finegrain("terminate", "last", "--yes")]
    assert [each.exit_code for each in elsewhere] == [3, 3]
    assert "`last` is request older-request, which this cluster does not" in elsewhere[0].stderr
    assert "`last` is job older-job, which this cluster does not know" in elsewhere[1].stderr
    remember(JOB.job_id, WAITING.allocation_id)

    assert (last_job_id(), last_allocation_id()) == (JOB.job_id, WAITING.allocation_id)
    (request,) = json.loads(finegrain("requests", "last", "-o", "json").stdout)["items"]
    assert request["allocation_id"] == WAITING.allocation_id
    (job,) = json.loads(finegrain("jobs", "last", "-o", "json").stdout)["items"]
    assert job["job_id"] == JOB.job_id
    assert finegrain("terminate", "last", "--yes").exit_code == 0
    assert cluster.done[-1][:2] == ("terminate", JOB.job_id)


def test_a_record_that_cannot_be_written_does_not_stop_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    remember("job")


def test_a_short_id_is_longer_only_if_two_look_alike() -> None:
    one = "0193a000-0000-7000-8000-0000a1b2c3d4"
    alike = "0193a000-0000-7000-8000-0001a1b2c3d4"
    other = "0193a000-0000-7000-8000-0000ffffffff"
    short = ShortIds([one, alike, other, f"{other}.17", "chosen-by-a-person"])

    assert short(one) == "0a1b2c3d4"
    assert short(alike) == "1a1b2c3d4"
    assert short(other) == "ffffffff"
    assert short(f"{other}.17") == "ffffffff.17"
    assert short("chosen-by-a-person") == "chosen-by-a-person"
    assert ShortIds([one, one])(one) == "a1b2c3d4"


def test_columns_are_left_out_by_rank_and_cells_are_shortened_in_the_middle() -> None:
    columns = [
        Column("name", str, shrinks=True),
        Column("state", str, rank=1),
        Column("reason", str, rank=2, shrinks=True),
        Column("empty", str, rank=1),
    ]
    rows = [["n" * 30, "ACTIVE", "r" * 30, "-"]]

    assert fitted(columns, rows, 100) == [(0, 30), (1, 6), (2, 30), (3, 5)]
    assert fitted(columns, rows, 60) == [(0, 21), (1, 6), (2, 22), (3, 5)]
    assert fitted(columns, rows, 53) == [(0, 21), (1, 6), (2, 22)]
    assert fitted(columns, rows, 40) == [(0, 30), (1, 6)]
    assert fitted(columns, rows, 20) == [(0, 20)]
    assert shortened("abcdefghij", 6) == "ab..ij"
    assert shortened("abc", 6) == "abc"

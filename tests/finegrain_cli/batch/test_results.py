"""The results of a batch: a summary, results.json and results.csv."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from finegrain_cli.batch.results import print_outcome, write_results
from finegrain_cli.text.output import OutputFormat
from finegrain_client.batch.status import read_status
from finegrain_client.batch.values import BatchState
from tests.finegrain_cli.batch.conftest import MakeBatch, result


def test_the_summary_says_what_failed_and_why(
    make_batch: MakeBatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = result(2, ok=False, message="ended with exit code 7; it said: no\nsuch file")
    path = make_batch("nightly", result(0), result(1), failed, state=BatchState.STOPPED)
    print_outcome(read_status(path), OutputFormat.TABLE)

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "batch    nightly"
    assert lines[1] == "threads  4: 2 done, 1 failed, 1 left"
    assert (
        lines[-1] == "failed   thread 2 ended with exit code 7; it said: no such file (3 attempts)"
    )


def test_many_failures_are_counted_not_listed(
    make_batch: MakeBatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = [result(number, ok=False) for number in range(30)]
    print_outcome(read_status(make_batch("nightly", *failed, threads=30)), OutputFormat.TABLE)

    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("failed") for line in lines) == 10
    assert lines[-1] == "         and 20 more"


def test_as_json_for_programs(make_batch: MakeBatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = make_batch("nightly", result(0), result(1, ok=False), env={"KEY": "secret"})
    print_outcome(read_status(path), OutputFormat.JSON)

    text = capsys.readouterr().out
    shown = json.loads(text)
    assert (shown["api_version"], shown["kind"]) == ("finegrain/v1", "Batch")
    assert (shown["progress"]["done"], shown["progress"]["failed"]) == (1, 1)
    assert [each["index"] for each in shown["failures"]] == [1]
    assert shown["spec"]["env"] == ["KEY"]
    assert "secret" not in text


def test_as_json_lines_every_result(
    make_batch: MakeBatch, capsys: pytest.CaptureFixture[str]
) -> None:
    print_outcome(read_status(make_batch("nightly", result(0), result(3))), OutputFormat.JSONL)

    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["index"], row["state"], row["stdout_tail"]) for row in rows] == [
        (0, "DONE", "42\n"),
        (3, "DONE", "42\n"),
    ]


def test_files_for_spreadsheets_and_programs(make_batch: MakeBatch, tmp_path: Path) -> None:
    directory = tmp_path / "out"
    awkward = result(1, ok=False, message='said "a, b"\nand more')
    path = make_batch("nightly", result(0), awkward, results_dir=directory)
    write_results(read_status(path))
    write_results(read_status(path))  # again: the same

    shown = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    assert shown["kind"] == "BatchResults"
    assert [each["index"] for each in shown["results"]] == [0, 1]
    assert shown["results"][1]["message"] == 'said "a, b"\nand more'
    with (directory / "results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["index"], row["state"], row["exit_code"]) for row in rows] == [
        ("0", "DONE", "0"),
        ("1", "FAILED", "7"),
    ]
    assert rows[1]["message"] == 'said "a, b"\nand more'
    assert sorted(each.name for each in directory.iterdir()) == ["results.csv", "results.json"]


def test_without_results_the_files_are_sound_too(make_batch: MakeBatch, tmp_path: Path) -> None:
    write_results(read_status(make_batch("nightly", results_dir=tmp_path / "out")))

    assert json.loads((tmp_path / "out/results.json").read_text(encoding="utf-8"))["results"] == []
    assert (tmp_path / "out/results.csv").read_text(encoding="utf-8") == ""


def test_without_a_directory_nothing_is_written(make_batch: MakeBatch, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    path = make_batch("nightly", result(0))
    write_results(read_status(path))

    assert not [each for each in tmp_path.rglob("results.*") if each not in before]

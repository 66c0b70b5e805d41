"""`finegrain simulate trace` on cuts of real logs: tables, data, pictures, and bad input."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.cli import Finegrain
from tests.support.components import REPOSITORY

TRACES = REPOSITORY / "tests/data/traces"
NASA = str(TRACES / "nasa-ipsc-1993-first-500.swf.gz")
SHORT = ("--limit", "30")


def test_a_log_is_replayed_on_the_nodes_that_it_names(finegrain: Finegrain) -> None:
    result = finegrain("simulate", "trace", NASA, *SHORT)

    assert result.exit_code == 0
    first = result.stdout.splitlines()[0]
    assert first.startswith("nasa-ipsc-1993-first-500.swf.gz (swf): 30 jobs with 987 slots")
    assert first.endswith("on 128 nodes with 128 cores")
    assert "| idle beside fitting work " in result.stdout
    assert "fair, by group:" in result.stdout


def test_policies_are_compared_side_by_side_and_kept_as_data(
    finegrain: Finegrain, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    result = finegrain(
        *("simulate", "trace", NASA, *SHORT, "--policy", "fair", "--policy", "arrival"),
        *("--speedup", "8", "--weights", "user-1=4", "--json", str(report), "-o", "json"),
    )

    assert result.exit_code == 0
    printed, kept = json.loads(result.stdout), json.loads(report.read_text())
    assert printed == {"api_version": "finegrain/v1", "kind": "TraceReport", **kept}
    assert [each["policy"] for each in kept["policies"]] == ["fair", "arrival"]
    for each in kept["policies"]:
        assert each["jobs"] == 30
        assert each["idle"]["beside_fitting_work"] == 0
        assert each["wait_s"]["most"] > each["wait_s"]["median"]
        assert [g["weight"] for g in each["groups"] if g["name"] == "user-1"] == [4]
    assert kept["settings"]["weights"] == {"user-1": 4}


def test_settings_of_sharing_are_those_that_are_given(finegrain: Finegrain) -> None:
    result = finegrain(
        *("simulate", "trace", NASA, "--limit", "5", "--half-life", "none", "--lookahead", "0"),
        *("--service", "slots", "--starvation-timeout", "1h", "--group-by", "group", "--moldable"),
        *("--nodes", "16x8cpu", "--reservations-max", "2", "--reserved-part-max", "0.5"),
        *("-o", "json"),
    )

    settings = json.loads(result.stdout)["settings"]
    assert settings == {
        "group_by": "group",
        "weights": {},
        "moldable": True,
        "service": "slots",
        "half_life_s": None,
        "lookahead_s": 0,
        "starvation_timeout_s": 3_600,
        "reservations_max": 2,
        "reserved_part_max": 0.5,
        "slowdown_bound_s": 10,
    }


def test_a_part_of_a_log_is_what_arrives_in_it(finegrain: Finegrain) -> None:
    whole = json.loads(finegrain("simulate", "trace", NASA, "--until", "6h", "-o", "json").stdout)
    part = json.loads(
        finegrain("simulate", "trace", NASA, "--from", "3h", "--until", "6h", "-o", "json").stdout
    )
    assert 0 < part["trace"]["jobs"] < whole["trace"]["jobs"] < 500


def test_what_is_not_modelled_is_said(finegrain: Finegrain) -> None:
    nodes = str(TRACES / "openb-nodes-cut.csv")
    pods = str(TRACES / "openb-pods-cut.csv")
    result = finegrain("simulate", "trace", pods, "--nodes", nodes, *SHORT)

    assert result.exit_code == 0
    assert "note: a request that was never scheduled there runs from its" in result.stdout
    plain = finegrain("simulate", "trace", pods, "--nodes", "20x64cpu", *SHORT)
    assert "note: gpu is not modeled: no node has any" in plain.stdout
    assert "note: memory is not modeled: no node has any" in plain.stdout


def test_waits_of_the_log_itself_are_told(finegrain: Finegrain) -> None:
    result = finegrain("simulate", "trace", str(TRACES / "wagap-2013-cut.csv"), *SHORT)
    assert "waiting times on the original cluster, as the log records them: mean " in result.stdout
    assert "left out: 2 x no end recorded" in result.stdout


def test_pictures_as_text_and_as_png(finegrain: Finegrain, tmp_path: Path) -> None:
    text, picture = tmp_path / "plot.txt", tmp_path / "plot.png"
    result = finegrain(
        *("simulate", "trace", NASA, *SHORT, "--policy", "fair", "--policy", "arrival"),
        *("--plot", str(text), "--plot", str(picture)),
    )

    assert result.exit_code == 0
    lines = text.read_text().splitlines()
    assert lines[0].startswith("cores in use, of 128")
    assert [line.split()[0] for line in lines[1:3]] == ["fair", "arrival"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_picture_without_matplotlib_says_how_to_get_it(
    finegrain: Finegrain, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = finegrain("simulate", "trace", NASA, "--plot", str(tmp_path / "plot.png"))
    assert result.exit_code != 0
    assert "pip install 'finegrain[plots]'" in result.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--policy", "random"), "--policy is 'random'; expected one of fair, arrival"),
        (("--service", "gpu"), "--service is 'gpu'; expected one of dominant, slots, cpu"),
        (("--half-life", "0"), "--half-life is '0'; expected more than 0, or never"),
        (("--speedup", "0"), "--speedup is 0.0; expected a number above 0"),
        (("--speedup", "nan"), "--speedup is nan; expected a number above 0"),
        (("--plot", "x.pdf"), "--plot is 'x.pdf'; expected a name that ends in .png, .svg or .txt"),
        (("--weights", "user-1=much"), "--weights is 'user-1=much'; expected GROUP=NUMBER"),
        (("--weights", "nobody=2"), "--weights is 'nobody'; expected a resource group of the log"),
        (("--weights", "user-1=0"), "0.0; expected"),
        (("--group-by", "team"), "--group-by is 'team'; expected one of user, group"),
        (("--nodes", "many"), "--nodes is 'many'; expected kinds of nodes such as 128x1cpu"),
        (("--format", "json"), "--format is 'json'; expected one of swf"),
        (("--from", "1000d"), "expected a log with jobs in the requested interval"),
    ],
)
def test_bad_options_are_told_with_what_was_expected(
    finegrain: Finegrain, options: tuple[str, str], told: str
) -> None:
    result = finegrain("simulate", "trace", NASA, *SHORT, *options)
    assert result.exit_code == 2
    assert told in result.stderr


def test_files_that_cannot_be_read_or_written(finegrain: Finegrain, tmp_path: Path) -> None:
    missing = finegrain("simulate", "trace", str(tmp_path / "no.swf"))
    assert missing.exit_code == 2
    assert "no.swf'; expected a file that can be read" in missing.stderr
    for option in ("--json", "--plot"):
        name = str(tmp_path / "nowhere" / "report.txt")
        unwritten = finegrain("simulate", "trace", NASA, "--limit", "3", option, name)
        assert unwritten.exit_code == 1
        assert f"cannot write {name}" in unwritten.stderr
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "a file, because it is read twice" in finegrain("simulate", "trace", str(pipe)).stderr
    unknown = finegrain("simulate", "trace", str(TRACES / "dlrm-instances-cut.csv"))
    assert "--nodes is ''; expected nodes such as 128x1cpu" in unknown.stderr

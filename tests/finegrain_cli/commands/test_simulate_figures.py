"""`finegrain simulate figures`."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.support.cli import Finegrain
from tests.support.components import REPOSITORY

GOLDEN = REPOSITORY / "tests/data/cli/figures.json"


def test_a_coarse_figure_and_its_fine_counterpart_are_compared(finegrain: Finegrain) -> None:
    shown = finegrain("simulate", "figures", "--figure", "3-1", "--figure", "3-4")

    assert shown.exit_code == 0
    assert shown.stdout.startswith("Figure 3-1: Coarse-grained submission: two jobs\n C1 |1111")
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert "| 3-1, 3-4 | Job 1 | 10 / 100 | 906 s | 671 s | -26% |" in lines


@pytest.mark.parametrize(("coarse", "fine"), [("3-1", "3-4"), ("3-2", "3-5"), ("3-3", "3-6")])
def test_each_difficulty_is_drawn_beside_its_solution_with_completion_times(
    finegrain: Finegrain, tmp_path: Path, coarse: str, fine: str
) -> None:
    """Coarse work takes longer. The pictures show which job ran in which slot until then."""
    options = ["--figure", coarse, "--figure", fine]
    numbers = json.loads(finegrain("simulate", "figures", *options, "-o", "json").stdout)
    before_s, after_s = (
        {job["job"]: job["took_s"] for job in figure["jobs"]} for figure in numbers["items"]
    )
    shown = finegrain("simulate", "figures", *options, "--out", str(tmp_path)).stdout

    assert before_s["Job 1"] > after_s["Job 1"]
    for job in before_s:
        row = next(line for line in shown.splitlines() if f"| {coarse}, {fine} | {job} " in line)
        seconds = [float(cell) for cell in re.findall(r"([0-9.]+) s ", row)]
        assert seconds == pytest.approx([before_s[job], after_s[job]], abs=0.5)
    for name in (coarse, fine):
        picture = (tmp_path / f"figure-{name}.txt").read_text(encoding="utf-8")
        assert re.search(r"^ *C1 +\|1+", picture, re.MULTILINE)
        assert picture.strip() in shown
        assert (tmp_path / f"figure-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_programs_get_numbers(finegrain: Finegrain) -> None:
    done = finegrain("simulate", "figures", "--figure", "3-7", "-o", "json")

    assert json.loads(done.stdout) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_files_are_written_as_text_and_as_pictures(finegrain: Finegrain, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    done = finegrain("simulate", "figures", "--figure", "3-8", "--out", str(folder))

    assert f"wrote 1 figures to {folder}" in done.stderr
    assert (folder / "figure-3-8.txt").read_text(encoding="utf-8") == done.stdout
    assert (folder / "figure-3-8.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_nothing_is_half_done(
    finegrain: Finegrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    folder = tmp_path / "figures"
    refused = finegrain("simulate", "figures", "--figure", "3-8", "--out", str(folder))
    assert refused.exit_code != 0
    assert "finegrain[plots]" in refused.stderr
    assert not folder.exists()

    written = finegrain(
        "simulate", "figures", "--figure", "3-8", "--out", str(folder), "--text-only"
    )
    assert written.exit_code == 0
    assert [each.name for each in folder.iterdir()] == ["figure-3-8.txt"]


def test_a_figure_that_is_none_is_refused_with_those_that_are(finegrain: Finegrain) -> None:
    refused = finegrain("simulate", "figures", "--figure", "3-11")

    assert refused.exit_code == 2
    assert "expected one of 3-1, 3-2" in refused.stderr


def test_a_folder_that_cannot_be_written_is_named(finegrain: Finegrain, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = finegrain(
        "simulate", "figures", "--figure", "3-8", "--text-only", "--out", str(tmp_path / "file")
    )

    assert refused.exit_code != 0
    assert f"cannot write to {tmp_path / 'file'}" in refused.stderr

"""`finegrain job plan`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from finegrain_client.graph import parse_job_file, plan_from_json
from tests.support.cli import Finegrain
from tests.support.components import REPOSITORY

REPORT = str(REPOSITORY / "examples/report.toml")
GOLDEN = REPOSITORY / "tests/data/cli/job-plan.json"

MAKE = """
import finegrain_client as fg
from names import NAME

graph = fg.JobGraph(NAME, "batch")
graph.operator("count", parallelism=2)

def make():
    return graph

def broken():
    raise RuntimeError("no data")

def wrong():
    return 1
"""


@pytest.fixture
def python_file(tmp_path: Path) -> Path:
    (tmp_path / "names.py").write_text('NAME = "from python"\n')
    file = tmp_path / "graph.py"
    file.write_text(MAKE)
    return file


def test_a_plan_is_shown_as_text(finegrain: Finegrain) -> None:
    shown = finegrain("job", "plan", REPORT)

    assert shown.exit_code == 0
    assert shown.stdout.startswith(
        "job report: batch, 2 regions, 7 tasks, needs 4 slots\n\n+-- reg"
    )
    assert "EACH SLOT" in shown.stdout


def test_wide_adds_output_and_programs(finegrain: Finegrain) -> None:
    lines = finegrain("job", "plan", REPORT, "-o", "wide").stdout.splitlines()

    rows = {line.split()[0]: line.split()[-2:] for line in lines if line.endswith(" ./report")}
    # Only parse has output for a blocking edge; ports and co-location groups are not used.
    assert rows["parse"] == ["host", "./report"]
    assert rows["write"] == ["384Ki", "./report"]


def test_its_json_is_as_recorded_and_can_be_read_back(finegrain: Finegrain) -> None:
    shown = finegrain("job", "plan", REPORT, "-o", "json")

    document = json.loads(shown.stdout)
    assert document == json.loads(GOLDEN.read_text(encoding="utf-8"))
    compiled = parse_job_file(Path(REPORT).read_text(encoding="utf-8"), REPORT).compile()
    assert plan_from_json(document) == compiled


@pytest.mark.parametrize(
    ("form", "start"), [("text", "+-- region 1"), ("svg", "<svg "), ("mermaid", "flowchart LR\n")]
)
def test_a_plan_is_drawn(finegrain: Finegrain, form: str, start: str) -> None:
    shown = finegrain("job", "plan", REPORT, "--draw", form)

    assert shown.exit_code == 0
    assert shown.stdout.startswith(start)


@pytest.mark.parametrize(
    ("options", "start"),
    [((), "job report"), (("--draw", "svg"), "<svg "), (("-o", "json"), '{\n  "api_version"')],
)
def test_a_plan_is_written_to_a_file(
    finegrain: Finegrain, tmp_path: Path, options: tuple[str, ...], start: str
) -> None:
    file = tmp_path / "plan"
    shown = finegrain("job", "plan", REPORT, *options, "--out", str(file))

    assert (shown.exit_code, shown.stdout) == (0, "")
    assert shown.stderr == f"finegrain: wrote the plan of report to {file}\n"
    assert file.read_text(encoding="utf-8").startswith(start)


@pytest.mark.parametrize("name", ["make", "graph"])
def test_a_graph_comes_from_a_function_or_variable_of_a_python_file(
    finegrain: Finegrain, python_file: Path, name: str
) -> None:
    shown = finegrain("job", "plan", f"{python_file}:{name}")

    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith("job from python: batch, 1 region, 2 tasks")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "it raised RuntimeError: no data"),
        ("wrong", "expected a function that returns a JobGraph, not int"),
        ("missing", "which has no missing"),
    ],
)
def test_a_python_file_without_a_graph_is_an_error(
    finegrain: Finegrain, python_file: Path, name: str, message: str
) -> None:
    shown = finegrain("job", "plan", f"{python_file}:{name}")

    assert shown.exit_code == 2
    assert f"GRAPH is '{python_file}:{name}'" in shown.stderr
    assert message in shown.stderr


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(:", "it raised SyntaxError: invalid syntax (graph.py, line 1) [INVALID"),
        ("import sys\nsys.exit(3)", "it raised SystemExit: 3 ({file}, line 2) [INVALID"),
        ("def make(size): ...", "it raised TypeError: make() missing 1 required positional arg"),
    ],
)
def test_a_python_file_that_cannot_be_run_is_an_error(
    finegrain: Finegrain, python_file: Path, code: str, message: str
) -> None:
    python_file.write_text(code)
    shown = finegrain("job", "plan", f"{python_file}:make")

    assert shown.exit_code == 2
    assert message.format(file=python_file) in shown.stderr


def test_the_error_of_a_python_file_names_its_line(finegrain: Finegrain, python_file: Path) -> None:
    shown = finegrain("job", "plan", f"{python_file}:broken")

    assert f"({python_file}, line 12)" in shown.stderr


@pytest.mark.parametrize(
    ("argument", "code", "message"),
    [
        ("graph.yaml", 2, "GRAPH is 'graph.yaml'; expected FILE.toml, or FILE.py:FUNCTION"),
        ("none.toml", 1, "none.toml cannot be read: No such file or directory"),
        ("none.py:make", 1, "none.py cannot be read: No such file or directory"),
    ],
)
def test_a_graph_that_is_not_there_is_an_error(
    finegrain: Finegrain, argument: str, code: int, message: str
) -> None:
    shown = finegrain("job", "plan", argument)

    assert shown.exit_code == code
    assert message in shown.stderr


def test_a_graph_that_cannot_be_compiled_is_an_error_with_its_operators(
    finegrain: Finegrain, tmp_path: Path
) -> None:
    file = tmp_path / "streaming.toml"
    text = Path(REPORT).read_text(encoding="utf-8").replace('"batch"', '"streaming"')
    file.write_text(text)
    shown = finegrain("job", "plan", str(file), "-o", "json")

    assert shown.exit_code == 2
    error = json.loads(shown.stdout)
    assert error["code"] == "INVALID_ARGUMENT"
    assert error["details"] == {
        "operators": "parse, count",
        "changes": "parse -> count: pipelined",
    }
    assert "make edge parse -> count pipelined, or the job's mode batch" in error["message"]


def test_a_picture_and_json_are_not_wanted_together(finegrain: Finegrain) -> None:
    shown = finegrain("job", "plan", REPORT, "--draw", "svg", "-o", "json")

    assert shown.exit_code == 2
    assert "--draw is 'svg'; expected no --draw together with -o json" in shown.stderr


def test_a_file_that_cannot_be_written_is_an_error(finegrain: Finegrain, tmp_path: Path) -> None:
    shown = finegrain("job", "plan", REPORT, "--out", str(tmp_path))

    assert shown.exit_code == 1
    assert f"cannot write {tmp_path}" in shown.stderr

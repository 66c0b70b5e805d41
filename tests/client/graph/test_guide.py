"""The guide to job graphs works as written, and shows what the commands really print."""

from __future__ import annotations

import re
from typing import Any

import pytest

from finegrain_client.graph import describe, draw, parse_job_file
from finegrain_client.graph.plan import Plan
from tests.support.components import REPOSITORY

PAGE = (REPOSITORY / "docs/job-graphs.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return parse_job_file(blocks("toml")[0], "report.toml").compile()


def test_the_job_file_of_the_guide_is_the_example() -> None:
    example = (REPOSITORY / "examples/report.toml").read_text(encoding="utf-8")

    assert example.partition("\n")[2] == blocks("toml")[0]


def test_the_guide_shows_the_plan_of_its_job_file(plan: Plan) -> None:
    assert blocks("mermaid")[0] == draw(plan, "mermaid")
    assert describe(plan).endswith("\n\n" + blocks("text")[0].rstrip("\n"))


def test_the_python_blocks_of_the_guide_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        exec(block, names)

    assert capsys.readouterr().out.splitlines()[-1] == "[]"


def test_the_guide_lists_all_keys_of_a_job_file() -> None:
    from tests.client.graph.test_job_file import EVERYTHING, known_keys

    rows = re.findall(r"^\| (`.*?) \|", PAGE.partition("## Keys of a job file")[2], re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}
    for table in ("job", "operator", "edge"):
        keys = {f"{table}.{key}" for key in known_keys(table, EVERYTHING)}
        assert {name for name in listed if name.startswith(f"{table}.")} == keys

"""Tables of clauses in docs name existing tests, at least one per clause in the quick run."""

import ast
import functools
import re
from collections.abc import Iterable

import pytest

from tests.support.components import REPOSITORY

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

TABLES = {
    "docs/clauses/fair-scheduling.md": [f"F{number}" for number in range(1, 29)],
    "docs/clauses/cpu-orchestration.md": [f"C{number}" for number in range(1, 68)],
    "docs/clauses/devices.md": [f"G{number}" for number in range(1, 55)],
    "docs/clauses/operators.md": [f"O{number}" for number in range(1, 19)],
    "docs/clauses/dynamic-slots.md": [
        *(f"D{number}" for number in range(1, 19)),
        *(f"T{number}" for number in range(1, 10)),
    ],
}
WITHOUT_COUNTERPART = {"D16", "C30", "C31", "C34", "C64", "C66", "G40", "G50", "G51", "G52"}
"""Clauses about the internals of other systems; the table says so."""

NOT_MET = {"G41", "G42", "O8", "O9"}
"""Clauses that finegrain does not meet yet; the table says so."""


def _rows(page: str) -> dict[str, list[tuple[str, str]]]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    return {
        row[1]: TEST.findall(row[0])
        for row in re.finditer(r"^\| ([A-Z]\d+) \|.*$", text, re.MULTILINE)
    }


@pytest.mark.parametrize(("page", "clauses"), TABLES.items(), ids=lambda value: str(value)[:20])
def test_every_clause_is_shown_by_a_test(page: str, clauses: Iterable[str]) -> None:
    rows = _rows(page)
    assert list(rows) == clauses
    assert {clause for clause, tests in rows.items() if not tests} <= (
        WITHOUT_COUNTERPART | NOT_MET
    )


@pytest.mark.parametrize("page", TABLES)
def test_the_tests_that_are_named_exist(page: str) -> None:
    for file, name in (each for row in _rows(page).values() for each in row):
        code = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"def {name}\(", code), f"{file}::{name}"


@pytest.mark.parametrize("page", TABLES)
def test_the_stories_that_are_named_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    for names in re.findall(r"::test_story` \(([^)]*)\)", text):
        for name in names.split(", "):
            story = name.strip("`").removesuffix(".txt")
            assert (REPOSITORY / "tests/scenarios" / f"{story}.txt").is_file(), name


@functools.cache
def _of_the_full_run(file: str) -> set[str]:
    """The names of those tests of a file that only `./dev test --all` runs."""
    module = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    marks = [
        ast.unparse(node.value)
        for node in module.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
    ]
    all_full = file.startswith("tests/e2e/") or any("mark.full" in mark for mark in marks)
    return {
        node.name
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and _is_full([ast.unparse(mark) for mark in node.decorator_list], otherwise=all_full)
    }


def _is_full(decorators: list[str], *, otherwise: bool) -> bool:
    if "pytest.mark.quick" in decorators:
        return False
    return otherwise or "pytest.mark.full" in decorators


@pytest.mark.parametrize("page", TABLES)
def test_every_clause_has_a_test_in_the_quick_run(page: str) -> None:
    only_in_full = {
        clause
        for clause, tests in _rows(page).items()
        if tests and all(name in _of_the_full_run(file) for file, name in tests)
    }
    assert only_in_full == set()

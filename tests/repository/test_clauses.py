"""The tables in docs/ name tests that exist, and at least one for every clause."""

import re
from collections.abc import Iterable

import pytest

from tests.support.components import REPOSITORY

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

TABLES = {
    "docs/fairness.md": [f"F{number}" for number in range(1, 21)],
    "docs/cpus.md": [f"C{number}" for number in range(1, 68)],
}
WITHOUT_COUNTERPART = {"C30", "C31", "C34", "C64", "C66"}
"""What is about the machinery of others; the table says so."""


def _rows(page: str) -> dict[str, list[tuple[str, str]]]:
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    table = text.partition("## Clause by clause")[2]
    return {
        row[1]: TEST.findall(row[0])
        for row in re.finditer(r"^\| ([A-Z]\d+) \|.*$", table, re.MULTILINE)
    }


@pytest.mark.parametrize(("page", "clauses"), TABLES.items(), ids=lambda value: str(value)[:20])
def test_every_clause_is_shown_by_a_test(page: str, clauses: Iterable[str]) -> None:
    rows = _rows(page)
    assert list(rows) == clauses
    assert {clause for clause, tests in rows.items() if not tests} <= WITHOUT_COUNTERPART


@pytest.mark.parametrize("page", TABLES)
def test_the_tests_that_are_named_exist(page: str) -> None:
    for file, name in (each for row in _rows(page).values() for each in row):
        code = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"def {name}\(", code), f"{file}::{name}"

"""The table in docs/fairness.md names tests that exist, and at least one for every clause."""

import re

from tests.support.components import REPOSITORY

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def _rows() -> dict[str, list[tuple[str, str]]]:
    page = (REPOSITORY / "docs/fairness.md").read_text(encoding="utf-8")
    table = page.partition("## Clause by clause")[2]
    return {
        row[1]: TEST.findall(row[0])
        for row in re.finditer(r"^\| (F\d+) \|.*$", table, re.MULTILINE)
    }


def test_every_clause_is_shown_by_a_test() -> None:
    rows = _rows()
    assert list(rows) == [f"F{number}" for number in range(1, 21)]
    assert all(rows.values())


def test_the_tests_that_are_named_exist() -> None:
    for file, name in (each for row in _rows().values() for each in row):
        code = (REPOSITORY / file).read_text(encoding="utf-8")
        assert re.search(rf"def {name}\(", code), f"{file}::{name}"

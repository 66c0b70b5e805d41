"""Standard output has only data. Color is used only on terminals, and only if it is not switched
off.
"""

from __future__ import annotations

import json

import pytest

from finegrain.errors import NotFound
from finegrain_cli.text.output import (
    ColorChoice,
    Column,
    OutputFormat,
    colour_wanted,
    print_error,
    print_list,
)


class Terminal:
    """A stream that is a terminal, or not."""

    def __init__(self, is_one: bool) -> None:
        self.is_one = is_one

    def isatty(self) -> bool:
        return self.is_one


@pytest.mark.parametrize(
    ("choice", "variables", "terminal", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_colour(
    monkeypatch: pytest.MonkeyPatch,
    choice: str,
    variables: dict[str, str],
    terminal: bool,
    wanted: bool,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert colour_wanted(ColorChoice(choice), Terminal(terminal)) is wanted


def test_errors_go_to_standard_error_and_as_json_to_standard_output_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = NotFound("no slot is or begins with 'x'", details={"id": "x"})

    print_error(error, OutputFormat.JSON, "list them with `finegrain slots`")

    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "finegrain: no slot is or begins with 'x' [ALLOCATION_UNKNOWN]",
        "hint: list them with `finegrain slots`",
    ]
    assert json.loads(told.out) == {
        "api_version": "finegrain/v1",
        "kind": "Error",
        "code": "ALLOCATION_UNKNOWN",
        "message": "no slot is or begins with 'x'",
        "details": {"id": "x"},
        "hint": "list them with `finegrain slots`",
    }


def test_a_table_is_nothing_but_aligned_text(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [
        Column("name", lambda row: str(row["name"])),
        Column("count", lambda row: str(row["count"]), right=True),
        Column("secret", lambda row: "x", wide=True),
    ]
    rows = [{"name": "a", "count": 1}, {"name": "long", "count": 1000}]

    print_list("Things", rows, columns, OutputFormat.TABLE)

    assert capsys.readouterr().out == "NAME  COUNT\na         1\nlong   1000\n"


def test_an_empty_list_is_a_heading_or_no_items(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("name", lambda row: str(row["name"]))]

    print_list("Things", [], columns, OutputFormat.TABLE)
    print_list("Things", [], columns, OutputFormat.JSON)

    heading, _, document = capsys.readouterr().out.partition("\n")
    assert heading == "NAME"
    assert json.loads(document)["items"] == []

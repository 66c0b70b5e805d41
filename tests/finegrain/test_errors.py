"""The codes of errors are a contract: documented, each once, and never changed."""

from __future__ import annotations

import re
from pathlib import Path

from finegrain.errors import InvalidArgument, Reason

DOCUMENT = Path(__file__).parents[2] / "docs" / "errors.md"


def test_every_reason_is_documented_once_and_nothing_else_is() -> None:
    documented = re.findall(r"^\| `([A-Z_]+)` \|", DOCUMENT.read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted(Reason)


def test_the_text_of_a_reason_is_its_name() -> None:
    assert all(reason.name == reason.value for reason in Reason)


def test_bad_input_names_field_value_and_expectation_and_shortens_what_is_long() -> None:
    error = InvalidArgument("cpu_milli", "x" * 500, "a number")
    assert error.message.startswith("cpu_milli is 'xxx")
    assert error.message.endswith("; expected a number")
    assert len(error.message) < 200
    assert error.details["field"] == "cpu_milli"

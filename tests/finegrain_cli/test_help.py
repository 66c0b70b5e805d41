"""Help pages name values as the field does, and write usage lines as other programs do."""

from __future__ import annotations

import re

import pytest

from finegrain_cli.command_tree import MODULES, SECTIONS
from tests.support.cli import Finegrain
from tests.support.texts import help_pages


def test_no_help_page_names_a_type_of_python() -> None:
    assert re.findall(r".*<(?:str|int|float|bool)\b.*", help_pages()) == []


def test_usage_lines_have_no_doubled_brackets() -> None:
    usage = re.findall(r"^Usage: .*", help_pages(), re.MULTILINE)

    assert len(usage) > len(MODULES)
    assert [line for line in usage if re.search(r"\[\[|\{|\.\.\.\.|\]\.\.\.\]\.\.\.", line)] == []


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        ("run", "-- COMMAND [ARGS]..."),
        ("slots", "[ID]"),
        ("release", "ID..."),
        ("drain", "EXECUTOR"),
        ("help", "[COMMAND]..."),
    ],
)
def test_arguments_are_named(finegrain: Finegrain, command: str, usage: str) -> None:
    first = finegrain(command, "--help").stdout.splitlines()[0]

    assert first == f"Usage: finegrain {command} [OPTIONS] {usage}"


@pytest.mark.parametrize(
    ("option", "metavar"),
    [("--cpu", "CPU"), ("--memory", "SIZE"), ("--timeout", "DURATION"), ("--gpu-core", "PERCENT")],
)
def test_options_name_the_kind_of_value(finegrain: Finegrain, option: str, metavar: str) -> None:
    assert f"  {option} {metavar} " in finegrain("run", "--help").stdout


def test_the_list_of_commands_has_sections(finegrain: Finegrain) -> None:
    text = finegrain("--help").stdout

    at = [text.index(f"\n{title}:\n") for title in SECTIONS]
    assert at == sorted(at)
    assert all(f"\n  {name} " in text for name in MODULES)


def test_a_wrong_word_is_named_without_the_class_of_an_error(finegrain: Finegrain) -> None:
    result = finegrain("slots", "-o", "yaml")

    assert result.exit_code == 2
    assert "'yaml' is not one of 'table', 'wide', 'json', 'jsonl'" in result.stderr
    assert "Value error" not in result.stderr

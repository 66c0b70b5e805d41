"""Converts errors about fields of the API to errors about the options that the user typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from finegrain.errors import FinegrainError
from finegrain.units import format_bytes_exactly, format_cpu

_OPTIONS: Final = {
    "cpu_limit_milli": "cpu_limit",
    "cpu_milli": "cpu",
    "memory_bytes": "memory",
    "task_heap_memory_bytes": "memory",
    "pids_max": "pids",
    "extended": "resource",
    "labels": "label",
    "env": "env",
    "cpus": "cpus",
    "cwd": "cwd",
    "group": "group",
    "weight": "weight",
    "cpu_policy.qos": "qos",
    "time_limit_s": "time_limit",
    "wait_timeout_s": "wait_timeout",
    "expected_run_time_s": "expected_run_time",
    "priority": "priority",
}
"""The parameter of the command for each field of the API, by name of the field."""

_ANY_FIELD: Final = "|".join(map(re.escape, _OPTIONS))
_ABOUT: Final = re.compile(
    r"(?<![\w.])(?:requests\[\d+\]\.|spec\.)?(?:profile\.|\*_)*"
    rf"(?P<field>{_ANY_FIELD})(?P<part> key|\[[^]]*\])? is (?P<value>.+?);"
    r" expected (?P<expected>.+)",
    re.DOTALL,
)
_RULE: Final = re.compile(
    r"(?:requests\[\d+\]\.)?cpu_policy\.neighbors\[(?P<at>\d+)\](?:\.level)? is .+?;"
    r" expected (?P<expected>.+)",
    re.DOTALL,
)
_NUMBER: Final = re.compile(r"(?<![\w.])\d{2,18}(?![\w.])")
# Within sentences, replace only these names, because all other names are also plain words.
_TECHNICAL: Final = "|".join(re.escape(name) for name in _OPTIONS if re.search("[_.]", name))
_NAME: Final = re.compile(rf"\b(?:the profile's )?({_TECHNICAL})\b")
_ADVICE: Final = "; request less, or let it wait for another executor (allow_pending)"
_ID: Final = re.compile(r"^allocation_ids\[\d+\] is ")
_IN_PYTHON: Final = " (half a core is cpu_milli=500)"
_NO_PROFILE: Final = ", or no profile at all for a default slot"


def name_options(error: FinegrainError, typed: Mapping[str, object]) -> None:
    """Changes an error about a field, so that the error names the option and the value that the
    user typed.

    Other errors stay unchanged.

    Args:
        error: the error.
        typed: parameters of the command, as the user typed them.
    """
    # Remove the advice to job masters, because the advice names a parameter of the library. The
    # hint names the option instead.
    error.message = error.message.replace(_ADVICE, "")
    # Usage lines call the argument ID, SLOT or REQUEST. Errors call the argument ID.
    error.message = _ID.sub("ID is ", error.message)
    if (rule := _RULE.search(error.message)) is not None:
        _name_rule(error, rule, typed)
        return
    found = _ABOUT.search(error.message)
    if found is None:
        return
    field = found["field"]
    parameter = _OPTIONS[field]
    text = typed.get(parameter)
    # Without a text, the user did not type the option, or the command does not have the option.
    if not text:
        return
    option = _flag(parameter)
    value = repr(str(text))
    # If the option has several values, the field shows which value is wrong.
    if isinstance(text, list | tuple):
        part = (found["part"] or "").removeprefix("[").removesuffix("]")
        option, value = f"{option} {part.strip()}", found["value"]
    expected = _in_units(field, found["expected"])
    reworded = f"{option} is {value}; expected {expected}"
    error.message = error.message[: found.start()] + reworded
    if "field" in error.details:
        error.details |= {"field": option, "value": value, "expected": expected}


def _name_rule(error: FinegrainError, found: re.Match[str], typed: Mapping[str, object]) -> None:
    """Changes an error about a rule about neighbors. A request has the rules of --near first."""
    rules: list[tuple[str, str]] = []
    for option in ("near", "apart"):
        texts = typed.get(option)
        rules += (
            [(_flag(option), text) for text in texts] if isinstance(texts, list | tuple) else []
        )
    at = int(found["at"])
    if at < len(rules):
        option, text = rules[at]
        reworded = f"{option} is {text!r}; expected {found['expected']}"
        error.message = error.message[: found.start()] + reworded
        error.details |= {"field": option, "value": text, "expected": found["expected"]}


def advised(message: str) -> str:
    """Replaces the advice for the library in a message about refused requests by the advice for the
    command line.
    """
    return message.replace(
        _ADVICE, "; request less, or use --allow-pending to wait for another executor"
    )


def _flag(parameter: str) -> str:
    return f"--{parameter.replace('_', '-')}"


def _in_units(field: str, expected: str) -> str:
    """Returns the expected values as text. The text has names of options instead of fields, and
    amounts in the unit of the option.
    """
    for only_in_programs in (_NO_PROFILE, _IN_PYTHON):
        expected = expected.replace(only_in_programs, "")
    if field.endswith("_milli"):
        expected = _NUMBER.sub(lambda number: format_cpu(int(number[0])), expected)
    elif field.endswith("_bytes"):
        expected = _NUMBER.sub(lambda number: format_bytes_exactly(int(number[0])), expected)
    return _NAME.sub(lambda name: _flag(_OPTIONS[name[1]]), expected)

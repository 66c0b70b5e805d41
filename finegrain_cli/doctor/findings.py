"""Defines the findings of `finegrain doctor`, and runs its examinations.

If an examination raises an error, the error becomes a finding, and the next examinations still run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from finegrain.errors import FinegrainError


class Grade(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"  # the examined part works, but could be better
    FAIL = "fail"  # the examined part does not work in this state


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of an examination. `fix` is a command or a change that solves the problem. For the
    grade OK, `fix` is empty.
    """

    name: str
    grade: Grade
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """Returns the finding in a form that can be written as JSON."""
        return {
            "name": self.name,
            "grade": self.grade.value,
            "message": self.message,
            "fix": self.fix,
        }


Examination: TypeAlias = Callable[[], Iterator[Finding]]


def ok(name: str, message: str) -> Finding:
    return Finding(name, Grade.OK, message)


def warn(name: str, message: str, fix: str) -> Finding:
    """Returns a finding for something that works, but could be better."""
    return Finding(name, Grade.WARN, message, fix)


def fail(name: str, message: str, fix: str) -> Finding:
    """Returns a finding for something that cannot work in this state."""
    return Finding(name, Grade.FAIL, message, fix)


def examine(examinations: Sequence[tuple[str, Examination]]) -> Iterator[Finding]:
    """Runs examinations in order. An error of an examination becomes a finding."""
    for name, examination in examinations:
        try:
            yield from examination()
        except FinegrainError as error:
            yield fail(name, error.message, "see the message")
        except ModuleNotFoundError as error:
            fix = "pip install 'finegrain[all]'"
            yield fail(name, f"{error.name} is not installed", fix)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            fix = "report this, with the output of: finegrain version -o json"
            yield fail(name, f"could not be examined: {error!r}", fix)

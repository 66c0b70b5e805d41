"""What an examination finds, and how the examinations are run.

Decides that an examination that fails itself is a finding, too, and never the end of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from finegrain.errors import FinegrainError


class Grade(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"  # it works, and something is not as it could be
    FAIL = "fail"  # it cannot work like this


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix`: exactly what to do about it; empty where all is well."""

    name: str
    grade: Grade
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """JSON-able form."""
        return {
            "name": self.name,
            "grade": self.grade.value,
            "message": self.message,
            "fix": self.fix,
        }


Examination: TypeAlias = Callable[[], Iterator[Finding]]


def ok(name: str, message: str) -> Finding:
    """All is well."""
    return Finding(name, Grade.OK, message)


def warn(name: str, message: str, fix: str) -> Finding:
    """It works, and something is not as it could be."""
    return Finding(name, Grade.WARN, message, fix)


def fail(name: str, message: str, fix: str) -> Finding:
    """It cannot work like this."""
    return Finding(name, Grade.FAIL, message, fix)


def examine(examinations: Sequence[tuple[str, Examination]]) -> Iterator[Finding]:
    """Runs them in order; one that breaks is told and the next one follows."""
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

"""The exit codes, frozen, and the page that documents them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from finegrain import errors
from finegrain.errors import Reason
from finegrain_cli.exit_codes import ExitCode, exit_code_of

PAGE = Path(__file__).parents[2] / "docs/cli.md"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.FinegrainError("bug"), 1),
        (errors.ConfigurationError("bad file"), 1),
        (errors.StoreError("locked"), 1),
        (errors.ResourceExhausted("too much"), 1),
        (errors.InvalidArgument("--cpu", "x", "cores"), 2),
        (errors.NotFound("no such slot"), 3),
        (errors.AlreadyExists("other content"), 4),
        (errors.FailedPrecondition("ended", reason=Reason.JOB_ENDED), 4),
        (errors.FailedPrecondition("later", reason=Reason.WAITING_CAPACITY), 5),
        (errors.FailedPrecondition("offline", reason=Reason.INFEASIBLE_NOW_OFFLINE), 5),
        (errors.FailedPrecondition("never", reason=Reason.INFEASIBLE_NEVER), 6),
        (errors.Unavailable("no answer"), 7),
        (errors.Unauthenticated("no certificate"), 8),
        (errors.PermissionDenied("role operator needed"), 8),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_kind_of_error_has_its_code(error: errors.FinegrainError, code: int) -> None:
    assert exit_code_of(error) == code


def test_the_page_lists_every_code_and_no_other() -> None:
    rows = re.findall(r"^\| (\d+)\+? +\| `(\w+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)

    assert {(int(number), name) for number, name in rows} == {
        (each.value, each.name) for each in ExitCode
    }

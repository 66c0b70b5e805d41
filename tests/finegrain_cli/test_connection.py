"""Which resource manager a command means, and which identity it shows.

tests/finegrain/test_targets.py has the rules. Here are those of flags and the configuration.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from finegrain.errors import Unauthenticated
from finegrain_cli.connection import resolve_target
from finegrain_cli.context import Invocation
from tests.support.cli import Finegrain
from tests.support.identities import credentials_file


def test_without_credentials_a_command_says_how_to_get_some(finegrain: Finegrain) -> None:
    with pytest.raises(Unauthenticated, match="there are no credentials"):
        resolve_target(Invocation())

    result = finegrain("status")

    assert result.exit_code == 8
    assert "finegrain login" in result.stderr


def test_flags_are_stronger_than_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = credentials_file(tmp_path, "user/alice", "rm-1:7170")
    bob = credentials_file(tmp_path, "user/bob", "rm-2:7170")
    monkeypatch.setenv("FINEGRAIN_CLIENT__MANAGER", "a:1,b:2")
    monkeypatch.setenv("FINEGRAIN_CLIENT__CREDENTIALS", str(alice))

    configured = resolve_target(Invocation())
    flagged = resolve_target(Invocation(manager="c:3", credentials=str(bob)))

    assert configured.addresses == ("a:1", "b:2")
    assert configured.file == alice
    assert flagged.addresses == ("c:3",)
    assert flagged.file == bob


def test_the_credentials_name_the_address(tmp_path: Path) -> None:
    alice = credentials_file(tmp_path, "user/alice", "rm-1:7170", "rm-2:7170")

    assert resolve_target(Invocation(credentials=str(alice))).addresses == (
        "rm-1:7170",
        "rm-2:7170",
    )

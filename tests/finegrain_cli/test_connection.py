"""Which resource manager a command means, and which token it shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from finegrain.errors import ConfigurationError
from finegrain.directories import run_directory, state_directory
from finegrain_cli.connection import resolve_target
from finegrain_cli.context import Invocation
from finegrain_cli.local.published import find_local_managers, published


def state_dir(path: Path, address: str = "", *tokens: str) -> Path:
    """An RM's state directory, as if it served at `address`."""
    path.mkdir(parents=True)
    for name in tokens:
        (path / name).write_text("t" * 40)
    if address:
        note = {"address": address, "metrics_address": "", "pid": os.getpid()}
        (path / "endpoint.json").write_text(json.dumps(note))
        (path / "endpoint.json").chmod(0o640)
    return path


def test_nobody_here_is_the_default_address() -> None:
    target = resolve_target(Invocation())

    assert target.addresses == ("127.0.0.1:7170",)
    assert target.token_file is None


def test_what_this_user_runs_is_found_with_its_token(tmp_path: Path) -> None:
    own = state_dir(tmp_path / "up/rm", "", "cluster.token", "user.token")

    with published({"address": "127.0.0.1:5", "rm_state_dir": str(own)}):
        target = resolve_target(Invocation())

    assert target.addresses == ("127.0.0.1:5",)
    assert target.token_file == own / "cluster.token"
    assert find_local_managers() == []
    assert not run_directory("up").exists()


def test_a_daemon_at_the_usual_place_is_found() -> None:
    own = state_dir(state_directory("rm"), "127.0.0.1:6", "user.token")

    target = resolve_target(Invocation())

    assert target.addresses == ("127.0.0.1:6",)
    assert target.token_file == own / "user.token"


def test_two_at_once_have_to_be_told_apart(tmp_path: Path) -> None:
    up = state_dir(tmp_path / "up/rm", "", "cluster.token")
    daemon = state_dir(state_directory("rm"), "127.0.0.1:6", "cluster.token")

    with published({"address": "127.0.0.1:5", "rm_state_dir": str(up)}):
        with pytest.raises(ConfigurationError, match="choose one with --manager"):
            resolve_target(Invocation())

        assert resolve_target(Invocation(manager="127.0.0.1:5")).token_file == up / "cluster.token"
        chosen = resolve_target(Invocation(manager="127.0.0.1:6"))
        assert chosen.token_file == daemon / "cluster.token"


def test_flags_are_stronger_than_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FINEGRAIN_CLIENT__MANAGER", "a:1,b:2")
    monkeypatch.setenv("FINEGRAIN_CLIENT__TOKEN_FILE", "/from/configuration")

    configured = resolve_target(Invocation())
    flagged = resolve_target(Invocation(manager="c:3", token_file="/from/flag"))

    assert configured.addresses == ("a:1", "b:2")
    assert configured.token_file == Path("/from/configuration")
    assert flagged.addresses == ("c:3",)
    assert flagged.token_file == Path("/from/flag")


def test_a_note_of_one_that_has_gone_is_removed() -> None:
    directory = run_directory("up")
    directory.mkdir(parents=True, mode=0o700)
    stale = directory / "999.json"
    stale.write_text('{"address": "127.0.0.1:9", "rm_state_dir": "/x"}')
    stale.chmod(0o600)

    assert find_local_managers() == []
    assert not stale.exists()


@pytest.mark.parametrize("what", ["directory", "endpoint"])
def test_what_others_can_write_is_not_believed(tmp_path: Path, what: str) -> None:
    own = state_dir(state_directory("rm"), "127.0.0.1:6", "cluster.token")
    if what == "endpoint":
        (own / "endpoint.json").chmod(0o666)
        assert find_local_managers() == []
    else:
        directory = run_directory("up")
        directory.mkdir(parents=True)
        directory.chmod(0o777)
        with (
            pytest.raises(ConfigurationError, match="is not private"),
            published({"address": "x:1", "rm_state_dir": "/x"}),
        ):
            pass

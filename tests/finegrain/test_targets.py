"""Which cluster a client means, and which credentials it shows there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from finegrain.directories import default_credentials_file, run_directory, state_directory
from finegrain.errors import ConfigurationError, InvalidArgument, Unauthenticated
from finegrain.local_managers import find_local_managers
from finegrain.targets import resolve_target
from finegrain_cli.local.published import published
from tests.support.identities import credentials, credentials_file


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory, and nothing in the environment."""
    for name in ("FINEGRAIN_CREDENTIALS", "FINEGRAIN_MANAGER", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FINEGRAIN_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr("finegrain.directories.SYSTEM_STATE", tmp_path / "system")
    monkeypatch.setattr("finegrain.local_managers.SYSTEM_STATE", tmp_path / "system")
    return tmp_path / "home"


def state_dir(path: Path, address: str = "", *, operator: str = "operator/root") -> Path:
    """An RM's state directory, as if it served at `address`."""
    path.mkdir(parents=True)
    file = credentials_file(path, operator, "127.0.0.1:99")
    file.rename(path / "operator.credentials")
    if address:
        note = {"address": address, "metrics_address": "", "pid": os.getpid()}
        (path / "endpoint.json").write_text(json.dumps(note))
        (path / "endpoint.json").chmod(0o640)
    return path


def own_file(text: str, *addresses: str) -> Path:
    """The file that `finegrain login` writes."""
    path = default_credentials_file()
    path.parent.mkdir(parents=True)
    credentials_file(path.parent, text, *addresses).rename(path)
    return path


def test_without_credentials_there_is_no_target() -> None:
    with pytest.raises(Unauthenticated, match=r"there are no credentials: .*finegrain/credentials"):
        resolve_target()


def test_what_this_user_runs_is_found_with_its_credentials(tmp_path: Path) -> None:
    own = state_dir(tmp_path / "up/rm")

    with published({"address": "127.0.0.1:5", "rm_state_dir": str(own)}):
        target = resolve_target()

    assert target.addresses == ("127.0.0.1:5",)
    assert str(target.credentials.who) == "operator/root"
    assert target.file == own / "operator.credentials"
    assert find_local_managers() == []
    assert not run_directory("up").exists()


def test_a_daemon_at_the_usual_place_is_found() -> None:
    own = state_dir(state_directory("rm"), "127.0.0.1:6")

    target = resolve_target()

    assert target.addresses == ("127.0.0.1:6",)
    assert target.file == own / "operator.credentials"


def test_a_daemon_elsewhere_is_found_if_the_caller_names_the_directory(tmp_path: Path) -> None:
    own = state_dir(tmp_path / "mine", "127.0.0.1:8")

    assert resolve_target(state_dir=own).addresses == ("127.0.0.1:8",)


def test_two_at_once_have_to_be_told_apart(tmp_path: Path) -> None:
    up = state_dir(tmp_path / "up/rm")
    daemon = state_dir(state_directory("rm"), "127.0.0.1:6")

    with published({"address": "127.0.0.1:5", "rm_state_dir": str(up)}):
        with pytest.raises(ConfigurationError, match="choose one with --manager"):
            resolve_target()

        assert resolve_target("127.0.0.1:5").file == up / "operator.credentials"
        assert resolve_target("127.0.0.1:6").file == daemon / "operator.credentials"


def test_the_own_file_names_the_addresses_too() -> None:
    file = own_file("user/alice", "rm-1:7170", "rm-2:7170")

    target = resolve_target()

    assert target.addresses == ("rm-1:7170", "rm-2:7170")
    assert target.file == file


def test_the_environment_is_stronger_than_what_lies_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_file("user/alice", "rm-1:7170")
    state_dir(state_directory("rm"), "127.0.0.1:6")
    other = credentials_file(tmp_path, "user/bob", "rm-3:7170")
    monkeypatch.setenv("FINEGRAIN_CREDENTIALS", str(other))

    assert str(resolve_target().credentials.who) == "user/bob"
    assert resolve_target().addresses == ("rm-3:7170",)

    monkeypatch.setenv("FINEGRAIN_MANAGER", "a:1, b:2")
    assert resolve_target().addresses == ("a:1", "b:2")
    assert resolve_target().file == other


def test_an_address_alone_goes_with_the_own_file(monkeypatch: pytest.MonkeyPatch) -> None:
    file = own_file("user/alice", "rm-1:7170")
    state_dir(state_directory("rm"), "127.0.0.1:6")
    monkeypatch.setenv("FINEGRAIN_MANAGER", "rm-9:7170")

    assert resolve_target().file == file
    assert resolve_target().addresses == ("rm-9:7170",)


def test_arguments_are_stronger_than_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_CREDENTIALS", "/nowhere")
    monkeypatch.setenv("FINEGRAIN_MANAGER", "a:1")
    file = credentials_file(tmp_path, "user/bob", "rm-3:7170")

    assert resolve_target(["c:3"], file).addresses == ("c:3",)
    given = resolve_target("c:3", credentials("user/carol"))
    assert (str(given.credentials.who), given.file) == ("user/carol", None)


def test_credentials_without_an_address_need_one() -> None:
    with pytest.raises(InvalidArgument, match="FINEGRAIN_MANAGER"):
        resolve_target(None, credentials("user/carol"))


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = credentials_file(tmp_path, "user/bob", "rm-3:7170")
    file.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        resolve_target(credentials=file)


def test_a_note_of_one_that_has_gone_is_removed() -> None:
    directory = run_directory("up")
    directory.mkdir(parents=True, mode=0o700)
    stale = directory / "999.json"
    stale.write_text('{"address": "127.0.0.1:9", "rm_state_dir": "/x"}')
    stale.chmod(0o600)

    assert find_local_managers() == []
    assert not stale.exists()


@pytest.mark.parametrize("what", ["directory", "endpoint"])
def test_what_others_can_write_is_not_believed(what: str) -> None:
    own = state_dir(state_directory("rm"), "127.0.0.1:6")
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

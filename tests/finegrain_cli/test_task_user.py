"""The user that runs the tasks of `finegrain up`. If root runs the daemons, this is another
user.
"""

from __future__ import annotations

import os

import pytest

from finegrain.errors import InvalidArgument
from finegrain_cli.local.task_user import TaskUser, choose_task_user

NOBODY = 65534


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.delenv("SUDO_UID", raising=False)


@pytest.fixture
def as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)


@pytest.mark.usefixtures("as_root")
def test_root_runs_tasks_as_the_configured_user() -> None:
    assert choose_task_user() == TaskUser("nobody")
    assert choose_task_user(configured="daemon") == TaskUser("daemon")
    assert not choose_task_user().is_shared


@pytest.mark.usefixtures("as_root")
def test_with_sudo_tasks_run_as_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_UID", str(NOBODY))
    assert choose_task_user(configured="daemon") == TaskUser("nobody")
    assert choose_task_user("daemon") == TaskUser("daemon")


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("sudo_uid", ["0", "", "-1", "nobody-there", "4294967296"])
def test_root_behind_sudo_or_a_wrong_number_is_no_user(
    monkeypatch: pytest.MonkeyPatch, sudo_uid: str
) -> None:
    monkeypatch.setenv("SUDO_UID", sudo_uid)
    assert choose_task_user() == TaskUser("nobody")


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize("wanted", ["root", "0", "self"])
def test_tasks_run_as_root_only_on_request(wanted: str) -> None:
    chosen = choose_task_user(wanted)
    assert (chosen.allow_root, chosen.is_shared) == (True, True)


@pytest.mark.usefixtures("as_nobody")
def test_without_root_tasks_share_the_user_of_the_daemons() -> None:
    assert choose_task_user(configured="daemon").is_shared
    assert choose_task_user("nobody").is_shared
    with pytest.raises(InvalidArgument, match="only root"):
        choose_task_user("daemon")


def test_a_user_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidArgument, match="no-such-user"):
        choose_task_user("no-such-user")

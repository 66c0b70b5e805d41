"""The command line, without the configuration of the machine that runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from finegrain_cli.main import app
from tests.support.cli import FakeCluster, Finegrain

WITH_A_CLUSTER = (
    "lists",
    "operate",
    "elastic",
    "executors",
    "host",
    "advise",
    "groups",
    "users",
    "devices",
    "usage",
)


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ignores files and variables of this machine, and the daemons that run on it."""
    for name in list(os.environ):
        if name.startswith("FINEGRAIN_"):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("FINEGRAIN_RUN_DIR", str(home / "run"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("finegrain_cli.config.sources.HOST_FILE", home / "no-such-file")
    monkeypatch.setattr("finegrain.local_managers.SYSTEM_STATE", home / "system")
    monkeypatch.setattr("finegrain.directories.SYSTEM_STATE", home / "system")


@pytest.fixture
def finegrain() -> Finegrain:
    """Runs `finegrain ARGS...` in this process."""

    def run(*args: str) -> Result:
        return CliRunner().invoke(app, list(args), prog_name="finegrain")

    return run


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """The cluster that every command of a test calls."""
    fake = FakeCluster()
    for module in WITH_A_CLUSTER:
        monkeypatch.setattr(f"finegrain_cli.commands.{module}.open_cluster", lambda: fake)
    return fake

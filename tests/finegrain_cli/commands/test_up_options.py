"""The settings that `finegrain up` derives from its environment. No process is started."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from finegrain_cli.local import foreground
from finegrain_cli.local.cluster import LocalCluster
from tests.support.cli import Finegrain


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[LocalCluster]:
    """Clusters that would have been started."""
    found: list[LocalCluster] = []
    monkeypatch.setattr(
        "finegrain_cli.local.foreground.run_in_foreground",
        lambda cluster, _output: found.append(cluster),
    )
    return found


def test_shares_are_those_of_the_configuration(
    finegrain: Finegrain,
    made: list[LocalCluster],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "here.toml"
    file.write_text('[fairness]\nusage_measure = "slots"\nlookahead = "5s"\n', encoding="utf-8")
    monkeypatch.setenv("FINEGRAIN_FAIRNESS__LOOKAHEAD", "2s")
    result = finegrain("up", "--config", str(file))

    assert result.exit_code == 0, result.output
    assert (made[0].fairness.usage_measure, made[0].fairness.lookahead_ms) == ("slots", 2_000)


def test_a_mistake_in_the_configuration_is_told_at_once(
    finegrain: Finegrain, made: list[LocalCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_FAIRNESS__USAGE_MEASURE", "luck")
    result = finegrain("up")

    assert (result.exit_code, made) == (1, [])
    assert "usage_measure" in result.stderr


def test_a_second_signal_does_not_interrupt_the_stop() -> None:
    found: list[str] = []
    with foreground._stop_signals():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except foreground._Stopped:
            os.kill(os.getpid(), signal.SIGINT)
            found.append("stopped in order")
    assert found == ["stopped in order"]

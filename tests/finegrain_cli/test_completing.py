"""Shells complete names from the cluster and words of options, and never print an error."""

from __future__ import annotations

import pytest

from finegrain.errors import Reason, Unavailable
from finegrain_cli.command_tree import COMPLETE_VARIABLE
from finegrain_cli.main import main
from tests.support.cli import GRANTED, JOB, WAITING, FakeCluster

SHORT_SLOT, SHORT_WAITING = GRANTED.allocation_id[-8:], WAITING.allocation_id[-8:]


def suggested(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Returns what bash gets for the last word of a line."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv(COMPLETE_VARIABLE, "complete_bash")
    with pytest.raises(SystemExit):
        main()
    found = capsys.readouterr()
    assert found.err == ""
    return found.out.split()


@pytest.fixture(autouse=True)
def opened(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Every completion asks this cluster."""
    monkeypatch.setattr("finegrain_cli.connection.open_cluster", lambda budget_s: cluster)
    return cluster


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("finegrain drain ", ["host-a"]),
        ("finegrain executors ", ["list", "policy", "set", "host-a"]),
        ("finegrain executors set ho", ["host-a"]),
        ("finegrain slots --executor ", ["host-a"]),
        ("finegrain slots ", [SHORT_SLOT]),
        ("finegrain slots 01a", [GRANTED.allocation_id]),
        ("finegrain resize ", [SHORT_SLOT]),
        ("finegrain explain ", [SHORT_SLOT, SHORT_WAITING]),
        ("finegrain release " + SHORT_SLOT + " ", [SHORT_SLOT, SHORT_WAITING]),
        ("finegrain explain la", ["last"]),
        ("finegrain jobs ni", [JOB.name]),
        ("finegrain terminate ", [JOB.name, JOB.job_id[-8:]]),
        ("finegrain slots --job ni", [JOB.name]),
        ("finegrain run --group ", ["default", "nightly"]),
        ("finegrain groups set n", ["nightly"]),
        ("finegrain run --qos ", ["LSE", "LSR", "LS", "BE"]),
        ("finegrain run --numa si", ["singleNUMANode"]),
        ("finegrain run --gang-placement sp", ["spread"]),
        ("finegrain slots -o js", ["json", "jsonl"]),
    ],
)
def test_values_are_completed(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    expected: list[str],
) -> None:
    assert suggested(line, monkeypatch, capsys) == expected


def test_without_a_manager_there_are_no_suggestions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable(budget_s: float) -> FakeCluster:
        assert budget_s < 1
        raise Unavailable("no resource manager", reason=Reason.UNREACHABLE)

    monkeypatch.setattr("finegrain_cli.connection.open_cluster", unreachable)

    assert suggested("finegrain drain ", monkeypatch, capsys) == []


def test_of_very_many_slots_none_are_listed_before_some_characters_are_typed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("finegrain_cli.completing.ITEMS_MAX", 0)

    assert suggested("finegrain slots ", monkeypatch, capsys) == []
    assert suggested(f"finegrain slots {SHORT_SLOT[:4]}", monkeypatch, capsys) == [SHORT_SLOT]

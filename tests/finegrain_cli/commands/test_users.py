"""Users on the command line: their use and limits."""

from __future__ import annotations

import json

import pytest

from tests.support.cli import FakeCluster, Finegrain


def test_users_show_use_and_limits(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    heading, alice = finegrain("users").stdout.splitlines()
    assert heading.split() == ["USER", "JOBS", "REQUESTS", "SLOTS", "ALLOCATED", "MAXIMUM"]
    assert alice.split()[:4] == ["alice", "2", "3", "1"]
    assert alice.endswith("cpu 0.5, memory 256Mi  jobs 5, cpu 4")
    (item,) = json.loads(finegrain("users", "-o", "json").stdout)["items"]
    assert (item["user"], item["maximum"]) == ("user/alice", {"jobs": 5, "cpu_milli": 4_000})


@pytest.mark.parametrize(
    ("typed", "sent"), [("alice", "user/alice"), ("operator/ann", "operator/ann"), ("all", "*")]
)
def test_limits_are_set_and_deleted(
    finegrain: Finegrain, cluster: FakeCluster, typed: str, sent: str
) -> None:
    flags = "--max-jobs 5 --max-requests none --max-slots 7 --max-cpu 4 --max-memory 8GiB"
    result = finegrain("users", "set", typed, *flags.split(), "--max", "license=2")
    assert result.stdout.endswith(": maximum jobs 5, cpu 4\n")
    assert finegrain("users", "delete", typed).stdout == f"deleted {typed}\n"
    limits = {"slots": 7, "cpu_milli": 4_000, "memory_bytes": 8 * 2**30, "extended.license": 2}
    assert cluster.done == [
        ("set_user_limits", sent, limits | {"jobs": 5, "requests": None}),
        ("delete_user_limits", sent),
    ]


def test_a_limit_that_is_no_number_is_named(finegrain: Finegrain) -> None:
    result = finegrain("users", "set", "alice", "--max-jobs", "many")
    assert (result.exit_code, "--max-jobs" in result.stderr) == (2, True)

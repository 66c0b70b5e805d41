"""Resource groups on the command line: the tree, and its operations."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from finegrain_cli.text.groups import limits_text, used_text
from finegrain_client.types.groups import Groups
from finegrain_client.types.status import UsageHistory, UsageSample
from tests.support.cli import GROUPS, JOB, FakeCluster, Finegrain


def test_the_tree_shows_shares_backlog_and_limits(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    heading, default, nightly, _, legend = finegrain("groups").stdout.splitlines()

    assert heading.split()[:5] == ["GROUP", "WEIGHT", "ENTITLED", "NOW", "USAGE"]
    assert heading.split()[5:8] == ["SLOTS", "WAITING", "OLDEST"]
    assert default.split()[:8] == ["default", "1", "20.0", "%", "25.0", "%", "12.5", "1"]
    assert "cpu 0.5, memory 256Mi" in default
    assert nightly.startswith("  nightly ")
    assert nightly.endswith("cpu 8    cpu 64, memory 1Gi, licence 0  alice, bob")
    assert default.endswith("  all")
    assert legend == "usage: shares of the cluster x seconds; past usage counts half after 15m00s"
    assert "Priority 10 (Default)" in finegrain("groups", "-o", "wide").stdout


def test_a_group_shows_what_it_had_in_the_last_hour(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
    sample = UsageSample(
        time,
        1500,
        2**30,
        0,
        0,
        share_now=0.25,
        share_entitled=0.5,
        waiting=3,
        measured_cpu_milli=700,
        measured_memory_bytes=2**29,
    )
    asked: list[str] = []

    def usage(*, group: str) -> UsageHistory:
        asked.append(group)
        return UsageHistory("", (sample,) if group == "nightly" else ())

    monkeypatch.setattr(cluster, "usage", usage, raising=False)
    text = finegrain("usage", "--group", "nightly").stdout
    assert "cpu         0.7 used, 1.5 allocated" in text
    assert "memory      512Mi used, 1Gi allocated" in text
    assert "25.0% of all use, entitled to 50.0%" in text
    wide = finegrain("usage", "--group", "nightly", "-o", "wide").stdout.splitlines()
    assert wide[-1].split() == ["12:00:00", "1.5", "1Gi", "0.7", "512Mi", "25.0%", "50.0%", "3"]
    empty = finegrain("usage", "--group", "default").stdout
    assert "a group with slots or requests has one each minute" in empty
    shown = json.loads(finegrain("usage", "--group", "nightly", "-o", "json").stdout)
    assert (shown["kind"], shown["group"], shown["samples"][0]["waiting"]) == (
        "Usage",
        "nightly",
        3,
    )
    assert asked == ["nightly", "nightly", "default", "nightly"]


def test_jobs_stand_below_their_group(finegrain: Finegrain, cluster: FakeCluster) -> None:
    lines = finegrain("groups", "--jobs").stdout.splitlines()
    assert lines[2].startswith(f"  {JOB.name} ({JOB.job_id[-8:]})")
    assert lines[3].startswith("  nightly  ")
    shown = json.loads(finegrain("groups", "--jobs", "--json").stdout)
    assert shown["kind"] == "Groups"
    assert [each["job_id"] for each in shown["jobs"]] == [JOB.job_id]
    assert "jobs" not in json.loads(finegrain("groups", "--json").stdout)


def test_what_is_never_forgotten_is_told(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for_ever = replace(GROUPS, half_life_s=None, service_measure="slots")
    monkeypatch.setattr(cluster, "groups", lambda: for_ever)
    assert finegrain("groups").stdout.endswith(
        "usage: slots x seconds; past usage always counts in full\n"
    )


def test_watching_shows_what_changes(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("finegrain_cli.commands.groups.WATCH_INTERVAL_S", 0.0)
    other = replace(GROUPS, groups=GROUPS.groups[:1])
    looks = iter([GROUPS, GROUPS, other])

    def look() -> Groups:
        try:
            return next(looks)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(cluster, "groups", look)
    lines = finegrain("groups", "--watch", "-o", "jsonl").stdout.splitlines()
    assert [len(json.loads(line)["groups"]) for line in lines] == [2, 1]
    assert finegrain("groups", "--watch", "-o", "json").exit_code == 2


def test_only_what_is_given_is_set(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("groups", "set", "medium", "--weight", "4")
    assert result.stdout == (
        "medium: weight 4, part of default, minimum cpu 8, maximum cpu 64, memory 1Gi, licence 0\n"
    )
    nothing: dict[str, object] = {"parent": None, "description": None, "minimum": {}, "maximum": {}}
    assert cluster.done == [("set_group", "medium", {"weight": 4.0, **nothing})]


@pytest.mark.parametrize(
    ("typed", "sent", "shown"),
    [
        (["alice", "user/bob"], ["user/alice", "user/bob"], "alice, bob"),
        (["--all-users"], ["*"], "all"),
    ],
)
def test_users_are_allowed_and_revoked(
    finegrain: Finegrain, cluster: FakeCluster, typed: list[str], sent: list[str], shown: str
) -> None:
    assert finegrain("groups", "allow", "critical", *typed).stdout == f"critical: users {shown}\n"
    assert finegrain("groups", "revoke", "critical", *typed).stdout == "critical: users -\n"
    assert cluster.done == [
        ("change_group_users", "critical", {"allow": sent}),
        ("change_group_users", "critical", {"revoke": sent}),
    ]


@pytest.mark.parametrize("typed", [[], ["alice", "--all-users"]])
def test_users_are_either_named_or_all(finegrain: Finegrain, typed: list[str]) -> None:
    result = finegrain("groups", "allow", "critical", *typed)
    assert (result.exit_code, "--all-users" in result.stderr) == (2, True)


def test_limits_are_written_as_people_write_them(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    flags = "--max-cpu 64 --min-cpu 500m --max-memory 1TiB --min-memory none --max licence=3"
    flags += " --max extended.gpu=none --min licence=0 --parent none --description night"
    result = finegrain("groups", "set", "x", *flags.split(), "-o", "json")
    assert json.loads(result.stdout)["kind"] == "Group"
    ((_, _, fields),) = cluster.done
    assert fields == {
        "weight": None,
        "parent": "",
        "description": "night",
        "maximum": {"cpu_milli": 64_000, "memory_bytes": 2**40, "extended.licence": 3}
        | {"extended.gpu": None},
        "minimum": {"cpu_milli": 500, "memory_bytes": None, "extended.licence": 0},
    }


def test_devices_are_limited_in_the_units_that_run_takes(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    flags = "--max gpu=2.5 --max rdma=1 --max gpu-memory=80Gi --max mig-1g.10gb=3 --max device.x=1"
    flags += " --min gpu-core=150 --min fpga=none"
    assert finegrain("groups", "set", "x", *flags.split()).exit_code == 0
    ((_, _, fields),) = cluster.done
    assert fields["maximum"] == {
        "device.gpu-core": 250,
        "device.gpu-memory-ratio": 250,
        "device.rdma": 100,
        "device.gpu-memory": 80 * 2**30,
        "device.mig-1g.10gb": 300,
        "device.x": 100,
    }
    assert fields["minimum"] == {"device.gpu-core": 150, "device.fpga": None}


def test_amounts_of_devices_are_shown_as_typed() -> None:
    of_gpus = {"device.gpu-core": 250, "device.gpu-memory-ratio": 250, "device.rdma": 0}
    assert limits_text({"cpu_milli": 1_000, **of_gpus}) == "cpu 1, gpu 2.5, rdma 0"
    assert used_text({"cpu_milli": 1_000, "device.gpu-core": 60}) == "cpu 1, gpu-core 60"


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--max-cpu", "many"), "--max-cpu is 'many'"),
        (("--min-memory", "-1"), "--min-memory is '-1'"),
        (("--max", "licence"), "expected KEY=VALUE"),
        (("--min", "licence=some"), "--min licence is 'some'; expected a whole number up to"),
        (("--max", "gpu=1e9"), "--max gpu is '1e9'; expected a number such as 2 or 0.5"),
        (("--max", "gpu-core=half"), "--max gpu-core is 'half'; expected a whole number, in perc"),
        (("--max", f"licence={'9' * 5_000}"), "--max licence is '999"),
    ],
    ids=["cpu", "memory", "no pair", "no number", "no devices", "no percentage", "no amount"],
)
def test_a_limit_that_is_none(
    finegrain: Finegrain, cluster: FakeCluster, flags: tuple[str, ...], told: str
) -> None:
    result = finegrain("groups", "set", "medium", *flags)
    assert (result.exit_code, told in result.stderr) == (2, True)
    assert cluster.done == []


def test_no_group_is_called_as_none_is(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("groups", "set", "none")
    assert (result.exit_code, cluster.done) == (2, [])
    assert "--parent none means that there is no parent" in result.stderr


def test_a_group_is_struck(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("groups", "delete", "medium", "--yes")
    assert result.stdout == "deleted medium\n"
    assert "medium will be deleted, with its weight and its limits" in result.stderr
    assert cluster.done == [("delete_group", "medium")]

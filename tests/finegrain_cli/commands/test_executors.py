"""`finegrain executors`: the list under its short name, and how hosts give cpus."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli import EXECUTOR, FakeCluster, Finegrain

GOLDEN = Path(__file__).parents[2] / "data/cli/host-policy.json"
UNSAID: dict[str, object] = {"reserved_cpus": None, "reserved_strict": None, "clear": []}


@pytest.mark.parametrize("words", [(), ("host-a",), ("-o", "wide"), ("host", "-o", "jsonl")])
def test_the_list_needs_no_name(
    finegrain: Finegrain, cluster: FakeCluster, words: tuple[str, ...]
) -> None:
    short, long = finegrain("executors", *words), finegrain("executors", "list", *words)
    assert short.exit_code == long.exit_code == 0
    assert "host-a" in short.stdout
    assert short.stdout == long.stdout


def test_help_tells_of_all_commands(finegrain: Finegrain) -> None:
    text = finegrain("executors", "--help").stdout
    assert [each in text for each in ("list ", "policy ", "set ")] == [True] * 3


def test_each_setting_says_who_made_it(finegrain: Finegrain, cluster: FakeCluster) -> None:
    heading, *rows, last = finegrain("executors", "policy", "host-a").stdout.splitlines()
    assert heading.split() == ["SETTING", "EFFECTIVE", "FROM", "SET", "HERE"]
    assert [row.split() for row in rows] == [
        ["bind-policy", "FullPCPUsOnly", "operator", "FullPCPUsOnly"],
        ["numa-strategy", "MostAllocated", "configuration", "-"],
        ["alignment", "Restricted", "kubelet", "-"],
        ["reserved-cpus", "0-1", "operator", "0"],
        ["reserved-strict", "cpus", "1", "-", "no"],
        ["default-bind", "FullPCPUs", "cluster", "-"],
        ["default-exclusive", "None", "built-in", "-"],
    ]
    assert last == "host-a has not received the latest change yet"


def test_wide_counts_best_effort_cpu_apart(finegrain: Finegrain, cluster: FakeCluster) -> None:
    total, allocated = ({**EXECUTOR.total}, {**EXECUTOR.allocated})
    total["best_effort_cpu_milli"], allocated["best_effort_cpu_milli"] = 2000, 250
    cluster.executor_list[:] = [replace(EXECUTOR, total=total, allocated=allocated)]
    heading, row = finegrain("executors", "-o", "wide").stdout.splitlines()
    end = heading.index("BEST-EFFORT CPU") + len("BEST-EFFORT CPU")
    assert row[:end].endswith(" 0.25/2")


def test_settings_of_the_cluster(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("executors", "policy", "--defaults")
    assert "has not received" not in result.stdout
    data = json.loads(finegrain("executors", "policy", "--defaults", "-o", "json").stdout)
    assert (data["kind"], data["executor_id"]) == ("HostPolicy", "")


def test_a_dry_run_shows_what_a_policy_would_change(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    arguments = ("executors", "set", "host-a", "--reserved-cpus", "0-1", "--dry-run")
    first, *lines = finegrain(*arguments).stdout.splitlines()
    assert first == "would change host-a: on 1 executor: reserved_cpus none to 0-1"
    assert lines[-1] == "  reserved_cpus  none to 0-1  on executors: 1"
    data = json.loads(finegrain(*arguments, "-o", "json").stdout)
    assert (data["kind"], data["settings"][0]["after"], data["executors"]) == ("Preview", "0-1", 1)
    assert cluster.done == []


def test_json_keeps_its_shape(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("executors", "policy", "host-a", "-o", "json")
    assert json.loads(result.stdout) == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_only_what_is_given_is_set(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("executors", "set", "host-a", "--bind-policy", "fullpcpusonly")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[:2] == ["bind-policy", "FullPCPUsOnly"]
    assert cluster.done == [("set_host_policy", "host-a", {"bind": "FullPCPUsOnly", **UNSAID})]


def test_all_that_can_be_set(finegrain: Finegrain, cluster: FakeCluster) -> None:
    flags = "--numa-strategy mostallocated --alignment none --default-bind spreadbypcpus"
    flags += " --default-exclusive NumaNodeLevel --reserved-cpus 3,0-1 --no-reserved-strict"
    flags += " --clear bind-policy --clear default_exclusive"
    result = finegrain("executors", "set", "host-a", *flags.split(), "-o", "json")
    assert json.loads(result.stdout)["kind"] == "HostPolicy"
    ((_, _, fields),) = cluster.done
    assert fields == {
        "numa_strategy": "MostAllocated",
        "alignment": "None",
        "default_bind": "SpreadByPCPUs",
        "default_exclusive": "NUMANodeLevel",
        "reserved_cpus": "0-1,3",
        "reserved_strict": False,
        "clear": ["bind", "default_exclusive"],
    }


def test_no_cpu_reserved_has_a_word(finegrain: Finegrain, cluster: FakeCluster) -> None:
    finegrain("executors", "set", "host-a", "--reserved-cpus", "none")
    ((_, _, fields),) = cluster.done
    assert fields["reserved_cpus"] == ""


def test_the_cluster_is_named_by_a_flag(finegrain: Finegrain, cluster: FakeCluster) -> None:
    finegrain("executors", "set", "--defaults", "--alignment", "BestEffort")
    assert cluster.done[0][1] is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("set host-a", "expected one of --bind-policy, --numa-strategy"),
        ("set --alignment None", "either the name of an executor, or --defaults"),
        ("policy host-a --defaults", "either the name of an executor, or --defaults"),
        ("set host-a --bind-policy FullPCPUs", "did you mean FullPCPUsOnly?"),
        ("set host-a --alignment default", "--alignment is 'default'; expected one of None,"),
        ("set host-a --default-bind ConstrainedBurst", "expected one of None, FullPCPUs, Spread"),
        ("set host-a --reserved-cpus a-b", "--reserved-cpus is 'a-b'; expected numbers"),
        ("set host-a --clear bind", "did you mean bind-policy?"),
        ("set host-a --clear everything", "--clear is 'everything'; expected one of bind-policy"),
    ],
)
def test_what_is_wrong_is_told_before_anybody_is_asked(
    finegrain: Finegrain, cluster: FakeCluster, words: str, told: str
) -> None:
    result = finegrain("executors", *words.split())
    assert result.exit_code == 2
    assert told in result.stderr
    assert cluster.done == []


def test_an_unknown_executor_is_not_found(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("executors", "policy", "nonesuch", "-o", "json")
    assert (result.exit_code, json.loads(result.stdout)["code"]) == (3, "EXECUTOR_UNKNOWN")

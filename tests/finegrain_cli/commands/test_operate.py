"""Commands of administrators: their calls, the text that they print first, and their refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from finegrain.values.outcomes import ItemOutcome
from finegrain_cli.text.explanation import amount_text, dimension_name
from tests.support.cli import EXECUTOR, GRANTED, JOB, SLOT, WAITING, FakeCluster, Finegrain


def test_drain_names_the_reason(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("drain", "host-a", "--reason", "new disk")

    assert cluster.done == [("drain", "host-a", "new disk", None)]
    assert "1 slot left" in result.stdout


def test_drain_with_a_deadline_says_what_it_takes_away(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    result = finegrain("drain", "host-a", "--deadline", "10m", "--yes")

    assert "freed after 10m" in result.stderr
    assert cluster.done == [("drain", "host-a", "", 600.0)]


def test_a_dry_run_changes_nothing(finegrain: Finegrain, cluster: FakeCluster) -> None:
    drained = finegrain("drain", "host-a", "--dry-run")
    released = finegrain("release", SLOT.allocation_id, "--dry-run")

    assert "would drain" in drained.stdout
    assert "would release" in released.stderr
    assert cluster.done == []


def test_undrain_and_forget_and_terminate_reach_the_cluster(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    assert finegrain("undrain", "host-a").exit_code == 0
    assert finegrain("forget", "host-a", "--yes").exit_code == 0
    assert finegrain("terminate", JOB.job_id[:6], "--yes", "--grace", "2s").exit_code == 0

    assert cluster.done == [
        ("undrain", "host-a"),
        ("forget", "host-a"),
        ("terminate", JOB.job_id, 2.0),
    ]


def test_release_takes_a_unique_prefix(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.request_list[:] = [GRANTED]

    finegrain("release", SLOT.allocation_id[:4], "--yes")

    assert cluster.done == [("release", SLOT.allocation_id, None)]


def test_a_prefix_of_several_is_refused_with_their_names(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    result = finegrain("release", "01aaaaaa")

    assert result.exit_code == 2
    assert GRANTED.allocation_id in result.stderr
    assert WAITING.allocation_id in result.stderr
    assert cluster.done == []


def test_a_release_that_fails_is_told_per_item(finegrain: Finegrain, cluster: FakeCluster) -> None:
    refusal = ItemOutcome(SLOT.allocation_id, "ALLOCATION_UNKNOWN", "it is gone")
    cluster.outcomes[SLOT.allocation_id] = refusal

    result = finegrain("release", SLOT.allocation_id, "--yes")

    assert result.exit_code == 1
    assert "it is gone" in result.stdout
    assert "ALLOCATION_UNKNOWN" in result.stderr


@pytest.mark.parametrize(
    ("dimension", "amount", "name", "text"),
    [
        ("cpu_milli", 1_500, "cpu", "1.5"),
        ("memory_bytes", 1 << 30, "memory", "1Gi"),
        ("extended.license", 2, "license", "2"),
        ("device.gpu-core", 50, "gpu-core", "50"),
        ("device.gpu-memory", 4 << 30, "gpu-memory", "4Gi"),
    ],
)
def test_explain_names_dimensions_as_people_type_them(
    dimension: str, amount: int, name: str, text: str
) -> None:
    assert (dimension_name(dimension), amount_text(dimension, amount)) == (name, text)


def test_explain_names_hosts_numbers_and_the_way_out(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    text = finegrain("explain", WAITING.allocation_id).stdout

    assert "INFEASIBLE_NEVER" in text
    assert "cpu: requested 64, free 1.5 of 2, most on one executor 1.5" in text
    assert "cpu 1.5 or less, on host-a" in text
    assert SLOT.allocation_id in text


def test_explain_says_what_is_asked_of_cpus_and_which_policy_would_have_to_give_way(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    lines = finegrain("explain", WAITING.allocation_id).stdout.splitlines()

    assert any(line.startswith("  cpus     LSR, ") for line in lines)
    assert "    numa preferred, on host-a" in lines


def test_explain_tells_who_comes_first_what_stops_it_and_what_is_held(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    lines = finegrain("explain", WAITING.allocation_id).stdout.splitlines()

    told = [
        line.strip() for line in lines if line.startswith(("  order", "  maximum", "  reserved"))
    ]
    assert told == [
        "order    group default is served after group medium: its virtual time is 412.0",
        "maximum  group nightly has 7.5 cpu of at most 8, and 64 more are requested",
        "reserved it has 2 cpu reserved on host-a; not free yet: 0.5 cpu",
        "reserved wide has capacity reserved on host-b",
    ]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (("drain", "nobody"), 3, "EXECUTOR_UNKNOWN"),
        (("explain", "nonesuch"), 3, "ALLOCATION_UNKNOWN"),
        (("terminate", "nonesuch"), 3, "JOB_UNKNOWN"),
        (("topo", "nobody"), 3, "EXECUTOR_UNKNOWN"),
        (("drain", "host-a", "--deadline", "soon"), 2, "INVALID_ARGUMENT"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_errors_carry_code_and_exit_status(
    finegrain: Finegrain,
    cluster: FakeCluster,
    arguments: tuple[str, ...],
    exit_code: int,
    code: str,
) -> None:
    machine = finegrain(*arguments, "-o", "json")

    assert machine.exit_code == exit_code
    assert json.loads(machine.stdout)["code"] == code
    assert f"[{code}]" in machine.stderr


def test_topo_without_a_name_needs_a_single_executor(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    cluster.executor_list.append(replace(EXECUTOR, executor_id="host-b"))

    result = finegrain("topo")

    assert result.exit_code == 2
    assert "one of host-a, host-b" in result.stderr


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (("drain", "host-a"), "room on host-b"),
        (("cordon", "host-a/gpu0"), "room on host-b"),
        (("release", SLOT.allocation_id), "train"),
        (("terminate", JOB.job_id), "would end"),
        (("groups", "set", "ml", "--weight", "2"), "25.0% to 50.0%"),
    ],
)
def test_a_dry_run_says_whom_the_action_concerns(
    finegrain: Finegrain, cluster: FakeCluster, command: tuple[str, ...], text: str
) -> None:
    cluster.request_list[:] = [GRANTED]
    shown = finegrain(*command, "--dry-run")
    document = json.loads(finegrain(*command, "--dry-run", "-o", "json").stdout)

    assert text in shown.stdout
    preview = document.get("preview", document)
    assert [each["before"] for each in preview["shares"]] == [0.25] * len(preview["shares"])
    assert preview["slots"] or preview["shares"]
    assert cluster.done == []

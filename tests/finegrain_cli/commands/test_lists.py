"""The lists for administrators, and the forms that other programs rely on (tests/data/cli)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from finegrain.cpu_assignment import PoolName
from finegrain.cpu_policy import CpuPolicy, QosClass
from finegrain.cpuset import EMPTY
from finegrain_cli.commands.lists import _status_text
from tests.support.cli import (
    ENFORCED,
    EXECUTOR,
    GRANTED,
    NOT_ENFORCED,
    PINNED_SLOT,
    PROVIDERS,
    SLOT,
    FakeCluster,
    Finegrain,
)
from tests.support.cli_cpus import PINNED

GOLDEN = Path(__file__).parents[2] / "data/cli"


@pytest.mark.parametrize(
    "arguments",
    [
        "status",
        "executors",
        "slots",
        "requests --all",
        "jobs",
        "events",
        "explain 01aaaaaa-0000-7000-8000-000000000002",
        "topo host-a",
        "drain host-a",
        "release 01aaaaaa-0000-7000-8000-000000000001 --yes",
        "resize 01aaaaaa-0000-7000-8000-000000000001 --cpu 1.8",
        "providers",
        "advise 01bbbbbb",
        "groups",
    ],
)
def test_json_keeps_its_shape(finegrain: Finegrain, cluster: FakeCluster, arguments: str) -> None:
    cluster.provided = PROVIDERS
    result = finegrain(*arguments.split(), "-o", "json")

    assert result.exit_code == 0, result.output
    golden = GOLDEN / f"{arguments.partition(' ')[0]}.json"
    assert json.loads(result.stdout) == json.loads(golden.read_text(encoding="utf-8"))


@pytest.mark.parametrize("command", ["executors", "slots", "requests", "jobs", "events"])
def test_json_lines_are_the_items_alone(
    finegrain: Finegrain, cluster: FakeCluster, command: str
) -> None:
    document = json.loads(finegrain(command, "-o", "json").stdout)
    lines = finegrain(command, "-o", "jsonl").stdout.splitlines()

    assert [json.loads(line) for line in lines] == document["items"]


def test_a_table_has_a_row_per_executor(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.executor_list.append(replace(EXECUTOR, executor_id="host-b", draining=True))

    heading, *rows = finegrain("executors").stdout.splitlines()

    assert heading.split() == ["EXECUTOR", "STATE", "SLOTS", "CPU", "MEMORY", "AVAILABLE"]
    assert [row.split()[0] for row in rows] == ["host-a", "host-b"]
    assert "0.5/2" in rows[0]
    assert "256Mi/3Gi" in rows[0]
    assert "ACTIVE draining" in rows[1]


def test_wide_says_what_is_enforced(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.executor_list[:] = [replace(EXECUTOR, isolation=NOT_ENFORCED)]

    heading, row = finegrain("executors", "-o", "wide").stdout.splitlines()

    column = heading.index("ISOLATION")
    assert row[column:].startswith("none")


def test_wide_says_which_slots_have_resources_that_nothing_enforces(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    declared = replace(ENFORCED, countable="declared")
    half = replace(ENFORCED, gpu_core="visible-only", gpu_memory="mps")
    cluster.slot_list[:] = [replace(SLOT, isolation=each) for each in (ENFORCED, declared, half)]

    heading, *rows = finegrain("slots", "-o", "wide").stdout.splitlines()
    told = json.loads(finegrain("slots", "-o", "json").stdout)["items"]

    column = heading.index("ISOLATION")
    shown = [row[column:].split("  ")[0] for row in rows]
    assert shown == ["v1", "v1, resources declared", "v1, gpu-core visible-only, gpu-memory mps"]
    assert [slot["isolation"]["countable"] for slot in told] == ["", "declared", ""]


def test_wide_says_which_cpus_a_slot_has(finegrain: Finegrain, cluster: FakeCluster) -> None:
    aligned = replace(PINNED, qos=QosClass.LS, cpus=EMPTY, pools=(PoolName(0, 1), PoolName(0, 0)))
    best_effort = replace(PINNED, qos=QosClass.BE, cpus=EMPTY, numa=(), notes=())
    cluster.slot_list += [
        PINNED_SLOT,
        replace(SLOT, assignment=aligned),
        replace(SLOT, assignment=best_effort),
    ]

    heading, *rows = finegrain("slots", "-o", "wide").stdout.splitlines()

    def shown(name: str) -> list[str]:
        at = heading.index(name)
        return [row[at:].split("  ")[0] for row in rows]

    assert shown("CLASS") == ["LS", "LSR", "LS", "BE"]
    assert shown("CPUS") == ["shared", "1", "shared of node 0, 1", "best effort"]
    assert shown("NUMA") == ["-", "0", "0", "-"]
    assert shown("PREFERENCES NOT MET") == ["-", *PINNED.notes, *PINNED.notes, "-"]


def test_json_says_which_cpus_a_slot_has(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.slot_list[:] = [PINNED_SLOT]

    (slot,) = json.loads(finegrain("slots", "-o", "json").stdout)["items"]

    assert slot["assignment"] == {
        "qos": "LSR",
        "cpus": "1",
        "bind": "FullPCPUs",
        "exclusive": "PCPULevel",
        "numa": [{"node": 0, "amounts": {"cpu_milli": 1000, "memory_bytes": 268435456}}],
        "memory_nodes": "0",
        "pools": [],
        "notes": ["NUMANodeLevel was preferred and could not be had"],
        "devices": [],
        "parked_devices": [],
    }


def test_wide_says_what_a_request_wants_of_cpus(finegrain: Finegrain, cluster: FakeCluster) -> None:
    cluster.request_list.append(replace(cluster.request_list[0], cpu_policy=CpuPolicy()))

    heading, *rows = finegrain("requests", "-o", "wide").stdout.splitlines()

    at = heading.index("CPU POLICY")
    wish = "LSR, bind FullPCPUs:preferred, numa Restricted:required"
    assert [row[at:] for row in rows] == [wish, wish, "-"]


@pytest.mark.parametrize("text", ["01ffffff", "0009", "00000009"])
def test_the_beginning_or_end_of_an_id_chooses(
    finegrain: Finegrain, cluster: FakeCluster, text: str
) -> None:
    other = "01ffffff-0000-7000-8000-000000000009"
    cluster.slot_list.append(replace(SLOT, allocation_id=other))
    cluster.request_list.append(replace(GRANTED, allocation_id=other))

    for command in ("slots", "requests"):
        rows = finegrain(command, text, "-o", "json").stdout
        assert [row["allocation_id"] for row in json.loads(rows)["items"]] == [other]


def test_an_unknown_id_is_not_found(finegrain: Finegrain, cluster: FakeCluster) -> None:
    result = finegrain("slots", "nonesuch", "-o", "json")

    assert result.exit_code == 3
    assert json.loads(result.stdout)["code"] == "ALLOCATION_UNKNOWN"
    assert "nonesuch" in result.stderr


def test_ended_requests_are_shown_when_asked_for(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    assert "RELEASED" not in finegrain("requests").stdout
    assert "RELEASED" in finegrain("requests", "--all").stdout


def test_members_of_a_range_who_stand_alike_are_one_row_that_counts_them(
    finegrain: Finegrain, cluster: FakeCluster
) -> None:
    waiting = next(each for each in cluster.request_list if each.state == "PENDING")
    cluster.request_list[:] = [replace(waiting, allocation_id="many.17", count=9_983)]

    heading, row = finegrain("requests").stdout.splitlines()

    assert heading.split()[:3] == ["JOB", "REQUEST", "COUNT"]
    assert row.split()[:3] == ["nightly", "many.17", "9983"]
    assert "many.17" in finegrain("requests", "many.17").stdout


def test_status_has_devices_where_there_are_any() -> None:
    amounts = {"cpu_milli": 2000, "memory_bytes": 1 << 30}
    gpus = {"device.gpu-core": 150, "device.gpu-memory-ratio": 150, "device.rdma": 100}
    info = {
        "software_version": "1",
        "rm_epoch": 1,
        "start_time": "2026-11-24T12:00:00Z",
        "executors": {},
        "pending_requests": {},
        "jobs": 0,
        "slots": 0,
        **dict.fromkeys(("total", "reserved", "allocated", "available", "used"), amounts),
    }
    assert "devices" not in _status_text(info)
    with_gpus = _status_text({**info, "total": {**amounts, **gpus}})
    [total] = [line for line in with_gpus.splitlines() if line.startswith("total")]
    assert total.endswith("gpu 1.5, rdma 1")


def test_status_tells_who_waits_for_what(finegrain: Finegrain, cluster: FakeCluster) -> None:
    text = finegrain("status").stdout

    assert "1 WAITING_CAPACITY" in text
    assert "epoch 5" in text


@pytest.mark.parametrize("command", ["executors", "events"])
def test_one_json_document_cannot_be_watched(
    finegrain: Finegrain, cluster: FakeCluster, command: str
) -> None:
    result = finegrain(command, "--watch", "-o", "json")

    assert result.exit_code == 2
    assert "jsonl" in result.stderr


def test_the_output_form_may_come_from_the_environment(
    finegrain: Finegrain, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FINEGRAIN_OUTPUT", "json")

    assert json.loads(finegrain("jobs").stdout)["kind"] == "JobList"

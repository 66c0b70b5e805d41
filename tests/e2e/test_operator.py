"""Commands of an administrator on a live cluster."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

import finegrain_client as fg
from finegrain_client.blocking import Job
from tests.e2e.driving import (
    SOON_LOST,
    Daemons,
    Small,
    eventually,
    finish,
    interrupt,
    read_until,
    unique,
)
from tests.support.patience import PATIENCE_S


@dataclass(frozen=True)
class Nightly:
    """A job of another user: a slot of a quarter core, and a request that no host can serve."""

    job: Job
    slot_id: str
    request_id: str


@pytest.fixture
def nightly(small: Small) -> Iterator[Nightly]:
    with small.cli.client() as cluster, cluster.job("nightly", group="medium") as job:
        (held,) = job.request_slots(fg.SlotSpec(cpu_milli=250, memory_bytes=64 * fg.MIB))
        held.granted(PATIENCE_S)
        (waits,) = job.request_slots(fg.SlotSpec(cpu_milli=64_000, allow_pending=True))
        yield Nightly(job, held.allocation_id, waits.allocation_id)


def test_every_list_tells_the_same_story(small: Small, nightly: Nightly) -> None:
    (slot,) = small.cli.items("slots")
    assert (slot["allocation_id"], slot["state"]) == (nightly.slot_id, "ALLOCATED")
    assert (slot["profile"]["cpu_milli"], slot["memory_bytes"]) == (250, 64 * fg.MIB)
    granted, waits = small.cli.items("requests")
    assert (granted["state"], waits["state"]) == ("GRANTED", "PENDING")
    assert (waits["reason"], waits["job_name"]) == ("INFEASIBLE_NEVER", "nightly")
    (listed,) = small.cli.items("jobs")
    assert (listed["job_id"], listed["group"], listed["slots"]) == (
        nightly.job.job_id,
        "medium",
        1,
    )
    host = next(e for e in small.cli.items("executors") if e["executor_id"] == slot["executor_id"])
    assert host["available"]["cpu_milli"] == host["total"]["cpu_milli"] - 250
    kinds = [event["kind"] for event in small.cli.items("events", nightly.job.job_id)]
    assert "job_registered" in kinds
    cluster = small.cli.json("status")
    assert (cluster["slots"], cluster["jobs"]) == (1, 1)
    assert cluster["pending_requests"]["INFEASIBLE_NEVER"] == 1


@pytest.mark.parametrize("what", ["executors", "slots", "requests", "jobs", "events"])
def test_a_list_in_every_form(small: Small, nightly: Nightly, what: str) -> None:
    document = small.cli.json(what)
    assert document["api_version"] == "finegrain/v1"
    assert document["kind"].endswith("List")
    lines = small.cli(what, "-o", "jsonl")
    rows = [json.loads(line) for line in lines.text.splitlines()]
    assert [row.keys() for row in rows] == [row.keys() for row in document["items"]]
    table, wide = small.cli(what), small.cli(what, "-o", "wide")
    assert (table.code, wide.code, table.stderr, wide.stderr) == (0, 0, "", "")
    assert len(table.text.splitlines()) == len(document["items"]) + 1
    assert len(wide.text.splitlines()[0]) > len(table.text.splitlines()[0])
    assert "\x1b" not in table.text


def test_one_row_by_the_beginning_of_its_id(small: Small, nightly: Nightly) -> None:
    (row,) = small.cli.items("slots", nightly.slot_id[:-4])
    assert row["allocation_id"] == nightly.slot_id
    outcome = small.cli("slots", "no-such-slot")
    assert outcome.code == 3
    assert "no-such-slot" in small.cli.error(outcome)


def test_explain_says_why_and_what_would_fit(small: Small, nightly: Nightly) -> None:
    found = small.cli.json("explain", nightly.request_id[:-4])
    assert found["primary_reason"] == "INFEASIBLE_NEVER"
    assert found["request"]["allocation_id"] == nightly.request_id
    assert {each["executor_id"] for each in found["executors"]} == set(small.names)
    assert found["would_fit_if"]
    text = small.cli("explain", nightly.request_id).text
    for name in small.names:
        assert name in text
    unknown = small.cli("explain", "ffffffff")
    assert unknown.code == 3
    assert "ffffffff" in small.cli.error(unknown)


def test_a_drained_executor_gets_nothing_new(small: Small, nightly: Nightly) -> None:
    first, second = small.names
    drained = small.cli.json("drain", first, "--reason", "disk is failing")
    assert (drained["draining"], drained["drain_reason"]) == (True, "disk is failing")
    requests = nightly.job.request_slots(
        fg.SlotSpec(cpu_milli=50, memory_bytes=8 * fg.MIB, count=6)
    )
    slots = [each.granted(PATIENCE_S) for each in requests]
    assert {slot.executor_id for slot in slots} == {second}
    assert "draining" in small.cli("executors", first).text
    assert small.cli("undrain", first).code == 0
    assert not small.cli.items("executors", first)[0]["draining"]


def test_a_drain_with_a_deadline_takes_the_rest_away(small: Small, nightly: Nightly) -> None:
    home = small.cli.items("slots")[0]["executor_id"]
    assert small.cli("drain", home, "--deadline", "1s", "--yes").code == 0
    eventually(lambda: not small.cli.items("slots"), "the slot is taken away")
    (ended,) = small.cli.items("requests", nightly.slot_id)
    assert ended["reason"] == "EXECUTOR_DRAINED"
    assert small.cli("undrain", home).code == 0


def test_trying_a_drain_out_changes_nothing(small: Small) -> None:
    name = small.names[0]
    assert "would drain" in small.cli("drain", name, "--dry-run").text
    assert not small.cli.items("executors", name)[0]["draining"]


def test_releasing_what_is_somebody_elses(small: Small, nightly: Nightly) -> None:
    outcome = small.cli(
        "release", nightly.slot_id[:-4], nightly.request_id, "--yes", "--grace", "0s"
    )
    assert outcome.code == 0, outcome.stderr
    eventually(lambda: not small.cli.items("slots"), "the slot is gone")
    assert not small.cli.items("requests")
    states = {each["allocation_id"]: each["state"] for each in small.cli.items("requests", "--all")}
    assert (states[nightly.slot_id], states[nightly.request_id]) == ("RELEASED", "CANCELLED")


def test_run_says_that_an_operator_released_its_slot(small: Small) -> None:
    process = small.cli.start("run", "--cpu", "0.1", "--", "sh", "-c", "echo up; sleep 1000")
    read_until(process, b"up\n")
    (slot,) = small.cli.items("slots")
    assert small.cli("release", slot["allocation_id"], "--yes").code == 0
    done = finish(process)

    assert done.code == 128 + signal.SIGTERM
    assert f"slot {slot['allocation_id']} (generation 1)" in done.stderr
    assert "ended by an administrator [TERMINATED]" in done.stderr


def test_run_says_that_an_operator_ended_its_job(small: Small) -> None:
    process = small.cli.start("run", "--cpu", "0.1", "--", "sh", "-c", "echo up; sleep 1000")
    read_until(process, b"up\n")
    (job,) = small.cli.items("jobs")
    assert small.cli("terminate", job["job_id"], "--yes").code == 0
    done = finish(process)

    assert done.code == 128 + signal.SIGTERM
    assert "its job ended: TERMINATED [JOB_OVER]" in done.stderr


def test_a_slot_is_not_released_without_a_word(small: Small, nightly: Nightly) -> None:
    outcome = small.cli("release", nightly.slot_id)
    assert outcome.code == 2
    assert f"their tasks ended: {nightly.slot_id}" in outcome.stderr
    assert "this command needs --yes" in small.cli.error(outcome)
    assert len(small.cli.items("slots")) == 1
    # A request that waits has no tasks.
    assert small.cli("release", nightly.request_id).code == 0
    assert small.cli.items("requests", nightly.request_id)[0]["state"] == "CANCELLED"


def test_a_deadline_keeps_the_reason_of_a_drain(small: Small) -> None:
    name = small.names[0]
    assert small.cli("drain", name, "--reason", "new disk").code == 0
    try:
        assert small.cli("drain", name, "--deadline", "1h", "--yes").code == 0
        (executor,) = small.cli.items("executors", name)
        assert executor["drain_reason"] == "new disk"
        assert executor["drain_deadline_time"]
    finally:
        assert small.cli("undrain", name).code == 0


def test_terminating_a_job(small: Small, nightly: Nightly) -> None:
    assert small.cli("terminate", nightly.job.job_id[:-4], "--yes", "--grace", "0s").code == 0
    (ended,) = small.cli.items("jobs", nightly.job.job_id)
    assert (ended["ended"], ended["end_reason"]) == (True, "TERMINATED")
    eventually(lambda: not small.cli.items("slots"), "its slots are gone")


def test_levers_need_an_operator(small: Small, nightly: Nightly) -> None:
    weak = ("--credentials", str(small.log_in("viewer/eve")))
    assert small.cli("slots", *weak).code == 0
    for command in (("drain", small.names[0]), ("release", nightly.slot_id, "--yes")):
        outcome = small.cli(*command, *weak)
        assert outcome.code == 8
        assert "[ROLE_MISSING]" in small.cli.error(outcome)
        assert "viewer/eve may not call" in outcome.stderr
        assert "needs the role operator" in outcome.stderr
    assert len(small.cli.items("slots")) == 1


def test_the_permission_is_checked_before_the_question(small: Small, nightly: Nightly) -> None:
    weak = ("--credentials", str(small.log_in("user/eve")))
    for command in (
        ("drain", small.names[0], "--deadline", "10m"),
        ("release", nightly.slot_id),
        ("terminate", nightly.job.job_id),
        ("forget", small.names[0]),
        ("groups", "delete", "no-such-group"),
    ):
        outcome = small.cli(*command, *weak)
        assert outcome.code == 8
        assert "[ROLE_MISSING]" in outcome.stderr
        assert "will be" not in outcome.stderr
        # An administrator without a terminal gets the error that --yes is missing.
        outcome = small.cli(*command)
        assert outcome.code == 2
        assert "will be" in outcome.stderr
    assert len(small.cli.items("slots")) == 1
    assert not small.cli.items("executors", small.names[0])[0]["draining"]


def test_an_error_as_json(small: Small) -> None:
    outcome = small.cli("drain", "no-such-host", "-o", "json")
    assert outcome.code == 3
    told = json.loads(outcome.stdout)
    assert (told["kind"], told["code"]) == ("Error", "EXECUTOR_UNKNOWN")


def test_an_executor_that_lives_is_not_forgotten(small: Small) -> None:
    outcome = small.cli("forget", small.names[0], "--yes")
    assert outcome.code == 4
    assert "[EXECUTOR_NOT_LOST]" in small.cli.error(outcome)


def test_watching_slots_come_and_go(small: Small) -> None:
    watch = small.cli.start("slots", "--watch", "-o", "jsonl")
    try:
        with small.cli.client() as cluster, cluster.job("watched") as job:
            (request,) = job.request_slots(fg.SlotSpec(cpu_milli=100))
            request.granted(PATIENCE_S)
            assert watch.stdout is not None
            row = json.loads(watch.stdout.readline())
            while row["state"] != "ALLOCATED":
                row = json.loads(watch.stdout.readline())
            assert row["allocation_id"] == request.allocation_id
        while not row.get("gone"):
            row = json.loads(watch.stdout.readline())
        assert row == {"allocation_id": request.allocation_id, "gone": True}
    finally:
        interrupt(watch)
    assert finish(watch).code == 128 + signal.SIGINT


def test_watching_what_happens(small: Small) -> None:
    name = unique("watched")
    watch = small.cli.start("events", "--watch", "-o", "jsonl", "-n", "1", text=False)
    try:
        with small.cli.client() as cluster, cluster.job(name):
            read_until(watch, name.encode())
    finally:
        interrupt(watch)
        watch.communicate(timeout=PATIENCE_S)


def test_output_that_nobody_reads_is_no_failure(small: Small) -> None:
    process = small.cli.start("events", "-o", "jsonl", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert "Traceback" not in (process.stderr.read().decode() if process.stderr else "")
    process.wait(PATIENCE_S)


def test_the_shape_of_hosts(small: Small) -> None:
    document = small.cli.json("topo", small.names[0])
    assert document["executor_id"] == small.names[0]
    assert document["topology"]["cores"] or document["topology"]["cpus"]
    which = small.cli("topo")
    assert which.code == 2
    for name in small.names:
        assert name in small.cli.error(which)


def test_an_executor_that_was_lost_is_forgotten(daemons: Daemons) -> None:
    name = unique("e2e-gone")
    daemons.manager.start(*SOON_LOST)
    daemons.manager.endpoint()
    executor = daemons.executor(name)
    executor.start()
    daemons.await_executors(name)
    executor.kill()
    eventually(
        lambda: daemons.cli.items("executors", name)[0]["state"] == "LOST", "the executor is lost"
    )
    assert daemons.cli("forget", name, "--yes").code == 0
    assert not daemons.cli.items("executors")
    kinds = [each["kind"] for each in daemons.cli.items("events", name)]
    assert kinds == ["executor_registered", "executor_lost", "executor_forgotten"]


def test_policies_of_the_cluster_come_from_the_configuration(daemons: Daemons) -> None:
    daemons.manager.start("--bind-policy", "SpreadByPCPUs", "--default-exclusive-policy", "None")
    daemons.manager.endpoint()
    found = daemons.cli.json("executors", "policy", "--defaults")
    assert found["set"]["bind"] is None
    assert found["effective"]["bind"] == "SpreadByPCPUs"
    assert found["effective"]["origins"]["bind"] == "cluster"
    assert daemons.cli("executors", "set", "--defaults", "--bind-policy", "None").code == 0
    found = daemons.cli.json("executors", "policy", "--defaults")
    assert (found["set"]["bind"], found["effective"]["bind"]) == ("None", "None")


def test_an_executor_may_have_an_explicit_default_slot(daemons: Daemons) -> None:
    name = unique("e2e-default")
    daemons.manager.start()
    daemons.manager.endpoint()
    sizes = ("--default-slot-cpu", "0.3", "--default-slot-memory", "64M")
    parts = ("--default-slot-memory-percent", "managed=25")
    daemons.executor(name, *sizes, *parts).start()
    daemons.await_executors(name)
    with daemons.cli.client() as cluster, cluster.job("default-slots") as job:
        (request,) = job.request_slots(fg.SlotSpec())
        profile = request.granted(PATIENCE_S).profile
    assert (profile.cpu_milli, profile.memory_bytes) == (300, 64 * fg.MIB)
    assert profile.managed_memory_bytes == 16 * fg.MIB

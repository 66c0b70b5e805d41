"""Slots are taken back for requests that fit on no executor, with real daemons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.driving import Cli, Daemons, eventually, finish, read_until, unique

LARGE = ("--cpu", "0.8", "--memory", "64M")


@pytest.fixture
def cli(daemons: Daemons) -> Cli:
    """A cluster with one executor and revocation."""
    daemons.manager.start("--revocation", "on")
    daemons.manager.endpoint()
    name = unique("revoking")
    daemons.executor(name).start()
    daemons.await_executors(name)
    return daemons.cli


def test_a_run_in_a_revocable_slot_makes_room(cli: Cli) -> None:
    mark = unique("revocable")
    code = f"import time\nprint('{mark}', flush=True)\ntime.sleep(600)"
    first = cli.start("run", *LARGE, "--revocable", "--", "python3", "-c", code)
    read_until(first, mark.encode())
    (slot,) = cli.items("slots")
    assert slot["revocable"] is True

    other = cli("run", *LARGE, "--", "echo", "room")
    assert (other.code, other.text) == (0, "room\n")
    revoked = finish(first)
    assert revoked.code == 123
    assert "the slot was taken back for a request that is not revocable [REVOKED]" in revoked.stderr
    events = cli.items("events")
    assert [each["reason"] for each in events if each["kind"] == "slot_revoked"] == ["REVOKED"]


def test_a_batch_runs_its_revoked_thread_again(cli: Cli, tmp_path: Path) -> None:
    began = tmp_path / "began"
    script = f"echo >> {began}; [ $(wc -l < {began}) -gt 1 ] || sleep 600"
    flags = (*LARGE, "--revocable", "--threads", "1", "--retries", "0")
    batch = cli.start("batch", *flags, "--", "sh", "-c", script)
    eventually(began.exists, "the thread has begun")
    other = cli("run", *LARGE, "--", "echo", "room")
    assert (other.code, other.text) == (0, "room\n")
    outcome = finish(batch)
    assert outcome.code == 0, outcome
    assert began.read_text() == "\n\n"


def test_a_command_that_ends_by_itself_when_its_slot_is_revoked(cli: Cli) -> None:
    """Its exit code is no result of its work."""
    mark = unique("saves")
    code = f"trap 'exit 3' TERM; echo {mark}; sleep 600 & wait"
    first = cli.start("run", *LARGE, "--revocable", "--", "sh", "-c", code)
    read_until(first, mark.encode())
    other = cli("run", *LARGE, "--", "echo", "room")
    assert (other.code, other.text) == (0, "room\n")
    assert finish(first).code == 123


def test_a_revoked_member_ends_the_other_members_of_its_run(cli: Cli) -> None:
    mark = unique("member")
    size = ("--cpu", "0.4", "--memory", "64M")
    flags = (*size, "--gang", "2", "--revocable")
    first = cli.start("run", *flags, "--", "sh", "-c", f"echo {mark}; sleep 600")
    read_until(first, mark.encode())
    assert [each["revocable"] for each in cli.items("slots")] == [True, True]
    other = cli("run", *size, "--", "echo", "room")
    assert (other.code, other.text) == (0, "room\n")
    revoked = finish(first)
    assert revoked.code == 123
    assert "was lost; the other members are stopped" in revoked.stderr


def test_a_job_graph_goes_on_after_its_slot_was_revoked(cli: Cli, tmp_path: Path) -> None:
    began = tmp_path / "began"
    first_time = "trap 'exit 3' TERM; sleep 600 & wait $!"
    script = f"echo >> {began}; [ $(wc -l < {began}) -gt 1 ] || {{ {first_time}; }}"
    graph = tmp_path / "one.toml"
    graph.write_text(
        f"""
schema_version = 1
[job]
name = "one"
mode = "batch"
restarts_max = 0
[[operator]]
name = "only"
program = ["sh", "-c", {json.dumps(script)}]
resources = {{ cpu = 0.8, task_heap_memory = "64M" }}
"""
    )
    job = cli.start("job", "run", "--revocable", str(graph), "--state", str(tmp_path / "state"))
    eventually(began.exists, "the task has begun")
    other = cli("run", *LARGE, "--", "echo", "room")
    assert (other.code, other.text) == (0, "room\n")
    outcome = finish(job)
    assert outcome.code == 0, outcome
    assert began.read_text() == "\n\n"


def test_the_manager_is_killed_while_a_slot_is_revoked(cli: Cli, daemons: Daemons) -> None:
    mark = unique("stubborn")
    code = (
        "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: print('told', flush=True))\n"
        f"print('{mark}', flush=True)\nwhile True: time.sleep(1)"
    )
    first = cli.start("run", *LARGE, "--revocable", "--", "python3", "-c", code)
    read_until(first, mark.encode())
    other = daemons.patient_cli.start("run", *LARGE, "--", "echo", "room")

    def is_revoked() -> bool:
        return any(each["state"] == "FREEING" for each in cli.items("slots"))

    eventually(is_revoked, "the slot is being revoked")
    waiting = next(each for each in cli.items("requests") if each["state"] == "ALLOCATING")
    told = cli("explain", waiting["allocation_id"])
    assert "waits for slots being revoked" in told.text
    daemons.manager.kill()
    daemons.manager.start("--revocation", "on")
    daemons.manager.endpoint()
    outcome = finish(other)
    assert (outcome.code, outcome.stdout) == (0, b"room\n"), outcome
    finish(first)

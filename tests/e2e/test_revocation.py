"""Slots are taken back for requests that fit on no executor, with real daemons."""

from __future__ import annotations

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
    flags = (*LARGE, "--revocable", "--threads", "1")
    batch = cli.start("batch", *flags, "--", "sh", "-c", script)
    eventually(began.exists, "the thread has begun")
    other = cli("run", *LARGE, "--", "echo", "room")
    assert (other.code, other.text) == (0, "room\n")
    outcome = finish(batch)
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

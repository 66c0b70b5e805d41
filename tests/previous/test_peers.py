"""Daemons and commands of this version work with daemons and commands of the version before it, and
replace them.

Each host is a network namespace. The resource manager is on the first host. Each of the two other
hosts has an executor: one executor has the earlier version, and one has this version.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.driving import FINEGRAIN, eventually
from tests.e2e.hosts import Host, three_hosts
from tests.previous.code import PEERS_ARCHIVE, PEERS_VERSION, PreviousCode
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow, pytest.mark.full]

SMALL = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with three_hosts() as made:
        yield made


@pytest.fixture
def earlier(tmp_path: Path) -> PreviousCode:
    return PreviousCode(tmp_path / "earlier", PEERS_ARCHIVE)


def start_manager(host: Host) -> None:
    """Starts the resource manager, and logs in as an administrator."""
    host.configure(rm=f'listen = "{host.address}:7170"\nreport_interval = "500ms"')
    host.start("rm", "serve")
    socket = host.folder / "rm" / "login.sock"
    eventually(socket.exists, "the resource manager serves")
    assert host.finegrain("login", "--operator").code == 0


def start_executor(host: Host, manager: Host) -> None:
    """Starts an executor, which joins with a new token."""
    host.configure(
        executor=f'executor_id = "{host.name}"\nlisten = "{host.address}:7180"\n'
        f'manager = ["{manager.address}:7170"]\nlabels = {{ host = "{host.name}" }}'
    )
    host.join_token.parent.mkdir(mode=0o700)
    host.join_token.touch(mode=0o600)
    host.join_token.write_text(manager.finegrain("token", "create", "--executor", host.name).text)
    host.start("executor", "serve")


def replace_daemon(host: Host, name: str) -> None:
    """Kills the daemon of a host, and starts the daemon of this version."""
    (daemon,) = host.daemons
    daemon.kill()
    daemon.wait(PATIENCE_S)
    host.daemons.clear()
    host.code = None
    host.start(name, "serve")


def run(host: Host, *command: str) -> str:
    """The standard output of a command that succeeds."""
    done = host.finegrain(*command)
    log = (host.folder / "rm.log").read_text()[-3_000:]
    assert done.code == 0, (command, done.stdout, done.stderr, log)
    return done.text


def listed(host: Host, *command: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(run(host, *command, "-o", "json"))["items"]
    return items


def versions(host: Host) -> dict[str, str]:
    """The versions of the executors that are ready for slots."""
    return {
        each["executor_id"]: each["software_version"]
        for each in listed(host, "executors")
        if each["state"] == "ACTIVE"
    }


@pytest.mark.parametrize("manager_is_earlier", [True, False], ids=["earlier", "this version"])
def test_commands_and_executors_of_both_versions_work_with_a_manager_of(
    hosts: list[Host], earlier: PreviousCode, manager_is_earlier: bool
) -> None:
    first, second, third = hosts
    first.code = earlier if manager_is_earlier else None
    second.code = earlier
    start_manager(first)
    for host in (second, third):
        start_executor(host, first)
    eventually(lambda: len(versions(first)) == 2, "both executors join")
    found = versions(first)
    assert found[second.name] == PEERS_VERSION
    assert found[third.name] != PEERS_VERSION

    for code in (earlier, None):
        here = replace(first, code=code)
        spread = ("run", *SMALL, "--gang", "2", "--gang-placement", "spread", "--", "hostname")
        names = {line.split()[1] for line in run(here, *spread).splitlines()}
        assert names == {second.name, third.name}
        for each in (second, third):
            on_it = ("run", *SMALL, "--label", f"host={each.name}")
            assert here.finegrain(*on_it, "--", "sh", "-c", "exit 7").code == 7
        limited = here.finegrain("run", *SMALL, "--time-limit", "1s", "--", "sleep", "60")
        assert limited.code == 124, limited.stderr
        waiting = here.finegrain(
            *("run", "--cpu", "64", "--allow-pending", "--wait-timeout", "1s", "--", "true")
        )
        assert "STILL_WAITING" in waiting.stderr
        run(here, "drain", second.name, "--yes")
        run(here, "undrain", second.name)
        eventually(lambda: listed(first, "slots") == [], "all slots are freed")


def test_a_task_runs_on_while_manager_and_executor_get_this_version(
    hosts: list[Host], earlier: PreviousCode
) -> None:
    first, second, _ = hosts
    first.code = second.code = earlier
    start_manager(first)
    start_executor(second, first)
    eventually(lambda: len(versions(first)) == 1, "the executor joins")
    begun, end = first.folder / "begun", first.folder / "end"
    script = f"touch {begun}; while [ ! -e {end} ]; do sleep 0.1; done; echo ended; exit 7"
    master = subprocess.Popen(
        [*first.inside, *FINEGRAIN, "run", *SMALL, "--", "sh", "-c", script],
        env=first.environment(),
        cwd=first.cwd,
        stdout=subprocess.PIPE,
    )
    eventually(begun.exists, "the task begins")
    slots = [each["allocation_id"] for each in listed(first, "slots")]

    replace_daemon(first, "rm")
    eventually(lambda: first.finegrain("executors").code == 0, "the new manager serves")
    eventually(lambda: versions(first) == {second.name: PEERS_VERSION}, "the executor reports")
    assert [each["allocation_id"] for each in listed(first, "slots")] == slots
    replace_daemon(second, "executor")
    eventually(
        lambda: (found := versions(first)) and found != {second.name: PEERS_VERSION},
        "the new executor registers",
    )
    assert [each["allocation_id"] for each in listed(first, "slots")] == slots

    end.touch()
    output, _ = master.communicate(timeout=PATIENCE_S)
    assert (output, master.returncode) == (b"ended\n", 7)
    eventually(lambda: listed(first, "slots") == [], "the slot is freed")

"""A cluster of the version without certificates moves to this one, on three hosts, with tasks."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.driving import FINEGRAIN, eventually
from tests.e2e.hosts import Host, three_hosts
from tests.previous.code import PreviousCode
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow, pytest.mark.full]

LOST_S, LEASE_S = 5, 5


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[list[Host]]:
    with three_hosts() as made:
        code = PreviousCode(tmp_path / "previous")
        for each in made:
            each.code = code
        yield made


def configure(host: Host, manager: Host) -> None:
    """The configuration of the previous version, or of this one."""
    old = host.code is not None
    insecure = "insecure = true\n" if old else ""
    token = f'"{manager.folder}/rm/cluster.token"'
    host.configure(
        rm=f'listen = "{host.address}:7170"\nlost_timeout = "{LOST_S}s"\n'
        f'report_interval = "500ms"\nlease = "{LEASE_S}s"\n{insecure}',
        executor=f'executor_id = "{host.name}"\nlisten = "{host.address}:7180"\n'
        + (f"{insecure}manager_insecure = true\ncluster_token_file = {token}\n" if old else "")
        + (f'manager = ["{manager.address}:7170"]\n[client]\ninsecure = true\n' if old else ""),
    )


def listed(host: Host, *command: str) -> list[dict[str, Any]]:
    done = host.finegrain(*command, "-o", "json")
    assert done.code == 0, done.stderr + (host.folder / "rm.log").read_text()[-2_000:]
    items: list[dict[str, Any]] = json.loads(done.stdout)["items"]
    return items


def states(host: Host) -> dict[str, str]:
    return {each["executor_id"]: each["state"] for each in listed(host, "executors")}


def run_in_background(host: Host, name: str) -> subprocess.Popen[bytes]:
    """A command that runs a task until there is the file `NAME.end`."""
    begun, end = (host.folder / f"{name}.{each}" for each in ("begun", "end"))
    script = f"touch {begun}; while [ ! -e {end} ]; do sleep 0.1; done; touch {end}.seen"
    process = subprocess.Popen(
        [
            *host.inside,
            *FINEGRAIN,
            "run",
            "--cpu",
            "0.1",
            "--memory",
            "32M",
            "--",
            "sh",
            "-c",
            script,
        ],
        env=host.environment(),
        cwd=host.cwd,
        stderr=subprocess.DEVNULL,
    )
    eventually(begun.exists, "the task begins")
    return process


def test_tasks_go_on_while_a_cluster_gets_certificates(hosts: list[Host]) -> None:
    first, second, third = hosts
    for host in hosts:
        configure(host, first)
    first.start("rm", "serve")
    eventually((first.folder / "rm" / "cluster.token").exists, "the manager makes its token")
    for host in (second, third):
        host.join_token.parent.mkdir(mode=0o700)
        host.start("executor", "serve")
    both = {second.name: "ACTIVE", third.name: "ACTIVE"}
    eventually(lambda: states(first) == both, "both executors register")
    master = run_in_background(first, "task")
    (slot,) = listed(first, "slots")

    # The resource manager is stopped and upgraded. Its job master is of the previous version.
    rm = first.daemons.pop()
    rm.terminate()
    assert rm.wait(PATIENCE_S) == 0
    first.code = None
    configure(first, first)
    assert first.finegrain("db", "upgrade").code == 0
    first.start("rm", "serve")
    eventually((first.folder / "rm" / "login.sock").exists, "the new manager serves")
    assert first.finegrain("login", "--operator").code == 0
    time.sleep(max(LOST_S, LEASE_S) + 1)  # longer than the lost timeout and the lease
    unconfirmed = dict.fromkeys(both, "UNCONFIRMED")
    assert states(first) == unconfirmed
    assert [each["allocation_id"] for each in listed(first, "slots")] == [slot["allocation_id"]]
    missing = listed(first, "certs", "migrate", "--dry-run")
    assert {each["executor_id"] for each in missing} == set(both)

    # Each executor gets a token, and this version. Its task goes on.
    tokens = first.folder / "tokens"
    assert first.finegrain("certs", "migrate", "--to", str(tokens)).code == 0
    home = next(each for each in (second, third) if each.name == slot["executor_id"])
    other = third if home is second else second
    old_executor = home.daemons.pop()
    old_executor.kill()
    old_executor.wait(PATIENCE_S)
    home.code = None
    configure(home, first)
    home.join_token.touch(mode=0o600)
    home.join_token.write_text((tokens / f"{home.name}.token").read_text())
    home.start("executor", "serve")
    expected = unconfirmed | {home.name: "ACTIVE"}
    eventually(lambda: states(first) == expected, "the executor joins")
    time.sleep(LEASE_S + 1)
    assert [each["allocation_id"] for each in listed(first, "slots")] == [slot["allocation_id"]]
    end = first.folder / "task.end"
    end.touch()
    eventually(Path(f"{end}.seen").exists, "the task, which ran all the time, ends by itself")

    # The other executor never joins, and an administrator forgets it in the end.
    done = first.finegrain("certs", "migrate", "--finish", "--yes", "-o", "json")
    assert json.loads(done.stdout)["forgotten"] == [other.name]
    eventually(lambda: states(first) == {home.name: "ACTIVE"}, "only the member is left")
    eventually(lambda: listed(first, "slots") == [], "the job has ended")
    small = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
    assert first.finegrain("run", *small, "--", "echo", "new").text == "new\n"
    master.kill()
    master.wait(PATIENCE_S)

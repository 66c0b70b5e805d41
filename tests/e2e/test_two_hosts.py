"""Certificates between hosts: clocks that differ, and a standby on another host."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.driving import eventually
from tests.e2e.hosts import Host, three_hosts
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow, pytest.mark.full]

SMALL = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
HOUR_S = 3_600


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with three_hosts() as made:
        yield made


@pytest.fixture(scope="module")
def shifting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the wall clock of the programs that preload it."""
    library = tmp_path_factory.mktemp("clock") / "shifted.so"
    source = Path(__file__).with_name("shifted_clock.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


def serve_manager(host: Host, options: str = "") -> None:
    host.configure(rm=f'listen = "{host.address}:7170"\nlost_timeout = "60s"\n{options}')
    host.start("rm", "serve")
    eventually((host.folder / "rm" / "login.sock").exists, "the manager serves")
    assert host.finegrain("login", "--operator").code == 0


def bring_in(host: Host, manager: Host, options: str = "") -> None:
    """Starts an executor with a new token."""
    host.configure(executor=f'listen = "{host.address}:7180"\n{options}')
    made = manager.finegrain("token", "create", "--executor", host.name)
    assert made.code == 0, made.stderr
    host.join_token.parent.mkdir(mode=0o700)
    host.join_token.touch(mode=0o600)
    host.join_token.write_text(made.text)
    host.start("executor", "serve")


def active(manager: Host) -> set[str]:
    done = manager.finegrain("executors", "-o", "json")
    assert done.code == 0, done.stderr
    listed = json.loads(done.stdout)["items"]
    return {each["executor_id"] for each in listed if each["state"] == "ACTIVE"}


def test_clocks_may_differ_by_an_hour_and_an_error_names_both(
    hosts: list[Host], shifting: Path
) -> None:
    first, slow, fast = hosts
    serve_manager(first)
    for host, shift_s in ((slow, -HOUR_S), (fast, HOUR_S)):
        host.variables |= {"LD_PRELOAD": str(shifting), "CLOCK_SHIFT_S": str(shift_s)}
        bring_in(host, first)
    eventually(lambda: active(first) == {slow.name, fast.name}, "both join")
    for host, other in ((slow, fast), (fast, slow)):
        assert first.finegrain("undrain", host.name).code == 0
        assert first.finegrain("drain", other.name, "--yes").code == 0
        done = first.finegrain("run", *SMALL, "--", "hostname")
        assert (done.code, done.text) == (0, f"{host.name}\n"), done.stderr

    # A person whose clock is three hours slow has a certificate that is not valid yet there.
    token = first.finegrain("token", "create", "--user", "alice").text
    slow.variables["CLOCK_SHIFT_S"] = str(-3 * HOUR_S)
    refused = slow.finegrain("login", "--token", "-", stdin=token)
    assert refused.code != 0
    assert "the clock of this host says" in refused.stderr


def test_a_standby_on_another_host_takes_over(hosts: list[Host]) -> None:
    first, second, third = hosts
    shared = f'standby = true\ndatabase = "sqlite:///{first.folder.parent}/shared.db"\n'
    serve_manager(first, shared)
    token = first.finegrain("token", "create", "--rm").text
    second.configure(rm=f'listen = "{second.address}:7170"\nlost_timeout = "60s"\n{shared}')
    joined = second.finegrain("rm", "join", "--token", "-", stdin=token)
    assert joined.code == 0, joined.stderr
    again = second.finegrain("rm", "join", "--token", "-", stdin=token)
    assert "has the authority of a cluster already" in again.stderr
    second.start("rm", "serve")
    managers = f'["{first.address}:7170", "{second.address}:7170"]'
    bring_in(third, first, f"manager = {managers}\n")
    eventually(lambda: active(first) == {third.name}, "the executor joins")

    leader = first.daemons.pop()
    leader.kill()
    leader.wait(PATIENCE_S)
    eventually((second.folder / "rm" / "operator.credentials").exists, "the standby leads")
    assert second.finegrain("login", "--operator").code == 0
    eventually(lambda: active(second) == {third.name}, "the executor follows")
    done = second.finegrain("run", *SMALL, "--", "echo", "42")
    assert (done.code, done.text) == (0, "42\n"), done.stderr

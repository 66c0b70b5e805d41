"""The section "More hosts" of docs/operations.md, step by step, on three hosts.

A host in this test is a network namespace with its own host name and directories. It differs from a
real one in three ways: a folder stands for the root directory, the section "A single unit" replaces
the three units of systemd, and the test gives each executor a part of this machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.driving import eventually
from tests.e2e.hosts import Host, three_hosts
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow]

SMALL = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
PAGE = REPOSITORY / "docs" / "operations.md"


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Three hosts at one switch. The resource manager runs on the first host."""
    page = PAGE.read_text()
    assert "In `/etc/finegrain/finegrain.toml` of the resource manager's host, set" in page
    with three_hosts() as made:
        # "First host", step 3, with the address of "More hosts".
        first = made[0]
        first.configure(rm=f'listen = "{first.address}:7170"')
        first.start("rm", "serve")
        eventually((first.folder / "rm" / "login.sock").exists, "the manager serves")
        assert "operator/root" in first.shell("finegrain login --operator")
        yield made


def test_one_token_and_one_join_per_host_and_nothing_else(hosts: list[Host]) -> None:
    first, *others = hosts
    # Step 4 on each other host, with a token that an administrator has made and copied there.
    for host in others:
        host.configure(executor=f'listen = "{host.address}:7180"')
        host.join_token.parent.mkdir(mode=0o700)
        host.join_token.touch(mode=0o600)
        made = first.finegrain("token", "create", "--executor", host.name)
        host.join_token.write_text(made.text)
        host.start("executor", "serve")

    def states() -> list[tuple[str, str]]:
        done = first.finegrain("executors", "-o", "json")
        assert done.code == 0, done.stderr + (first.folder / "rm.log").read_text()[-3000:]
        listed = json.loads(done.stdout)["items"]
        return sorted((each["executor_id"], each["state"]) for each in listed)

    expected = sorted((host.name, "ACTIVE") for host in others)
    eventually(lambda: states() == expected, "both executors join")
    assert not any(host.join_token.exists() for host in others)

    # A user of the third host.
    token = first.finegrain("token", "create", "--user", "alice").text
    third = others[1]
    login = third.finegrain("login", "--token", "-", stdin=token)
    assert login.code == 0, login.stderr
    spread = ("--gang", "2", "--gang-placement", "spread")
    done = third.finegrain("run", *SMALL, *spread, "--", "hostname")
    assert done.code == 0, done.stderr
    names = sorted(line.split()[1] for line in done.text.splitlines())
    assert names == sorted(host.name for host in others)
    assert json.loads(third.finegrain("whoami", "-o", "json").stdout)["identity"] == "user/alice"


def test_a_token_is_for_one_executor(hosts: list[Host]) -> None:
    first, second, _ = hosts
    token = first.finegrain("token", "create", "--executor", first.name).text
    # The configured id differs from the name in the token.
    stray = Host("stray", second.address, second.folder / "stray", second.inside)
    stray.folder.mkdir()
    stray.configure(executor=f'listen = "{second.address}:7190"\nexecutor_id = "stray"')
    stray.join_token.parent.mkdir(mode=0o700)
    stray.join_token.touch(mode=0o600)
    stray.join_token.write_text(token)
    refused = stray.finegrain("executor", "serve")

    assert refused.code != 0
    assert f"is for executor {first.name}, but this executor is stray" in refused.stderr

"""The section "More hosts" of docs/operations.md, step by step, on three hosts.

A host here is a network namespace with a host name and directories of its own. It differs from a
real one in three ways: a folder stands for the root directory, the section "A single unit" replaces
the three units of systemd, and the test gives each executor a part of this machine.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.driving import FINEGRAIN, Cli, Outcome, eventually, unique
from tests.support.components import REPOSITORY
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow]

NETWORK = "198.51.100"  # of the block for documentation (RFC 5737): no host has it
SMALL = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
PAGE = REPOSITORY / "docs" / "operations.md"


@dataclass
class Host:
    """One host: its name, its address, and what runs on it."""

    name: str
    address: str
    folder: Path
    inside: Sequence[str]
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def config(self) -> Path:
        """Stands for /etc/finegrain/finegrain.toml."""
        return self.folder / "finegrain.toml"

    @property
    def join_token(self) -> Path:
        """Stands for /var/lib/finegrain/executor/join.token."""
        return self.folder / "executor" / "join.token"

    def configure(self, rm: str = "", executor: str = "") -> None:
        """Writes the configuration; the first lines replace the directories of root."""
        self.config.write_text(
            f'[rm]\nstate_dir = "{self.folder}/rm"\n{rm}\n'
            f'[executor]\nstate_dir = "{self.folder}/executor"\nrun_dir = "{self.folder}/run"\n'
            f'cpu = "1"\nmemory = "256M"\nallow_root_tasks = true\ntask_user = "self"\n{executor}\n'
        )

    def environment(self) -> dict[str, str]:
        return Cli(self.folder, extra={"FINEGRAIN_CONFIG": str(self.config)}).environment()

    def start(self, *command: str) -> None:
        with (self.folder / f"{command[0]}.log").open("ab") as log:
            self.daemons.append(
                subprocess.Popen(
                    [*self.inside, *FINEGRAIN, *command],
                    env=self.environment(),
                    stdout=log,
                    stderr=log,
                )
            )

    def finegrain(self, *command: str, stdin: str = "") -> Outcome:
        done = subprocess.run(
            [*self.inside, *FINEGRAIN, *command],
            env=self.environment(),
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def shell(self, script: str) -> str:
        """Runs a line of the page as it is printed, with `finegrain` and this host's name."""
        done = subprocess.run(
            [*self.inside, "sh", "-ec", f'finegrain() {{ {" ".join(FINEGRAIN)} "$@"; }}\n{script}'],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> list[int]:
        codes = []
        for daemon in reversed(self.daemons):
            daemon.terminate()
            codes.append(daemon.wait(PATIENCE_S))
        return codes


def namespace(stack: ExitStack, kinds: str, script: str) -> tuple[int, list[str]]:
    """Starts a process in new namespaces; returns its id, and the command that enters them."""
    pipe = subprocess.PIPE
    command = ["unshare", *kinds.split(), "sh", "-ec", f"ip link set lo up; {script}; exec cat"]
    holder = stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe))
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"up\n"
    return holder.pid, ["nsenter", "-t", str(holder.pid), *kinds.split()]


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    """Three hosts at one switch; nothing of finegrain runs yet."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fg-hosts-")))
        bridge = "ip link add switch type bridge; ip link set switch up; echo up"
        _, at_switch = namespace(stack, "-n", bridge)
        made = []
        for number in (1, 2, 3):
            name, address = unique(f"host{number}"), f"{NETWORK}.{number}"
            pid, inside = namespace(stack, "-n -u", f"hostname {name}; echo up")
            for line in (
                f"ip link add line{number} type veth peer name inner netns {pid}",
                f"ip link set line{number} master switch up",
            ):
                subprocess.run([*at_switch, *line.split()], check=True)
            for line in (f"ip addr add {address}/24 dev inner", "ip link set inner up"):
                subprocess.run([*inside, *line.split()], check=True)
            (folder / name).mkdir()
            made.append(Host(name, address, folder / name, inside))
        try:
            yield made
        finally:
            codes = [code for host in reversed(made) for code in host.stop()]
        assert not any(codes), codes


def test_one_token_and_one_join_per_host_and_nothing_else(hosts: list[Host]) -> None:
    first, *others = hosts
    page = PAGE.read_text()
    assert "In `/etc/finegrain/finegrain.toml` of the resource manager's host, set" in page

    # "First host", step 3, with the address of "More hosts".
    first.configure(rm=f'listen = "{first.address}:7170"')
    first.start("rm", "serve")
    eventually((first.folder / "rm" / "login.sock").exists, "the manager serves")
    assert "operator/root" in first.shell("finegrain login --operator")

    # Step 4 on each other host, with a token that an operator has made and copied there.
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


def test_a_token_is_for_one_host(hosts: list[Host]) -> None:
    first, second, _ = hosts
    token = first.finegrain("token", "create", "--executor", first.name).text
    # The wrong host: its name is not the one of the token.
    stray = Host("stray", second.address, second.folder / "stray", second.inside)
    stray.folder.mkdir()
    stray.configure(executor=f'listen = "{second.address}:7190"')
    stray.join_token.parent.mkdir(mode=0o700)
    stray.join_token.touch(mode=0o600)
    stray.join_token.write_text(token)
    refused = stray.finegrain("executor", "serve")

    assert refused.code != 0
    assert first.name in refused.stderr

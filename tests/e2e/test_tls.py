"""A cluster beyond loopback, set up as an operator does it: real daemons, real command line.

They live in a network namespace of their own, with an address that others could reach.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from finegrain.credentials import read_credentials
from tests.e2e.driving import FINEGRAIN, Cli, Outcome, eventually, unique
from tests.support.identities import credentials_file
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow]

HOST = "198.51.100.7"  # of the block for documentation (RFC 5737): no host has it
SERVED = f"{HOST}:7170"
LISTENER = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as server:
    print("listens", flush=True)
    while True:
        connection, _ = server.accept()
        with connection, open(sys.argv[3], "ab") as file:
            connection.settimeout(1)
            try: file.write(connection.recv(65536))
            except OSError: pass
"""
"""A program that takes a port, and writes down what it receives first on each connection."""


@dataclass
class Network:
    """Processes in it see one loopback device with one more address."""

    folder: Path
    inside: Sequence[str]
    name: str = field(default_factory=lambda: unique("tls"))
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def cli(self) -> Cli:
        return Cli(self.folder, extra={"FINEGRAIN_CONFIG": str(self.empty_config())})

    @property
    def operator(self) -> Path:
        return self.folder / "rm" / "operator.credentials"

    @property
    def alice(self) -> Path:
        return self.folder / "alice.credentials"

    def empty_config(self) -> Path:
        path = self.folder / "empty.toml"
        path.touch()
        return path

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [*self.inside, *FINEGRAIN, *command],
                env=self.cli.environment(),
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        self.daemons[name] = process
        return process

    def start_manager(self) -> None:
        self.start(
            "rm",
            *("rm", "serve", "--state-dir", str(self.folder / "rm"), "--listen", SERVED),
            *("--metrics-listen", "none", "--lost-timeout", "60s"),
        )
        eventually(lambda: self.call("status", who=self.operator).code == 0, "the RM serves")

    def start_executor(self, name: str, token_file: Path) -> subprocess.Popen[bytes]:
        state = self.folder / name
        return self.start(
            name,
            *("executor", "serve", "--state-dir", str(state), "--run-dir", str(state / "run")),
            *("--join-token-file", str(token_file), "--listen", f"{HOST}:0"),
            *("--metrics-listen", "none", "--cpu", "1", "--memory", "256M"),
            *("--task-user", "self", "--allow-root-tasks", "--stop-tasks-on-exit"),
        )

    def stop(self, name: str) -> int:
        process = self.daemons.pop(name)
        process.terminate()
        return process.wait(PATIENCE_S)

    def call(self, *command: str, who: Path | None = None, stdin: str = "") -> Outcome:
        own = {"FINEGRAIN_CREDENTIALS": str(who)} if who else {}
        done = subprocess.run(
            [*self.inside, *FINEGRAIN, *command],
            env=self.cli.environment() | own,
            cwd=self.folder,
            input=stdin.encode(),
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr.decode())

    def token(self, *flags: str) -> str:
        made = self.call("token", "create", *flags, who=self.operator)
        assert made.code == 0, made.stderr
        return made.text

    def token_file(self, executor_id: str) -> Path:
        path = self.folder / f"{executor_id}.token"
        path.touch(mode=0o600)
        path.write_text(self.token("--executor", executor_id))
        return path

    def states(self) -> dict[str, str]:
        listed = self.call("executors", "list", "-o", "json", who=self.operator)
        return {each["executor_id"]: each["state"] for each in json.loads(listed.stdout)["items"]}

    def run(self, who: Path, *command: str) -> Outcome:
        small = ("--cpu", "0.1", "--memory", "32M", "--wait-timeout", f"{PATIENCE_S:.0f}s")
        return self.call("run", *small, "--", *command, who=who)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@contextmanager
def network(folder: Path) -> Iterator[Network]:
    script = f"ip link set lo up && ip addr add {HOST}/32 dev lo && echo up && exec cat"
    holding = ["unshare", "-n", "sh", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(holding, stdin=pipe, stdout=pipe) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"up\n"
        # The open file keeps the namespace, and names it, whatever becomes of any process in it.
        with open(f"/proc/{holder.pid}/ns/net", "rb") as namespace:
            here = f"/proc/{os.getpid()}/fd/{namespace.fileno()}"
            made = Network(folder, ("nsenter", f"--net={here}"))
            try:
                yield made
            finally:
                codes = {name: made.stop(name) for name in reversed(list(made.daemons))}
            assert not any(codes.values()), codes


@pytest.fixture(scope="module")
def joined() -> Iterator[Network]:
    """A resource manager, an executor that has joined with a token, and a user who has, too."""
    with tempfile.TemporaryDirectory(prefix="fg-tls-") as name, network(Path(name)) as made:
        made.start_manager()
        made.start_executor(made.name, made.token_file(made.name))
        eventually(lambda: made.states() == {made.name: "ACTIVE"}, "the executor joins")
        logged_in = made.call(
            "login",
            "--token",
            "-",
            "--credentials",
            str(made.alice),
            stdin=made.token("--user", "alice"),
        )
        assert logged_in.code == 0, logged_in.stderr
        yield made


def test_a_command_runs_across_both_connections(joined: Network) -> None:
    done = joined.run(joined.alice, "sh", "-c", "echo 42; exit 7")
    assert (done.stdout, done.code) == (b"42\n", 7), done.stderr


def test_a_user_is_told_which_role_a_command_needs(joined: Network) -> None:
    refused = joined.call("token", "list", who=joined.alice)
    assert refused.code == 8
    assert "user/alice may not call ListTokens; this call needs the role operator" in refused.stderr


def test_a_token_works_once(joined: Network) -> None:
    token = joined.token("--user", "bob")
    first, second = (
        joined.call("login", "--token", "-", "--credentials", name, stdin=token)
        for name in ("bob.1", "bob.2")
    )
    assert (first.code, second.code) == (0, 8)
    assert "[TOKEN_WRONG]" in second.stderr
    assert not (joined.folder / "bob.2").exists()


def test_a_member_of_another_cluster_is_told_so(joined: Network) -> None:
    stranger = credentials_file(joined.folder, "operator/root", SERVED)
    refused = joined.call("executors", "list", who=stranger)
    assert refused.code == 7
    assert "belongs to another cluster than your credentials" in refused.stderr
    assert "ssl" not in refused.stderr.lower()


def test_a_denied_user_is_locked_out_until_allowed_again(joined: Network) -> None:
    joined.call("identity", "deny", "user/alice", "--yes", who=joined.operator)
    refused = joined.run(joined.alice, "true")
    joined.call("identity", "allow", "user/alice", who=joined.operator)
    assert refused.code == 125
    assert "[CERTIFICATE_DENIED]" in refused.stderr
    assert joined.run(joined.alice, "true").code == 0


def test_a_program_at_the_managers_port_learns_nothing(joined: Network) -> None:
    """As a task could do while the resource manager is stopped."""
    heard = joined.folder / "heard"
    assert joined.stop("rm") == 0
    listening = [*joined.inside, FINEGRAIN[0], "-c", LISTENER, HOST, "7170", str(heard)]
    with subprocess.Popen(listening, stdout=subprocess.PIPE) as thief:
        assert thief.stdout is not None
        assert thief.stdout.readline() == b"listens\n"
        refused = joined.call("executors", "list", who=joined.alice)
        eventually(lambda: heard.stat().st_size > 0, "it is called")
        thief.kill()
    assert refused.code == 7
    assert HOST in refused.stderr
    data = heard.read_bytes()
    key = read_credentials(joined.alice).key.encode()
    for secret in (b"alice", b"CERTIFICATE", b"Bearer", key.splitlines()[1]):
        assert secret not in data
    assert data.startswith(b"\x16\x03")  # the first message of a TLS handshake, and only that
    joined.start_manager()
    eventually(lambda: joined.states() == {joined.name: "ACTIVE"}, "the executor is back")
    assert joined.run(joined.alice, "true").code == 0


def test_an_executor_needs_a_token_of_its_own_name(joined: Network) -> None:
    name = unique("other")
    state = joined.folder / name
    wrong = joined.token_file(unique("named"))
    process = joined.start(
        name,
        *("executor", "serve", "--executor-id", name, "--state-dir", str(state)),
        *("--run-dir", str(state / "run"), "--join-token-file", str(wrong)),
        *("--listen", f"{HOST}:0", "--metrics-listen", "none", "--isolation", "none"),
        *("--cpu", "1", "--memory", "64M", "--task-user", "self", "--allow-root-tasks"),
    )
    del joined.daemons[name]
    assert process.wait(PATIENCE_S) != 0
    assert "is for executor named" in joined.log(name)
    assert set(joined.states()) == {joined.name}

"""A cluster beyond loopback, set up as an administrator does it: real daemons, real command line.

The cluster runs in a separate network namespace, with an address that other hosts could reach.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from finegrain.credentials import read_credentials, write_credentials
from resource_manager.service.identities.own import open_own_files
from tests.e2e.driving import FINEGRAIN, eventually, unique
from tests.e2e.network import HOST, SERVED, Network, network
from tests.support.identities import credentials_file, signed_by
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow]

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
"""A program that binds a port, and stores the first bytes that it receives on each connection."""


@pytest.fixture(scope="module")
def joined() -> Iterator[Network]:
    """A resource manager, an executor that has joined with a token, and a user who has joined with
    a token.
    """
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
    # The executor learns of the change with the next answer to a report.
    eventually(lambda: joined.run(joined.alice, "true").code == 0, "alice is allowed again")


def test_a_program_at_the_managers_port_learns_nothing(joined: Network) -> None:
    """A task could do this while the resource manager is stopped."""
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


def test_a_denied_executor_cannot_report_until_it_is_allowed_again(joined: Network) -> None:
    who = f"executor/{joined.name}"
    denied = joined.call("identity", "deny", who, "--yes", who=joined.operator)
    assert denied.code == 0, denied.stderr
    # Look for the name, because the log can also show that the executor itself refused alice.
    refused = f"an administrator has denied {who};"
    eventually(lambda: refused in joined.log(joined.name), "its report is refused")
    before = joined.log(joined.name).count("manager_connected")
    assert joined.call("identity", "allow", who, who=joined.operator).code == 0
    eventually(
        lambda: joined.log(joined.name).count("manager_connected") > before, "it reports again"
    )
    assert joined.run(joined.alice, "true").code == 0


def test_an_executor_whose_certificate_has_expired_comes_back(joined: Network) -> None:
    """The state after a long time without power: the executor still has its key and its name, but
    its certificate has expired.
    """
    path = joined.folder / joined.name / "executor.credentials"
    present = read_credentials(path)
    assert joined.stop(joined.name) == 0
    signing = open_own_files(joined.folder / "rm").authority
    expired = signed_by(signing, f"executor/{joined.name}", *present.addresses, life_s=-60)
    write_credentials(path, expired)
    joined.start_executor(joined.name, joined.folder / "no.token")
    eventually(lambda: read_credentials(path).not_after > expired.not_after, "it is renewed")
    assert read_credentials(path).key == expired.key
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

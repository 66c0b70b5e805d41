"""With real daemons: the authority of a running cluster is replaced, also by an outside
authority.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from finegrain.credentials import Credentials, read_credentials
from tests.e2e.driving import Outcome, eventually, unique
from tests.e2e.network import Network, network
from tests.support.patience import PATIENCE_S

pytestmark = [pytest.mark.needs("root", "network-namespace"), pytest.mark.slow]

OUTSIDE = """
set -e
openssl ecparam -name prime256v1 -genkey -noout -out root.key
openssl req -x509 -new -key root.key -subj "/O=Example/CN=Example root" -days 30 -out root.pem
openssl ecparam -name prime256v1 -genkey -noout -out ours.key
openssl req -new -key ours.key -subj "/O=Example/CN=finegrain cluster shop" -out ours.csr
printf 'basicConstraints=critical,CA:TRUE,pathlen:0\\nkeyUsage=critical,keyCertSign' > ours.ext
openssl x509 -req -in ours.csr -CA root.pem -CAkey root.key -CAcreateserial -days 20 \
    -extfile ours.ext -out ours.pem
"""
"""Makes one certificate below the root, as the administrator of an outside authority does."""


@pytest.fixture
def net() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="fg-ca-") as name, network(Path(name)) as made:
        yield made


def begin(net: Network) -> None:
    net.start_manager()
    net.start_executor(net.name, net.token_file(net.name))
    eventually(lambda: net.states() == {net.name: "ACTIVE"}, "the executor joins")


def certs(net: Network, *command: str) -> Outcome:
    return net.call("certs", "ca", *command, "--state-dir", str(net.folder / "rm"))


def log_in(net: Network, name: str) -> Path:
    """A user joins with a token."""
    path = net.folder / f"{name}.credentials"
    arguments = ("login", "--token", "-", "--credentials", str(path), "--yes")
    done = net.call(*arguments, stdin=net.token("--user", name))
    assert done.code == 0, done.stderr
    return path


def executors_own(net: Network) -> Credentials:
    return read_credentials(net.folder / net.name / "executor.credentials")


@contextmanager
def task_that_goes_on(net: Network, who: Path) -> Iterator[None]:
    """A task that runs all the time, while its user watches it."""
    begun, end = net.folder / unique("begun"), net.folder / unique("end")
    script = f"touch {begun}; while [ ! -e {end} ]; do sleep 0.1; done; echo went on"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(net.run, who, "sh", "-c", script)
        eventually(begun.exists, "the task begins")
        yield
        end.touch()
        done = running.result(PATIENCE_S)
    assert (done.stdout, done.code) == (b"went on\n", 0), done.stderr


def test_an_authority_is_replaced_while_a_task_runs(net: Network) -> None:
    begin(net)
    alice, bob, carol = (log_in(net, name) for name in ("alice", "bob", "carol"))
    first = executors_own(net)
    # Both authorities are trusted, and the first authority signs. An executor receives the second
    # authority without an action of its administrator.
    with task_that_goes_on(net, alice):
        assert certs(net, "add").code == 0
    eventually(lambda: executors_own(net).authorities.count("BEGIN") == 2, "it trusts both")
    for who in (alice, bob, carol):
        assert net.run(who, "true").code == 0
    log_in(net, "alice")
    log_in(net, "carol")

    # The second one signs. Users who trust both authorities continue with their old certificates.
    with task_that_goes_on(net, alice):
        assert certs(net, "use", "--yes").code == 0
    eventually(lambda: executors_own(net).authorities != first.authorities, "it is renewed")
    new = read_credentials(net.folder / "rm/certificates/rm.credentials").authorities
    eventually(lambda: executors_own(net).authorities == new, "it has a certificate of the second")
    assert net.run(alice, "true").code == 0
    assert net.run(carol, "true").code == 0
    too_late = net.run(bob, "true")
    assert too_late.code != 0
    assert "another cluster than your credentials" in too_late.stderr
    log_in(net, "alice")

    # Only the second authority is trusted.
    with task_that_goes_on(net, alice):
        assert certs(net, "drop", "--yes").code == 0
    eventually(lambda: executors_own(net).authorities.count("BEGIN") == 1, "it trusts one")
    assert net.run(carol, "true").code != 0


def test_an_outside_authority_signs(net: Network) -> None:
    subprocess.run(["sh", "-c", OUTSIDE], cwd=net.folder, check=True, capture_output=True)
    wrong = certs(net, "add", "--certificate", "root.pem", "--key", "root.key")
    assert "the common name 'finegrain cluster NAME'" in wrong.stderr
    added = certs(net, "add", "--certificate", "ours.pem", "--key", "ours.key")
    assert added.code == 0, added.stderr
    begin(net)
    alice = log_in(net, "alice")
    assert read_credentials(alice).who.cluster == "shop"
    assert net.run(alice, "true").code == 0
    shown = certs(net, "show", "-o", "json")
    assert b"CN=Example root" in shown.stdout

"""`login`, `whoami`, `token` and `identity` against a manager's services in this process."""

from __future__ import annotations

import base64
import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from finegrain.certificates.authority import certificate_pem
from finegrain.certificates.keys import key_of_request
from finegrain.credentials import read_credentials, write_credentials, write_private_file
from finegrain.directories import default_credentials_file
from finegrain.errors import NotFound, Reason
from finegrain.v1.identity_pb2 import IssuedCertificate
from finegrain_client.types.identities import Denial, NewToken, TokenStatus
from tests.support.cli import Finegrain
from tests.support.identities import authority, credentials, credentials_file, identity


class FakeIdentities:
    """The calls of a client that these commands make."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __enter__(self) -> FakeIdentities:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def create_token(self, role: str, name: str, *, ttl_s: int) -> NewToken:
        self.calls.append((str(role), name, ttl_s))
        return NewToken("fgjoin-abc", "0123456789abcdef", None)

    def tokens(self) -> list[TokenStatus]:
        return [TokenStatus("0123456789abcdef", "user/alice", None, "operator/root")]

    def revoke_token(self, token_id: str) -> None:
        raise NotFound(f"there is no token {token_id}", reason=Reason.ALLOCATION_UNKNOWN)

    def deny_identity(self, subject: str, *, reason: str) -> None:
        self.calls.append((subject, reason))

    def allow_identity(self, subject: str) -> None:
        self.calls.append((subject,))

    def denied_identities(self) -> list[Denial]:
        return [Denial("user/mallory", "key lost", None, "operator/root")]


@pytest.fixture
def identities(monkeypatch: pytest.MonkeyPatch) -> FakeIdentities:
    fake = FakeIdentities()
    monkeypatch.setattr("finegrain_cli.commands.identities.open_cluster", lambda: fake)
    return fake


def test_a_token_alone_is_on_standard_output(
    finegrain: Finegrain, identities: FakeIdentities
) -> None:
    made = finegrain("token", "create", "--executor", "web-1", "--ttl", "1h")

    assert (made.exit_code, made.stdout) == (0, "fgjoin-abc\n")
    assert "--join-token-file" in made.stderr
    assert identities.calls == [("executor", "web-1", 3_600)]


@pytest.mark.parametrize("flags", [(), ("--user", "a", "--viewer", "b")], ids=["none", "two"])
def test_a_token_is_for_one_member(
    finegrain: Finegrain, identities: FakeIdentities, flags: tuple[str, ...]
) -> None:
    refused = finegrain("token", "create", *flags)

    assert refused.exit_code == 2
    assert "a token is for one new member" in refused.stderr
    assert identities.calls == []


def test_lists_name_who_did_it(finegrain: Finegrain, identities: FakeIdentities) -> None:
    (token,) = json.loads(finegrain("token", "list", "-o", "json").stdout)["items"]
    (denial,) = json.loads(finegrain("identity", "list", "-o", "json").stdout)["items"]

    assert (token["identity"], token["made_by"]) == ("user/alice", "operator/root")
    assert (denial["subject"], denial["denied_by"]) == ("user/mallory", "operator/root")
    assert "0123456789abcdef" in finegrain("token", "list").stdout
    assert "key lost" in finegrain("identity", "list").stdout


def test_a_denial_is_confirmed(finegrain: Finegrain, identities: FakeIdentities) -> None:
    assert finegrain("identity", "deny", "user/mallory").exit_code == 2
    assert identities.calls == []

    denied = finegrain("identity", "deny", "user/mallory", "--reason", "key lost", "--yes")

    assert denied.exit_code == 0
    assert identities.calls == [("user/mallory", "key lost")]
    assert finegrain("identity", "allow", "user/mallory").exit_code == 0


def test_whoami_connects_nowhere(finegrain: Finegrain, tmp_path: Path) -> None:
    file = credentials_file(tmp_path, "user/alice", "127.0.0.1:1")

    shown = finegrain("whoami", "--credentials", str(file))
    data = json.loads(finegrain("whoami", "--credentials", str(file), "-o", "json").stdout)

    assert "user/alice" in shown.stdout
    assert (data["identity"], data["cluster"], data["role"]) == ("user/alice", "test", "user")
    assert data["addresses"] == ["127.0.0.1:1"]


def test_whoami_says_that_the_certificate_has_expired(finegrain: Finegrain, tmp_path: Path) -> None:
    file = tmp_path / "old"
    write_credentials(file, credentials("user/alice", "127.0.0.1:1", life_s=-60))

    assert "expired; run finegrain login" in finegrain("whoami", "--credentials", str(file)).stdout


@contextmanager
def login_socket(state_dir: Path, *, refuses: str = "") -> Iterator[list[dict[str, str]]]:
    """A manager's login socket that makes every caller alice; yields what it was asked."""
    state_dir.mkdir(parents=True)
    asked: list[dict[str, str]] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(state_dir / "login.sock"))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, connection.makefile("rwb") as lines:
                    asked.append(json.loads(lines.readline()))
                    answer = _refusal(refuses) if refuses else _issued(asked[-1])
                    lines.write(json.dumps(answer).encode() + b"\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def _refusal(message: str) -> dict[str, str]:
    return {"error": message, "reason": "ROLE_MISSING"}


def _issued(asked: dict[str, str]) -> dict[str, str]:
    from datetime import UTC, datetime, timedelta

    key = key_of_request(base64.b64decode(asked["certificate_request"]))
    who = identity(f"{asked['role']}/alice")
    signed = authority().sign(who, key, now=datetime.now(UTC), lifetime=timedelta(days=1))
    issued = IssuedCertificate(
        identity=who.uri,
        certificate=certificate_pem(signed).decode(),
        authorities=authority().certificate_pem.decode(),
        addresses=["127.0.0.1:7"],
    )
    issued.not_before.FromDatetime(signed.not_valid_before_utc)
    issued.not_after.FromDatetime(signed.not_valid_after_utc)
    return {"issued": base64.b64encode(issued.SerializeToString()).decode()}


@pytest.fixture
def rm_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FINEGRAIN_RM__STATE_DIR", str(tmp_path / "rm"))
    return tmp_path / "rm"


def test_login_at_the_managers_own_host(finegrain: Finegrain, rm_dir: Path) -> None:
    with login_socket(rm_dir) as asked:
        done = finegrain("login")

    assert (done.exit_code, [each["role"] for each in asked]) == (0, ["user"]), done.stderr
    stored = read_credentials(default_credentials_file())
    assert str(stored.who) == "user/alice"
    assert stored.addresses == ("127.0.0.1:7",)
    assert "user/alice" in done.stdout


def test_login_says_if_commands_use_another_identity(finegrain: Finegrain, rm_dir: Path) -> None:
    with login_socket(rm_dir):
        alone = finegrain("login")
        note = json.dumps({"address": "127.0.0.1:7", "pid": os.getpid()})
        write_private_file(rm_dir / "endpoint.json", note.encode())
        write_credentials(
            rm_dir / "operator.credentials", credentials("operator/root", "127.0.0.1:7")
        )
        beside = finegrain("login")

    assert "note" not in alone.stderr
    assert "note: commands use operator/root of the cluster that you run" in beside.stderr
    assert f"FINEGRAIN_CREDENTIALS={default_credentials_file()}" in beside.stderr


def test_an_operator_replaces_no_other_identity_silently(
    finegrain: Finegrain, rm_dir: Path, tmp_path: Path
) -> None:
    with login_socket(rm_dir):
        assert finegrain("login").exit_code == 0
        refused = finegrain("login", "--operator")
        beside = finegrain("login", "--operator", "--credentials", str(tmp_path / "op"))
        replaced = finegrain("login", "--operator", "--yes")

    assert refused.exit_code == 2
    assert "has the credentials of user/alice of cluster test" in refused.stderr
    assert (beside.exit_code, replaced.exit_code) == (0, 0)
    assert str(read_credentials(default_credentials_file()).who) == "operator/alice"


def test_a_refusal_of_the_manager_is_shown(finegrain: Finegrain, rm_dir: Path) -> None:
    with login_socket(rm_dir, refuses="alice is not in the group finegrain-admin"):
        refused = finegrain("login", "--operator")

    assert refused.exit_code == 8
    assert "alice is not in the group finegrain-admin" in refused.stderr


@pytest.mark.usefixtures("rm_dir")
def test_without_manager_token_and_credentials_there_is_no_login(finegrain: Finegrain) -> None:
    refused = finegrain("login")

    assert refused.exit_code == 8
    assert "finegrain token create" in refused.stderr


def test_a_token_that_is_none_is_not_repeated(finegrain: Finegrain) -> None:
    refused = finegrain("login", "--token", "fgjoin-garbled-secret")

    assert refused.exit_code == 2
    assert "garbled" not in refused.stderr


def test_an_empty_token_is_not_taken_for_none(finegrain: Finegrain, rm_dir: Path) -> None:
    with login_socket(rm_dir) as asked:
        refused = finegrain("login", "--token", "")

    assert refused.exit_code == 2
    assert "'--token': it is empty; give a value, or leave the option out" in refused.stderr
    assert asked == []


def test_a_token_is_not_used_up_for_a_file_that_may_not_be_replaced(finegrain: Finegrain) -> None:
    path = default_credentials_file()
    path.parent.mkdir(parents=True)
    write_credentials(path, credentials("user/bob", "127.0.0.1:1"))

    refused = finegrain("login", "--token", "fgjoin-whatever")

    assert refused.exit_code == 2
    assert "has the credentials of user/bob" in refused.stderr

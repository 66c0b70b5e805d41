"""Which resource manager a command means, and which identity it shows.

tests/finegrain/test_targets.py has the rules. This module tests the sources in flags and the
configuration.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from finegrain.credentials import Credentials, write_credentials
from finegrain.errors import Unauthenticated
from finegrain_cli.connection import open_cluster, resolve_target
from finegrain_cli.context import Invocation
from tests.support.answering import answering
from tests.support.cli import Finegrain
from tests.support.identities import credentials, credentials_file
from tests.support.rm_service import running_rm


def test_without_credentials_a_command_says_how_to_get_some(finegrain: Finegrain) -> None:
    with pytest.raises(Unauthenticated, match="there are no credentials"):
        resolve_target(Invocation())

    result = finegrain("status")

    assert result.exit_code == 8
    assert "finegrain login" in result.stderr


def test_flags_are_stronger_than_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice = credentials_file(tmp_path, "user/alice", "rm-1:7170")
    bob = credentials_file(tmp_path, "user/bob", "rm-2:7170")
    monkeypatch.setenv("FINEGRAIN_CLIENT__MANAGER", "a:1,b:2")
    monkeypatch.setenv("FINEGRAIN_CLIENT__CREDENTIALS", str(alice))

    configured = resolve_target(Invocation())
    flagged = resolve_target(Invocation(manager="c:3", credentials=str(bob)))

    assert configured.addresses == ("a:1", "b:2")
    assert configured.file == alice
    assert flagged.addresses == ("c:3",)
    assert flagged.file == bob


def test_the_credentials_name_the_address(tmp_path: Path) -> None:
    alice = credentials_file(tmp_path, "user/alice", "rm-1:7170", "rm-2:7170")

    assert resolve_target(Invocation(credentials=str(alice))).addresses == (
        "rm-1:7170",
        "rm-2:7170",
    )


@pytest.mark.parametrize(
    ("shown", "sentence"),
    [
        (credentials("executor/web-1"), "another member of the cluster answers at {address}"),
        (credentials("rm", cluster="other"), "{address} belongs to another cluster than your"),
        (credentials("rm", life_s=-60), "the certificate of the server at {address} has expired"),
        (None, "the server at {address} does not use TLS"),
    ],
    ids=["executor", "other authority", "expired", "plain port"],
)
async def test_a_wrong_server_has_its_sentence(
    finegrain: Finegrain,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: Credentials | None,
    sentence: str,
) -> None:
    monkeypatch.setattr(open_cluster, "__defaults__", (1.0,))
    async with answering(shown) as address:
        file = str(credentials_file(tmp_path, "user/alice", address))
        result = await asyncio.to_thread(finegrain, "slots", "--credentials", file)

    assert result.exit_code == 7
    assert sentence.format(address=address) in result.stderr
    assert not any(word in result.stderr for word in ("SSL", "Socket", "handshake", "Deadline"))


async def test_a_wrong_identity_has_its_sentence(
    finegrain: Finegrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_cluster, "__defaults__", (1.0,))
    async with running_rm(tmp_path / "rm") as rm:
        for shown, exit_code, sentence in (
            (credentials("operator/o", life_s=-60), 8, "certificate of operator/o expired at"),
            (credentials("operator/o"), 7, "belongs to another cluster than your credentials"),
            (rm.own("viewer/v").credentials, 8, "viewer/v may not call UndrainExecutor"),
        ):
            file = tmp_path / "credentials"
            write_credentials(file, shown)
            identity = ("--manager", rm.address, "--credentials", str(file))
            result = await asyncio.to_thread(finegrain, "undrain", "host-a", *identity)

            assert sentence in result.stderr
            assert result.exit_code == exit_code

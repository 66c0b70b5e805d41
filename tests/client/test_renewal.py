"""Renewal of the client's certificate in the background."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import finegrain_client as fg
from finegrain.credentials import Credentials, read_credentials, write_credentials
from finegrain.identity import Identity
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1 import identity_pb2
from finegrain_client.renewal import Renewal
from tests.client.scripted import Scripted, eventually
from tests.support.identities import credentials

AGED = credentials("user/alice", life_s=3_600, starts_s=-3_000)
"""A certificate after half of its life."""


def signed_again(old: Credentials, **changes: Any) -> identity_pb2.IssuedCertificate:
    """Returns what a resource manager answers."""
    fresh = credentials("user/alice", life_s=7_200)
    issued = identity_pb2.IssuedCertificate(
        identity=fresh.identity,
        certificate=fresh.certificate,
        authorities=fresh.authorities,
        addresses=["127.0.0.1:7"],
    )
    issued.not_before.FromSeconds(fresh.not_before)
    issued.not_after.FromSeconds(fresh.not_after)
    assert fresh.not_after > old.not_after
    for name, value in changes.items():
        setattr(issued, name, value)
    return issued


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "credentials"
    write_credentials(path, AGED)
    return path


def renewal(own: OwnCertificate, file: Path | None, *answers: Any) -> Renewal:
    """Returns a renewal whose resource manager gives these answers."""
    left = list(answers)

    async def ask() -> identity_pb2.IssuedCertificate:
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    return Renewal(own, file, ask)


async def test_after_half_of_its_life_it_is_renewed_and_stored(file: Path) -> None:
    own = OwnCertificate(AGED)
    task = renewal(own, file, signed_again(AGED))
    task.start()
    await eventually(lambda: read_credentials(file).not_after > AGED.not_after)
    await task.stop()
    stored = read_credentials(file)
    assert own.version == 1
    assert own.credentials == stored
    assert stored.key == AGED.key
    assert stored.addresses == ("127.0.0.1:7",)
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_young_certificate_is_left_alone() -> None:
    own = OwnCertificate(credentials("user/alice"))
    task = renewal(own, None)
    assert task.due_s > time.time()


async def test_what_another_program_has_renewed_is_used(file: Path) -> None:
    own = OwnCertificate(AGED)
    newer = credentials("user/alice", life_s=7_200)
    write_credentials(file, newer)
    await renewal(own, file).renew()
    assert own.credentials == newer


async def test_an_expired_certificate_is_replaced_from_the_file(file: Path) -> None:
    own = OwnCertificate(credentials("user/alice", life_s=-60))
    newer = credentials("user/alice")
    write_credentials(file, newer)
    renewal(own, file).check_valid()
    assert own.credentials == newer


async def test_a_file_with_a_new_key_is_not_overwritten(file: Path) -> None:
    # The user has logged in again while the client was running.
    other = replace(AGED, key="another key")
    write_credentials(file, other)
    own = OwnCertificate(AGED)
    await renewal(own, file, signed_again(AGED)).renew()
    assert own.version == 1
    assert read_credentials(file) == other


@pytest.mark.needs("root")  # gives a file to another user
async def test_a_file_of_another_user_stays_as_it_is(file: Path) -> None:
    os.chown(file, 12_345, 12_345)
    own = OwnCertificate(AGED)
    await renewal(own, file, signed_again(AGED)).renew()
    assert own.version == 1
    assert read_credentials(file) == AGED


async def test_a_certificate_of_another_identity_is_refused(file: Path) -> None:
    own = OwnCertificate(AGED)
    wrong = signed_again(AGED, identity=Identity.from_text("test", "operator/alice").uri)
    with pytest.raises(fg.Unauthenticated, match="operator/alice"):
        await renewal(own, file, wrong).renew()
    assert own.version == 0


async def test_a_failure_is_logged_and_the_client_goes_on(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = OwnCertificate(AGED)
    task = renewal(own, file, fg.Unavailable("nobody there"))
    task.start()
    await eventually(lambda: "the certificate was not renewed: nobody there" in caplog.text)
    await task.stop()
    assert own.version == 0


async def test_new_channels_show_the_new_certificate(servant: Scripted) -> None:
    async with fg.connect(servant.address) as cluster, cluster.job("renewed") as job:
        connection = job._context.connection
        (request,) = await job.request_slots(fg.SlotSpec())
        slot = await request.granted(timeout_s=10)
        before = slot.stub
        connection.own.replace(credentials("user/alice", life_s=7_200))
        assert slot.stub is not before
        await cluster.executors()
        assert len(connection._manager_channels) == 2
        await slot.release()
        await eventually(lambda: [each.certificate for each in connection._links.values()] == [1])

"""A certificate is renewed while the executor runs; slots and tasks go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from finegrain.credentials import read_credentials, write_private_file
from finegrain.errors import Reason, Unauthenticated
from finegrain.rpc.own_certificate import OwnCertificate
from task_executor.membership import CREDENTIALS_FILE, JOIN_FILE
from task_executor.service import renewal
from task_executor.service.manager_link import ManagerLink
from task_executor.service.renewal import Renewal, renewal_time
from tests.support.identities import credentials
from tests.support.join_server import JoinServer
from tests.task_executor.service.conftest import Executor
from tests.task_executor.service.scripted_rm import ScriptedRM, allocation, eventually

DAY_S = 24 * 3600
HOST = "executor/host-a"


def due_in_s(life_s: float) -> float:
    return renewal_time(credentials(HOST, life_s=life_s)) - time.time()


def test_a_certificate_is_renewed_after_a_day_or_half_of_its_life() -> None:
    assert due_in_s(7 * DAY_S) == pytest.approx(DAY_S, abs=60)
    assert due_in_s(1_000) == pytest.approx(500, abs=60)
    assert due_in_s(-3_600) < 0


async def test_calls_go_on_with_the_new_certificate(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = executor.front.own
    before = own.credentials
    executor.front._renewal._now = lambda: time.time() + 0.6 * 3_600  # of one hour
    await executor.front._renewal.renew()
    assert rm.renewals == [HOST]
    assert own.credentials.certificate != before.certificate
    assert own.credentials.key == before.key
    saved = read_credentials(executor.folder / "state" / CREDENTIALS_FILE)
    assert saved == own.credentials
    reported = len(rm.reports)
    await eventually(lambda: len(rm.reports) > reported + 2, "it reports")
    await rm.allocate(allocation())  # the server shows the new certificate, too
    await executor.job_master.submit("true")


async def test_renewal_begins_by_itself(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await executor.stop()
    monkeypatch.setattr(renewal, "RENEW_EVERY_S", -1.0)
    monkeypatch.setattr(renewal, "CHECK_S", 0.05)
    await executor.start()
    await eventually(lambda: len(rm.renewals) > 1, "it renews")


async def test_it_renews_at_once_when_the_manager_trusts_other_authorities(
    rm: ScriptedRM, executor: Executor
) -> None:
    await executor.stop()
    rm.authorities_sha256 = credentials(HOST).authorities_sha256
    await executor.start()
    assert rm.renewals == []
    await executor.stop()
    rm.authorities_sha256 = "0" * 64
    await executor.start()
    await eventually(lambda: rm.renewals, "it renews")


@pytest.fixture
async def expired(tmp_path: Path) -> AsyncIterator[tuple[Renewal, OwnCertificate, JoinServer]]:
    """Yields the renewal of a certificate that expired yesterday."""
    own = OwnCertificate(credentials(HOST, life_s=60, starts_s=-DAY_S))
    link = ManagerLink(["127.0.0.1:1"], own)
    async with JoinServer().listening() as server:
        record = f'{{"addresses": ["{server.address}"], "token": "x"}}'
        write_private_file(tmp_path / JOIN_FILE, record.encode())
        yield Renewal(own, link, tmp_path), own, server
    await link.close()


async def test_an_expired_certificate_is_renewed_at_the_join_port(
    expired: tuple[Renewal, OwnCertificate, JoinServer], tmp_path: Path
) -> None:
    renewing, own, server = expired
    with pytest.raises(Unauthenticated, match="expired"):
        own.check_valid()
    await renewing.renew()
    own.check_valid()
    assert server.calls == ["RenewExpired", "RenewExpired"]
    assert read_credentials(tmp_path / CREDENTIALS_FILE) == own.credentials


async def test_a_refused_renewal_is_tried_again(
    expired: tuple[Renewal, OwnCertificate, JoinServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing, own, server = expired
    monkeypatch.setattr(renewal, "RETRY_EXPIRED_S", 0.01)
    server.refuse = Unauthenticated("denied", reason=Reason.CERTIFICATE_DENIED)
    running = asyncio.create_task(renewing.run())
    await eventually(lambda: len(server.calls) > 2, "it tries again")
    server.refuse = None
    await eventually(lambda: own.version, "it succeeds")
    running.cancel()


async def test_an_executor_that_was_off_for_too_long_comes_back(
    rm: ScriptedRM, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts with an expired certificate, keeps its tasks, renews the certificate and
    registers.
    """
    await rm.allocate(allocation())
    await executor.job_master.submit("sleep", "1000")
    await executor.crash()
    async with JoinServer().listening() as server:
        record = f'{{"addresses": ["{server.address}"], "token": "x"}}'
        write_private_file(executor.folder / "state" / JOIN_FILE, record.encode())
        registrations = len(rm.registrations)
        executor.credentials = credentials(HOST, life_s=60, starts_s=-DAY_S)
        await executor.start()
        await eventually(lambda: len(rm.registrations) > registrations, "it registers")
    assert [task.task_id for task in await executor.job_master.tasks()] == ["task"]

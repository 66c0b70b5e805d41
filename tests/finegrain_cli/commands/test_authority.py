"""`finegrain certs ca` beside a resource manager, which uses each change without a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from finegrain.certificates.joining import credentials_of
from finegrain.credentials import Credentials, read_credentials
from finegrain.errors import ConfigurationError, FinegrainError, Reason
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.v1 import cluster_pb2
from finegrain.v1 import identity_pb2 as pb
from finegrain.v1.cluster_pb2_grpc import ClusterServiceStub
from finegrain.v1.identity_pb2_grpc import IdentityServiceStub
from resource_manager.service.identities import host_changes
from resource_manager.service.identities.own import open_own_files, write_authority
from tests.support.cli import Finegrain
from tests.support.patience import PATIENCE_S
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    channel_as,
    refusal,
    running_rm,
)

GET_CLUSTER = cluster_pb2.GetClusterRequest()


@pytest.fixture
async def rm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunningRm]:
    monkeypatch.setattr(host_changes, "FOLLOW_INTERVAL_S", 0.1)
    async with running_rm(tmp_path / "rm", join_listen="127.0.0.1:0") as running:
        yield running


class Steps:
    """Runs `finegrain certs ca` on the host of a resource manager."""

    def __init__(self, finegrain: Finegrain, rm: RunningRm) -> None:
        self._finegrain, self._rm = finegrain, rm

    async def __call__(self, *command: str) -> None:
        where = ("--state-dir", str(self._rm.state_dir))
        done = await asyncio.to_thread(self._finegrain, "certs", "ca", *command, *where)
        assert done.exit_code == 0, done.stderr
        assert "the resource manager uses it" in done.stdout


async def renewed(channel: Any, own: Credentials) -> Credentials:
    stub: Any = IdentityServiceStub(channel)
    answer = await stub.RenewCertificate(pb.RenewCertificateRequest())
    return credentials_of(answer.issued, own.key)


async def answered(rm: RunningRm, own: Credentials) -> FinegrainError | None:
    """Makes one call on a new connection."""
    async with channel_as(OwnCertificate(own), rm.address) as channel:
        stub: Any = ClusterServiceStub(channel)
        try:
            await stub.GetCluster(GET_CLUSTER)
        except Exception:
            return await refusal(stub.GetCluster(GET_CLUSTER))
    return None


async def test_a_running_resource_manager_uses_each_step(
    finegrain: Finegrain, rm: RunningRm
) -> None:
    step, ann = Steps(finegrain, rm), "operator/ann"
    first = rm.own(ann).credentials
    await rm.cluster_as(ann).GetCluster(GET_CLUSTER)  # opens the connection
    bob = rm.cluster_as("operator/bob")
    await bob.GetCluster(GET_CLUSTER)
    async with ScriptedExecutor(rm) as executor:
        before = (await executor.send_report()).authorities_sha256
        assert before == first.authorities_sha256
        await step("add")
        both = await renewed(rm.channel(ann), first)
        told = (await executor.send_report()).authorities_sha256
        assert (told, both.authorities.count("BEGIN")) == (both.authorities_sha256, 2)
        # The answer makes an executor renew its certificate; see test_renewal.py.
        rm.own("executor/host-a").replace(both)

    await step("use", "--yes")
    assert await answered(rm, both) is None
    assert await answered(rm, first) is not None  # it does not trust the new authority
    second = await renewed(rm.channel(ann), both)
    await bob.GetCluster(GET_CLUSTER)  # the connection from before is still open

    await step("drop", "--yes")
    assert await answered(rm, second) is None
    assert await answered(rm, both) is not None
    dropped = await refusal(bob.GetCluster(GET_CLUSTER))
    assert dropped.reason is Reason.CERTIFICATE_WRONG
    assert "no longer trusts the authority" in dropped.message
    operator = read_credentials(rm.state_dir / "operator.credentials")
    assert await answered(rm, operator) is None


async def test_a_stream_of_a_dropped_authority_ends(finegrain: Finegrain, rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    watching = asyncio.create_task(refusal(read_all(job.watch())))
    step = Steps(finegrain, rm)
    for command in (("add",), ("use", "--yes"), ("drop", "--yes")):
        assert not watching.done()
        await step(*command)
    assert (await watching).reason is Reason.CERTIFICATE_WRONG


async def read_all(stream: Any) -> None:
    async for _ in stream:
        pass


async def test_each_command_is_in_the_audit_log(
    finegrain: Finegrain, rm: RunningRm, tmp_path: Path
) -> None:
    step = Steps(finegrain, rm)
    await step("add")
    await step("drop", "--yes")
    secret = tmp_path / "passphrase"
    secret.touch(mode=0o600)
    secret.write_text("correct horse battery\n")
    file = tmp_path / "ca.p12"
    options = ("--passphrase-file", str(secret), "--state-dir", str(rm.state_dir))
    saved = await asyncio.to_thread(finegrain, "certs", "backup", str(file), *options)
    assert saved.exit_code == 0, saved.stderr

    # The administrator of this host has a certificate of the authority that is used now.
    operator = OwnCertificate(read_credentials(rm.state_dir / "operator.credentials"))
    async with channel_as(operator, rm.address) as channel:
        stub: Any = IdentityServiceStub(channel)
        found: list[pb.AuditEntry] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < 3:
                await asyncio.sleep(0.05)
                found = list((await stub.ListAudit(pb.ListAuditRequest())).entries)
    assert [each.method for each in found] == ["certs ca add", "certs ca drop", "certs backup"]
    assert {each.actor.partition("/")[0] for each in found} == {"local"}
    assert found[-1].object == str(file)
    assert list((rm.state_dir / "certificates").glob("audit-*")) == []


def test_files_of_another_cluster_are_not_used(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    for folder in (here, other):
        folder.mkdir()
    used, foreign = open_own_files(here), open_own_files(other).authority
    present = used.authority
    write_authority(here, foreign)
    for _ in range(2):  # the problem stays until a person has mended it
        with pytest.raises(ConfigurationError, match=f"is now of cluster {foreign.cluster}"):
            used.read_again()
    assert used.authority is present
    write_authority(here, present)
    used.read_again()
    assert used.authority.trusted_pem == present.trusted_pem

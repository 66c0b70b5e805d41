"""Tests every method of the resource manager with every kind of caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from finegrain.errors import Reason
from finegrain.identity import Identity, Role
from finegrain.rpc.access import (
    CLUSTER_ACCESS,
    IDENTITY_ACCESS,
    RESOURCE_MANAGER_ACCESS,
    AccessTable,
)
from finegrain.rpc.channels import CHANNEL_OPTIONS
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import cluster_pb2, cluster_pb2_grpc, identity_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.every_method import Method, methods_of, status_of_call
from tests.support.identities import credentials, signed_by
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    eventually,
    refusal,
    running_rm,
    slot_request,
)


def _of_main_port(module: Any, table: AccessTable) -> Iterator[Method]:
    """Yields the methods of identity.proto that the main port serves: not those for joining."""
    joining = dict.fromkeys(
        f"/finegrain.v1.JoinService/{name}" for name in ("Join", "RenewExpired")
    )
    every = {**table, **dict.fromkeys(joining, frozenset[Role]())}
    return (each for each in methods_of(module, every) if each.path not in joining)


METHODS = [
    *methods_of(rm_pb2, RESOURCE_MANAGER_ACCESS),
    *methods_of(cluster_pb2, CLUSTER_ACCESS),
    *_of_main_port(identity_pb2, IDENTITY_ACCESS),
]
OF_JOBS = {
    "KeepAlive": rm_pb2.KeepAliveRequest(job_id="job"),
    "EndJob": rm_pb2.EndJobRequest(job_id="job"),
    "RequestResource": rm_pb2.RequestResourceRequest(job_id="job", requests=[slot_request("a")]),
    "CancelRequests": rm_pb2.CancelRequestsRequest(job_id="job", allocation_ids=["a"]),
    "ReleaseSlots": rm_pb2.ReleaseSlotsRequest(
        job_id="job", slots=[rm_pb2.SlotRelease(allocation_id="a", generation=1)]
    ),
    "ReuseSlots": rm_pb2.ReuseSlotsRequest(
        job_id="job",
        slots=[rm_pb2.SlotReuse(allocation_id="a", generation=1, for_allocation_id="b")],
    ),
    "ResizeSlot": rm_pb2.ResourceManagerServiceResizeSlotRequest(
        job_id="job", allocation_id="a", profile=slot_request("a").profile
    ),
    "WatchJob": rm_pb2.WatchJobRequest(job_id="job"),
    "GetAllocationToken": rm_pb2.GetAllocationTokenRequest(job_id="job", executor_id="host-a"),
}
EVERYBODY = ("rm", "executor/host-a", "operator/root", "viewer/vera", "user/alice", "metrics")
DENIED = grpc.StatusCode.PERMISSION_DENIED
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


def name_of(method: Method) -> str:
    return method.path.rpartition("/")[2]


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path) as running:
        yield running


def plain(rm: RunningRm, credentials_: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Returns a channel of a client that does not use this project's code."""
    options = [*CHANNEL_OPTIONS, ("grpc.enable_retries", 0)]
    if credentials_ is None:
        return grpc.aio.insecure_channel(rm.address, options)
    server = Identity(rm.authority.cluster, Role.RM)
    options.append(("grpc.ssl_target_name_override", server.dns_name))
    return grpc.aio.secure_channel(rm.address, credentials_, options)


async def test_every_method_takes_exactly_the_roles_of_its_table(rm: RunningRm) -> None:
    for who in EVERYBODY:
        role = Role(who.partition("/")[0])
        for method in METHODS:
            code, text = await status_of_call(rm.channel(who), method)
            refused = code is DENIED and f"{who} may not call {name_of(method)}" in text
            assert refused is (role not in method.roles), (who, method.path, code, text)


async def test_without_a_certificate_of_this_cluster_nothing_is_answered(rm: RunningRm) -> None:
    ours = rm.authority.certificate_pem
    foreign = credentials("operator/root")
    expired = signed_by(rm.authority, "operator/root", life_s=-1)
    later = signed_by(rm.authority, "operator/root", starts_s=3 * 3_600)
    shown = {
        "no TLS": None,
        "no certificate": grpc.ssl_channel_credentials(ours),
        **{
            name: grpc.ssl_channel_credentials(ours, each.key.encode(), each.certificate.encode())
            for name, each in {"foreign": foreign, "expired": expired, "later": later}.items()
        },
    }

    async def codes(shown: grpc.ChannelCredentials | None) -> list[grpc.StatusCode]:
        async with plain(rm, shown) as channel:
            calls = (status_of_call(channel, method) for method in METHODS[:3])
            return [code for code, _ in await asyncio.gather(*calls)]

    # A client tries several times to connect, so the calls run at the same time.
    found = await asyncio.gather(*map(codes, shown.values()))
    assert dict(zip(shown, found, strict=True)) == {name: [UNAVAILABLE] * 3 for name in shown}


async def test_a_certificate_that_expires_on_an_open_connection_is_refused(rm: RunningRm) -> None:
    short = signed_by(rm.authority, "viewer/vera", life_s=3)
    shown = grpc.ssl_channel_credentials(
        rm.authority.certificate_pem, short.key.encode(), short.certificate.encode()
    )
    async with plain(rm, shown) as channel:
        stub: Any = cluster_pb2_grpc.ClusterServiceStub(channel)
        await stub.GetCluster(cluster_pb2.GetClusterRequest())

        async def is_refused() -> bool:
            try:
                await stub.GetCluster(cluster_pb2.GetClusterRequest())
            except grpc.RpcError as error:
                refused = error_from_rpc(error)
                assert refused.reason is Reason.CERTIFICATE_EXPIRED
                assert "the clock of this server says" in refused.message
                return True
            return False

        await eventually(is_refused)


@pytest.mark.parametrize("method", [m for m in METHODS if name_of(m) in OF_JOBS], ids=name_of)
async def test_a_job_is_for_its_owner_only(rm: RunningRm, method: Method) -> None:
    await rm.rm.RegisterJob(rm_pb2.RegisterJobRequest(job_id="job", request_id="r" * 16, name="a"))
    data = OF_JOBS[name_of(method)].SerializeToString()
    for who in ("user/bob", "operator/alice", "operator/root"):
        code, text = await status_of_call(rm.channel(who), method, data)
        if "ClusterService" in method.path:  # an administrator may do it to any job
            continue
        assert code is DENIED, who
        assert "belongs to user/alice" in text


async def test_an_executor_speaks_only_for_itself(rm: RunningRm) -> None:
    async with ScriptedExecutor(rm) as executor:
        stranger = rm.rm_as("executor/host-b")
        for call in (
            stranger.RegisterExecutor(executor.registration()),
            stranger.ReportSlots(
                rm_pb2.ReportSlotsRequest(
                    executor_id="host-a",
                    instance_id=executor.instance_id,
                    registration_number=executor.registration_number,
                    report=executor.report(),
                )
            ),
        ):
            error = await refusal(call)
            assert error.reason is Reason.NOT_OWNER
            assert "executor/host-b may not speak for executor host-a" in error.message
        await executor.send_report()


def test_no_method_of_a_job_is_forgotten_here() -> None:
    for_everybody = {"RegisterJob", "Explain"}
    users = {name_of(m) for m in METHODS if Role.USER in m.roles and "ResourceManager" in m.path}
    assert users - for_everybody == set(OF_JOBS)

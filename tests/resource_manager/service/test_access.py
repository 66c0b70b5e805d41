"""Tests every method of the resource manager with every kind of caller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from finegrain.rpc.access import CLUSTER_ACCESS, RESOURCE_MANAGER_ACCESS, Access
from finegrain.rpc.channels import AUTHORIZATION, JOB_SECRET
from finegrain.v1 import cluster_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.every_method import Method, methods_of, status_of_call
from tests.support.rm_service import RunningRm, running_rm, slot_request

METHODS = [
    *methods_of(rm_pb2, RESOURCE_MANAGER_ACCESS),
    *methods_of(cluster_pb2, CLUSTER_ACCESS),
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
}
DENIED, UNAUTHENTICATED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED


def name_of(method: Method) -> str:
    return method.path.rpartition("/")[2]


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path) as running:
        yield running


@pytest.fixture
async def channel(rm: RunningRm) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(rm.address) as opened:
        yield opened


async def test_without_a_token_nothing_is_answered(
    rm: RunningRm, channel: grpc.aio.Channel
) -> None:
    shown = [
        [],
        [(AUTHORIZATION, "Bearer ")],
        [(AUTHORIZATION, "Bearer wrong-token-of-some-length")],
        [(AUTHORIZATION, rm.cluster_token)],
        [(AUTHORIZATION, f"Bearer {rm.user_token[:-1]}")],
        [(JOB_SECRET, rm.cluster_token)],
    ]
    for method in METHODS:
        for metadata in shown:
            code, _ = await status_of_call(channel, method, metadata, b"")
            assert code is UNAUTHENTICATED, (method.path, metadata)


async def test_the_user_token_is_not_enough_where_the_cluster_token_is_needed(
    rm: RunningRm, channel: grpc.aio.Channel
) -> None:
    token = [(AUTHORIZATION, f"Bearer {rm.user_token}")]
    for method in METHODS:
        code, text = await status_of_call(channel, method, token, b"")
        denied = code is DENIED and "cluster token" in text
        assert denied is (method.need is Access.CLUSTER), (method.path, code, text)


@pytest.mark.parametrize("method", [m for m in METHODS if name_of(m) in OF_JOBS], ids=name_of)
async def test_a_job_is_for_whoever_holds_its_secret(
    rm: RunningRm, channel: grpc.aio.Channel, method: Method
) -> None:
    await rm.rm.RegisterJob(rm_pb2.RegisterJobRequest(job_id="job", request_id="r" * 16, name="a"))
    other = await rm.rm.RegisterJob(
        rm_pb2.RegisterJobRequest(job_id="other", request_id="s" * 16, name="b")
    )
    data = OF_JOBS[name_of(method)].SerializeToString()
    for secret in (None, "", "guess", other.job_secret):
        metadata = [(AUTHORIZATION, f"Bearer {rm.user_token}")]
        if secret is not None:
            metadata.append((JOB_SECRET, secret))
        code, _ = await status_of_call(channel, method, metadata, data)
        assert code is DENIED, secret


def test_no_method_of_a_job_is_forgotten_here() -> None:
    open_to_users = {"RegisterJob", "Explain"}
    users = {name_of(m) for m in METHODS if m.need is Access.USER and "ResourceManager" in m.path}
    assert users - open_to_users == set(OF_JOBS)

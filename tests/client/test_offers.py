"""Tests of direct offers by executors, which are answered from the job's own state."""

from typing import Any

import grpc.aio
import pytest

import finegrain_client as fg
from finegrain.rpc.channels import open_channel
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2
from finegrain_client.job.offers import OfferServer
from tests.client.scripted import PENDING, Scripted
from tests.support.identities import identity, own


async def _offer(
    address: str, *slots: tuple[str, int], caller: str = "executor/host-a"
) -> list[str]:
    async with open_channel(address, own(caller), identity("user/alice")) as channel:
        stub: Any = job_master_pb2_grpc.JobMasterServiceStub(channel)
        offered = [slots_pb2.SlotStatus(allocation_id=a, generation=g) for a, g in slots]
        answer = await stub.OfferSlots(job_master_pb2.OfferSlotsRequest(slots=offered))
        return [each.error.reason for each in answer.results]


async def test_only_what_the_job_wants_is_accepted(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    address = await job.serve_offers()
    assert await job.serve_offers() == address
    (request,) = await job.request_slots(fg.SlotSpec(target_address=address))
    asked = servant.calls["RequestResource"][0].requests[0]
    assert asked.target_address == address
    answers = await _offer(address, (request.allocation_id, 1), ("unknown", 1))
    assert answers == ["", "ALLOCATION_UNKNOWN"]
    # The slot itself comes only from the resource manager.
    assert request.state is fg.RequestState.PENDING


async def test_an_older_placement_is_refused(servant: Scripted, job: fg.Job) -> None:
    address = await job.serve_offers()
    (request,) = await job.request_slots(fg.SlotSpec(restart_on_loss=True))
    await request.granted(timeout_s=10)
    assert await _offer(address, (request.allocation_id, 0)) == ["ALLOCATION_UNKNOWN"]
    await servant.tell(request.allocation_id, PENDING)
    assert await _offer(address, (request.allocation_id, 2)) == [""]


@pytest.mark.parametrize("caller", ["user/bob", "user/alice", "operator/root", "rm"])
async def test_only_executors_may_offer(servant: Scripted, job: fg.Job, caller: str) -> None:
    servant.auto_grant = False
    address = await job.serve_offers()
    (request,) = await job.request_slots(fg.SlotSpec())
    with pytest.raises(grpc.aio.AioRpcError, match="role executor") as raised:
        await _offer(address, (request.allocation_id, 1), caller=caller)
    assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_caller_without_a_certificate_is_refused(job: fg.Job) -> None:
    address = await job.serve_offers()
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = job_master_pb2_grpc.JobMasterServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await stub.OfferSlots(job_master_pb2.OfferSlotsRequest(), timeout=5)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_offers_end_with_the_job(cluster: fg.Cluster) -> None:
    async with cluster.job("offers") as job:
        address = await job.serve_offers()
    with pytest.raises(grpc.aio.AioRpcError):
        await _offer(address, ("a", 1))


async def test_an_address_in_use_is_said(job: fg.Job) -> None:
    address = await job.serve_offers()
    with pytest.raises(fg.ConfigurationError, match="in use"):
        await OfferServer(lambda *_: True, own("user/alice"), address).start()


def test_an_operator_cannot_receive_offers() -> None:
    with pytest.raises(fg.ConfigurationError, match="use the credentials of a user"):
        OfferServer(lambda *_: True, own("operator/root"))

"""Tests of direct offers by executors, which are answered from the job's own state."""

import hashlib
from typing import Any

import grpc.aio
import pytest

import finegrain_client as fg
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2
from finegrain_client.job.offers import OfferServer
from tests.client.scripted import PENDING, Scripted

HASH = hashlib.sha256(b"the-secret").hexdigest()


async def _offer(address: str, *slots: tuple[str, int], shown: str = HASH) -> list[str]:
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = job_master_pb2_grpc.JobMasterServiceStub(channel)
        offered = [slots_pb2.SlotStatus(allocation_id=a, generation=g) for a, g in slots]
        answer = await stub.OfferSlots(
            job_master_pb2.OfferSlotsRequest(slots=offered),
            metadata=(("finegrain-job-secret-sha256", shown),),
        )
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
    # An offer alone, which anyone could send, never reveals the job's secret.
    assert request.state is fg.RequestState.PENDING


async def test_an_older_placement_is_refused(servant: Scripted, job: fg.Job) -> None:
    address = await job.serve_offers()
    (request,) = await job.request_slots(fg.SlotSpec(restart_on_loss=True))
    await request.granted(timeout_s=10)
    assert await _offer(address, (request.allocation_id, 0)) == ["ALLOCATION_UNKNOWN"]
    await servant.tell(request.allocation_id, PENDING)
    assert await _offer(address, (request.allocation_id, 2)) == [""]


async def test_a_stranger_gets_no_slot_accepted(servant: Scripted, job: fg.Job) -> None:
    servant.auto_grant = False
    address = await job.serve_offers()
    (request,) = await job.request_slots(fg.SlotSpec())
    answers = await _offer(address, (request.allocation_id, 1), shown="0" * 64)
    assert answers == ["JOB_SECRET_WRONG"]


async def test_offers_end_with_the_job(cluster: fg.Cluster) -> None:
    async with cluster.job("offers") as job:
        address = await job.serve_offers()
    with pytest.raises(grpc.aio.AioRpcError):
        await _offer(address, ("a", 1))


async def test_an_address_in_use_is_said(job: fg.Job) -> None:
    address = await job.serve_offers()
    with pytest.raises(fg.ConfigurationError, match="in use"):
        await OfferServer(lambda *_: True, "secret", address).start()


def test_offers_in_clear_beyond_loopback_are_refused() -> None:
    with pytest.raises(fg.ConfigurationError, match="without encryption"):
        OfferServer(lambda *_: True, "secret", "0.0.0.0:0")

"""Offers to job masters that named an address: accepted, rejected, or taken back in time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from finegrain.rpc.channels import AUTHORIZATION
from finegrain.rpc.tokens import sha256_hex
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import SECRET, ScriptedRM, allocation, eventually

Verdict = Callable[[slots_pb2.SlotStatus], slots_pb2.ItemResult]


@dataclass
class Listener(job_master_pb2_grpc.JobMasterServiceServicer):
    """A job master's end of the offers."""

    verdict: Verdict
    offers: list[job_master_pb2.OfferSlotsRequest] = field(default_factory=list)
    metadata: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""

    async def OfferSlots(
        self, request: job_master_pb2.OfferSlotsRequest, context: Any
    ) -> job_master_pb2.OfferSlotsResponse:
        self.offers.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        return job_master_pb2.OfferSlotsResponse(results=[self.verdict(s) for s in request.slots])


def accept(slot: slots_pb2.SlotStatus) -> slots_pb2.ItemResult:
    return slots_pb2.ItemResult(id=slot.allocation_id)


def reject_b(slot: slots_pb2.SlotStatus) -> slots_pb2.ItemResult:
    result = accept(slot)
    if slot.allocation_id == "b":
        result.error.reason = "NOT_WANTED"
    return result


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener(accept)
    server = grpc.aio.server()
    job_master_pb2_grpc.add_JobMasterServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call, unused-ignore]
    made.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    yield made
    await server.stop(0)


async def test_slots_are_offered_with_everything_needed_and_nothing_secret(
    rm: ScriptedRM, executor: Executor, listener: Listener
) -> None:
    await rm.allocate(*(allocation(i, target_address=listener.address) for i in ("a", "b")))
    await eventually(lambda: listener.offers, "they are offered")
    (offer,) = listener.offers
    assert [slot.allocation_id for slot in offer.slots] == ["a", "b"]
    assert (offer.executor_id, offer.executor_address) == ("host-a", executor.front.address)
    assert listener.metadata[0]["finegrain-job-secret-sha256"] == sha256_hex(SECRET)
    assert AUTHORIZATION not in listener.metadata[0]


async def test_a_slot_that_is_rejected_is_taken_back(
    rm: ScriptedRM, executor: Executor, listener: Listener
) -> None:
    listener.verdict = reject_b
    await rm.allocate(*(allocation(i, target_address=listener.address) for i in ("a", "b")))
    await eventually(lambda: rm.ended() == {"b": "OFFER_NOT_ACCEPTED"}, "it is told")
    assert set(rm.slots()) == {"a"}


@pytest.mark.parametrize("target", ["127.0.0.1:1", "no-such-host.invalid:1"])
async def test_a_slot_that_nobody_accepts_in_time_is_taken_back(
    rm: ScriptedRM, tmp_path: Path, target: str
) -> None:
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start(offer_timeout_ms=200)
        await eventually(lambda: rm.reports, "it reports")
        await rm.allocate(allocation(target_address=target))
        await eventually(lambda: rm.ended() == {"slot": "OFFER_NOT_ACCEPTED"}, "it is told")
        assert not executor.helper.slots


async def test_after_a_restart_only_what_was_not_accepted_is_offered_again(
    rm: ScriptedRM, executor: Executor, listener: Listener
) -> None:
    await rm.allocate(allocation("taken", target_address=listener.address))
    table = executor.front.keeper.table
    await eventually(lambda: all(slot.accepted for slot in table), "it is accepted")
    await rm.allocate(allocation("open", target_address="127.0.0.1:1"))
    listener.offers.clear()
    await executor.crash()
    await executor.start()
    assert {key.allocation_id for key in executor.front.offers._offered} == {"open"}
    assert not listener.offers

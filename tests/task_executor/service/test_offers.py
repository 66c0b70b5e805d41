"""Offers to job masters that named an address are accepted, rejected, or withdrawn in time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from finegrain.errors import InvalidArgument
from finegrain.rpc.offer_targets import OfferTargets
from finegrain.v1 import job_master_pb2, job_master_pb2_grpc, slots_pb2
from tests.support.identities import own
from tests.task_executor.service.conftest import Executor, executor_at
from tests.task_executor.service.scripted_rm import (
    OTHER_OWNER,
    OWNER,
    ScriptedRM,
    allocation,
    eventually,
)

Verdict = Callable[[slots_pb2.SlotStatus], slots_pb2.ItemResult]


@dataclass
class Listener(job_master_pb2_grpc.JobMasterServiceServicer):
    """The part of a job master that receives offers."""

    verdict: Verdict
    offers: list[job_master_pb2.OfferSlotsRequest] = field(default_factory=list)
    callers: list[bytes] = field(default_factory=list)
    owner: str = OWNER
    address: str = ""

    async def OfferSlots(
        self, request: job_master_pb2.OfferSlotsRequest, context: Any
    ) -> job_master_pb2.OfferSlotsResponse:
        self.offers.append(request)
        self.callers += context.auth_context()["peer_spiffe_id"]
        return job_master_pb2.OfferSlotsResponse(results=[self.verdict(s) for s in request.slots])


def accept(slot: slots_pb2.SlotStatus) -> slots_pb2.ItemResult:
    return slots_pb2.ItemResult(id=slot.allocation_id)


def reject_b(slot: slots_pb2.SlotStatus) -> slots_pb2.ItemResult:
    result = accept(slot)
    if slot.allocation_id == "b":
        result.error.reason = "NOT_WANTED"
    return result


@pytest.fixture
async def listener(request: pytest.FixtureRequest) -> AsyncIterator[Listener]:
    """Yields a job master that shows the certificate of the slot's owner, or of the test's
    parameter.
    """
    made = Listener(accept, owner=getattr(request, "param", OWNER))
    server, shown = grpc.aio.server(), own(made.owner).server_credentials()
    job_master_pb2_grpc.add_JobMasterServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call, unused-ignore]
    made.address = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', shown)}"
    await server.start()
    yield made
    await server.stop(0)


async def test_slots_are_offered_to_the_owner_of_the_job(
    rm: ScriptedRM, executor: Executor, listener: Listener
) -> None:
    await rm.allocate(*(allocation(i, target_address=listener.address) for i in ("a", "b")))
    await eventually(lambda: listener.offers, "they are offered")
    (offer,) = listener.offers
    assert [slot.allocation_id for slot in offer.slots] == ["a", "b"]
    assert (offer.executor_id, offer.executor_address) == ("host-a", executor.front.address)
    assert listener.callers == [b"spiffe://test/executor/host-a"]


@pytest.mark.parametrize("listener", [OTHER_OWNER, "executor/host-b", "rm"], indirect=True)
async def test_nobody_else_receives_an_offer(
    rm: ScriptedRM, tmp_path: Path, listener: Listener
) -> None:
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start(offer_timeout_ms=500)
        await eventually(lambda: rm.reports, "it reports")
        await rm.allocate(allocation(target_address=listener.address))
        await eventually(lambda: rm.ended() == {"slot": "OFFER_NOT_ACCEPTED"}, "it is told")
    assert not listener.offers


async def test_offers_go_to_the_allowed_hosts_only(
    rm: ScriptedRM, tmp_path: Path, listener: Listener
) -> None:
    async with executor_at(tmp_path, rm.address) as executor:
        await executor.start(offer_targets=("10.0.0.0/8", "jobs.example"))
        await eventually(lambda: rm.reports, "it reports")
        await rm.allocate(allocation(target_address=listener.address))
        await eventually(lambda: rm.ended() == {"slot": "OFFER_NOT_ACCEPTED"}, "it is told")
    assert not listener.offers


def test_targets_are_hosts_and_networks() -> None:
    targets = OfferTargets.parse(["10.0.0.0/8", "fd00::/8", "Jobs.example", "192.0.2.7"])
    for address in ("10.9.9.9:1", "[fd00::1]:1", "jobs.EXAMPLE:1", "192.0.2.7:1"):
        assert targets.allow(address)
    for address in ("11.0.0.1:1", "[::1]:1", "jobs.example.org:1", "192.0.2.8:1"):
        assert not targets.allow(address)
    assert OfferTargets.parse([]).allow("192.0.2.8:1")


@pytest.mark.parametrize("text", ["10.0.0.1/8", "host:1", "", "a b"])
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="offer_targets"):
        OfferTargets.parse([text])


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

"""The tokens that a resource manager signs for job masters, as an executor checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from finegrain.errors import NotFound, PermissionDenied, Reason
from finegrain.rpc.access import TOKEN_KEY
from finegrain.rpc.allocation_tokens import ShownToken, TokenChecker
from finegrain.rpc.own_certificate import OwnCertificate
from finegrain.rpc.status import error_from_rpc
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1.identity_pb2 import AllocationToken
from tests.support.identities import caller, signed_by
from tests.support.rm_service import (
    USER,
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    running_rm,
    slot_request,
)


def shown(rm: RunningRm, token: bytes, executor_id: str = "host-a") -> ShownToken:
    """Returns what an executor reads from a token."""
    own = OwnCertificate(signed_by(rm.authority, f"executor/{executor_id}"))
    checker = TokenChecker(executor_id, own, lambda _identity, _serial: False)
    return checker.shown(caller(USER), [(TOKEN_KEY, token)])


async def snapshot_token(job: ScriptedJob, rm: RunningRm | None = None) -> bytes:
    stream = job.watch(rm=rm)
    try:
        answer = await stream.read()
    finally:
        stream.cancel()
    (request,) = answer.snapshot.requests
    return bytes(request.token)


async def test_an_offer_brings_the_token_of_its_slot(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a"):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        (offer,) = await next_events(stream, 1)
        stream.cancel()
        for token in (offer.token, await snapshot_token(job)):
            rights = shown(rm, token)
            assert rights.check_slot("slot-1", 1) == USER
            rights.check_job(job.job_id)
            for other in (("slot-2", 1), ("slot-1", 2)):
                with pytest.raises(PermissionDenied):
                    rights.check_slot(*other)
            with pytest.raises(PermissionDenied, match="host-b"):
                shown(rm, token, "host-b")


async def test_slots_that_are_granted_together_have_tokens_of_their_own(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a"):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(*(slot_request(f"slot-{number}") for number in range(3)))
        await next_events(stream, 3)
        stream.cancel()
        stream = job.watch()
        answer = await stream.read()
        stream.cancel()
        requests = answer.snapshot.requests
        assert len(requests) == 3
        for request in requests:
            rights = shown(rm, bytes(request.token))
            assert rights.check_slot(request.slot.allocation_id, 1) == USER
        signatures = {AllocationToken.FromString(each.token).signature for each in requests}
        assert len(signatures) == 1


async def test_after_a_restart_of_the_manager_both_tokens_count(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a"):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        (offer,) = await next_events(stream, 1)
        stream.cancel()
        before = bytes(offer.token)
    # The certificate of the manager is replaced.
    (tmp_path / "certificates" / "rm.credentials").unlink(missing_ok=True)
    async with running_rm(tmp_path) as rm:
        after = await snapshot_token(job, rm)
        assert before != after
        for token in (before, after):
            assert shown(rm, token).check_slot("slot-1", 1) == USER


async def test_the_owner_gets_a_token_again_and_for_its_output(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a"):
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await next_events(stream, 1)
        stream.cancel()
        request = rm_pb2.GetAllocationTokenRequest(job_id=job.job_id, executor_id="host-a")
        output = shown(rm, (await job.stub.GetAllocationToken(request)).token)
        output.check_job(job.job_id)
        with pytest.raises(PermissionDenied, match="the output of a job"):
            output.check_slot("slot-1", 1)
        request.allocation_id, request.generation = "slot-1", 1
        again = shown(rm, (await job.stub.GetAllocationToken(request)).token)
        assert again.check_slot("slot-1", 1) == USER


@pytest.mark.parametrize(
    "wrong",
    [
        {"executor_id": "host-b"},
        {"allocation_id": "slot-2"},
        {"generation": 2},
        {"job_id": "job-b", "allocation_id": "slot-1"},
    ],
    ids=str,
)
async def test_what_the_job_does_not_have_gets_no_token(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a"):
        job = await ScriptedJob(rm, "job-a").register()
        await ScriptedJob(rm, "job-b").register()
        stream = job.watch()
        await job.request(slot_request("slot-1"))
        await next_events(stream, 1)
        stream.cancel()
        right: dict[str, Any] = {
            "job_id": "job-a",
            "executor_id": "host-a",
            "allocation_id": "slot-1",
            "generation": 1,
        }
        with pytest.raises(grpc.RpcError) as error:
            await job.stub.GetAllocationToken(rm_pb2.GetAllocationTokenRequest(**(right | wrong)))
        meaning = error_from_rpc(error.value)
        assert isinstance(meaning, NotFound)
        assert meaning.reason is Reason.ALLOCATION_UNKNOWN

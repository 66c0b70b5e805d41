"""Executors offer slots on the host of the job master only, unless an administrator allows more."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from finegrain.errors import InvalidArgument
from finegrain.rpc.offer_targets import comes_from
from finegrain.rpc.status import error_from_rpc
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    running_rm,
    slot_request,
)


async def refusal(rm: RunningRm, target: str) -> str:
    """Returns why requests with this target are refused; empty: they are accepted."""
    job = await ScriptedJob(rm).register()
    try:
        (result,) = await job.request(slot_request(f"to-{job.job_id}", target_address=target))
    except grpc.RpcError as error:
        meaning = error_from_rpc(error)
        assert isinstance(meaning, InvalidArgument)
        return meaning.message
    assert not result.HasField("error")
    return ""


OTHERS = ("10.0.0.1:22", "192.0.2.7:7200", "[2001:db8::1]:80", "jobs.example:7200")


async def test_offers_go_to_the_host_of_the_job_master_alone(tmp_path: Path) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm) as executor:
        for target in OTHERS:
            message = await refusal(rm, target)
            assert target in message
            assert "requests[0].target_address" in message
            assert "offer_targets" in message
        assert not executor.commands
        for target in ("127.0.0.1:7200", "localhost:7200"):
            assert not await refusal(rm, target)


async def test_an_administrator_names_the_hosts(tmp_path: Path) -> None:
    allowed = ("10.0.0.0/8", "jobs.example")
    async with running_rm(tmp_path, offer_targets=allowed) as rm, ScriptedExecutor(rm):
        assert not await refusal(rm, "10.0.0.1:22")
        assert not await refusal(rm, "jobs.example:7200")
        for target in ("192.0.2.7:7200", "127.0.0.1:7200"):
            assert target in await refusal(rm, target)


@pytest.mark.parametrize(
    ("address", "peer", "expected"),
    [
        ("10.0.0.1:1", "ipv4:10.0.0.1:40000", True),
        ("10.0.0.1:1", "ipv6:%5B::ffff:10.0.0.1%5D:40000", True),
        ("[2001:db8::1]:1", "ipv6:%5B2001:db8::1%5D:40000", True),
        ("[::1]:1", "ipv4:127.0.0.1:40000", True),
        ("10.0.0.2:1", "ipv4:10.0.0.1:40000", False),
        ("10.0.0.1:1", "ipv4:127.0.0.1:40000", False),
        ("127.0.0.1:1", "ipv4:10.0.0.1:40000", False),
        ("localhost:1", "ipv4:10.0.0.1:40000", False),
        ("127.0.0.1:1", "unix:", False),
        ("10.0.0.1:1", "", False),
    ],
)
def test_a_target_is_compared_with_the_address_of_the_caller(
    address: str, peer: str, expected: bool
) -> None:
    assert comes_from(address, peer) is expected

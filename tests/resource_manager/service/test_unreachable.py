"""Tests of an executor that registers and reports, but that the resource manager cannot dial."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from finegrain.errors import Reason
from finegrain.v1 import cluster_pb2, slots_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from resource_manager import wiring as parts
from resource_manager.service import preparation
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    eventually,
    running_rm,
    slot_request,
)

GRANTED = slots_pb2.REQUEST_STATE_GRANTED


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    real = preparation.settings_of
    monkeypatch.setattr(
        parts,
        "settings_of",
        lambda *given: replace(real(*given), unreachable_after_ms=200, probe_min_ms=50),
    )


async def events_of(rm: RunningRm, executor_id: str) -> dict[str, cluster_pb2.ClusterEvent]:
    listed = await rm.cluster.ListEvents(cluster_pb2.ListEventsRequest())
    return {each.kind: each for each in listed.events if each.executor_id == executor_id}


async def where(rm: RunningRm, allocation_id: str) -> str:
    """Returns the executor that a slot was granted on; empty before."""
    listed = await rm.cluster.ListRequests(
        cluster_pb2.ListRequestsRequest(allocation_ids=[allocation_id])
    )
    (found,) = listed.requests
    return str(found.slot.executor_id) if found.state == GRANTED else ""


async def status(rm: RunningRm, executor_id: str) -> cluster_pb2.ExecutorStatus:
    answer: Any = await rm.cluster.GetExecutor(
        cluster_pb2.GetExecutorRequest(executor_id=executor_id)
    )
    return answer.executor  # type: ignore[no-any-return]


async def test_its_requests_go_elsewhere_and_it_is_used_again_once_it_can_be_dialled(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a") as closed:
        await closed.close_port()
        job = await ScriptedJob(rm).register()
        await job.request(slot_request("slot-1"))
        async with ScriptedExecutor(rm, "host-b", cpu_milli=1000) as other:
            await eventually(closed.register_if_asked)
            assert await eventually(lambda: where(rm, "slot-1")) == "host-b"
            assert list(other.slots) == ["slot-1"]
            seen = await status(rm, "host-a")
            assert seen.state == cluster_pb2.EXECUTOR_STATE_ACTIVE
            assert "connection refused" in seen.unreachable_reason
            assert "--advertise" in seen.unreachable_reason
            event = (await events_of(rm, "host-a"))["executor_unreachable"]
            assert event.reason == Reason.UNREACHABLE
            assert closed.address in event.message

            await job.request(slot_request("slot-2", cpu_milli=3000))
            explained = await rm.rm.Explain(
                rm_pb2.ExplainRequest(allocation_id="slot-2", executor_id="host-a")
            )
            assert list(explained.executors[0].blockers) == ["UNREACHABLE"]

            await closed.open_port()
            assert await eventually(lambda: where(rm, "slot-2")) == "host-a"
            assert list(closed.slots) == ["slot-2"]
            assert "executor_reachable" in await events_of(rm, "host-a")
            assert not (await status(rm, "host-a")).unreachable_reason


async def test_the_cause_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_rm(tmp_path) as rm, ScriptedExecutor(rm, "host-a") as executor:
        await executor.close_port()
        job = await ScriptedJob(rm).register()
        await job.request(slot_request("slot-1"))
        await eventually(executor.register_if_asked)
        await executor.open_port()
        assert await eventually(lambda: where(rm, "slot-1")) == "host-a"
    told = [each.msg["event"] for each in caplog.records if isinstance(each.msg, dict)]
    assert told.count("executor_not_reached") == 1
    assert told.count("executor_reached_again") == 1

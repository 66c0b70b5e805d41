"""Tests over real gRPC that a job master learns that a waiting request is infeasible."""

from __future__ import annotations

from pathlib import Path

from finegrain.v1 import resource_manager_pb2 as rm_pb2
from finegrain.v1 import slots_pb2
from tests.support.rm_service import (
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    running_rm,
    slot_request,
)

REJECTED = slots_pb2.REQUEST_STATE_REJECTED


async def test_a_request_from_before_the_first_executor_is_rejected_in_the_words_of_a_later_one(
    tmp_path: Path,
) -> None:
    async with running_rm(tmp_path, infeasible_after_ms=200) as rm:
        job = await ScriptedJob(rm).register()
        stream = job.watch()
        wishes = {"cpu_milli": 640_000}
        (early,) = await job.request(slot_request("early", **wishes))
        assert not early.HasField("error")
        explained = await rm.rm.Explain(rm_pb2.ExplainRequest(allocation_id="early"))
        assert explained.primary_reason == "WAITING_CAPACITY"
        async with ScriptedExecutor(rm, "host-a"):
            (event,) = await next_events(stream, 1)
            (late,) = await job.request(slot_request("late", **wishes))

        assert (event.allocation_id, event.state) == ("early", REJECTED)
        assert (event.reason, event.message) == (late.error.reason, late.error.message)
        stream.cancel()
    # The event is stored: the next manager sends the same.
    async with running_rm(tmp_path) as rm:
        again = job.watch(1, rm)
        (told,) = await next_events(again, 1)
        assert told == event
        again.cancel()

"""Tests the advice on the number of threads over real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from finegrain.errors import InvalidArgument, Reason
from finegrain.v1 import cluster_pb2
from finegrain.v1 import resource_manager_pb2 as rm_pb2
from tests.support.rm_service import (
    RunningRm,
    ScriptedExecutor,
    ScriptedJob,
    next_events,
    refusal,
    running_rm,
    slot_request,
)


@pytest.fixture
async def rm(tmp_path: Path) -> AsyncIterator[RunningRm]:
    async with running_rm(tmp_path) as running:
        yield running


async def advice_for(rm: RunningRm, job_id: str, **more: Any) -> cluster_pb2.AdviseThreadsResponse:
    answer: cluster_pb2.AdviseThreadsResponse
    message = cluster_pb2.AdviseThreadsRequest(job_id=job_id, **more)
    answer = await rm.cluster_as_user.AdviseThreads(message)
    return answer


async def test_threads_are_observed_while_the_job_runs_and_after_it_ended(rm: RunningRm) -> None:
    job = await ScriptedJob(rm).register()
    stream = job.watch()
    async with ScriptedExecutor(rm, "host-a"):
        await job.request(*(slot_request(f"thread-{number}") for number in range(3)))
        await next_events(stream, 3)
        assert (await advice_for(rm, job.job_id)).threads_recommended == 0
        await job.release("thread-0")
        await job.release("thread-1")
        await next_events(stream, 2)
        found = await advice_for(rm, job.job_id)

        assert (found.threads_observed, found.threads_running, found.threads_waiting) == (2, 1, 0)
        assert (found.target.seconds, found.quantile) == (120, 0.95)
        assert found.share_within_target == 1.0
        assert found.longest.ToMilliseconds() < 60_000
        assert any("no more threads are needed" in remark for remark in found.remarks)

        await rm.cluster.TerminateJob(cluster_pb2.TerminateJobRequest(job_id=job.job_id))
        assert (await advice_for(rm, job.job_id)).threads_observed == 2


async def test_each_thread_counts_once_and_the_advice_says_which_attempts_it_cannot_match(
    rm: RunningRm,
) -> None:
    job = await ScriptedJob(rm).register()
    stream = job.watch()
    async with ScriptedExecutor(rm, "host-a"):
        await job.request(*(slot_request(f"thread-{number}") for number in range(4)))
        await next_events(stream, 4)
        await job.release("thread-0", thread_end=rm_pb2.THREAD_END_UNFINISHED)
        await job.release("thread-1", thread_end=rm_pb2.THREAD_END_FINISHED)
        await job.release("thread-2")  # a client of an earlier version
        error = await refusal(job.release("thread-3", thread_end=9))
        bound = await refusal(job.release("thread-3", finished_before=1_000_001))
        found = await advice_for(rm, job.job_id)

    assert isinstance(error, InvalidArgument)
    assert "slots[0].thread_end" in error.message
    assert isinstance(bound, InvalidArgument)
    assert "slots[0].finished_before" in bound.message
    assert "0 to 1,000,000" in bound.message
    assert (found.threads_observed, found.threads_running) == (2, 1)
    assert (found.attempts_unfinished, found.attempts_unmatched) == (1, 1)
    assert any(
        remark.startswith("1 of 3 attempts could not be matched to a thread")
        for remark in found.remarks
    )


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"target": Duration()}, "target"),
        ({"target": Duration(seconds=-5)}, "target"),
        ({"quantile": 1.0}, "quantile"),
        ({"quantile": -0.1}, "quantile"),
        ({"quantile": float("nan")}, "quantile"),
    ],
)
async def test_what_cannot_be_advised_about_is_refused(
    rm: RunningRm, wish: dict[str, Any], field: str
) -> None:
    job = await ScriptedJob(rm).register()
    error = await refusal(advice_for(rm, job.job_id, **wish))

    assert isinstance(error, InvalidArgument)
    assert field in error.message


async def test_nobody_knows_a_job_that_never_was(rm: RunningRm) -> None:
    assert (await refusal(advice_for(rm, "nobody"))).reason is Reason.JOB_UNKNOWN

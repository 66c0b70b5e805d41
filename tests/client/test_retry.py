"""Tests which calls are retried, how often and for how long."""

import asyncio
import time

import grpc
import grpc.aio
import pytest

import finegrain_client as fg
from finegrain.errors import Reason
from finegrain_client.retry import Backoff, RetryPolicy, call_with_retries
from tests.client.scripted import Scripted, eventually


async def test_an_unavailable_server_is_tried_until_it_answers(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.failures["ListExecutors"].extend([fg.Unavailable("starting")] * 9)
    assert len(await cluster.executors()) == 3


async def test_a_call_that_a_server_cut_off_when_it_stopped_is_made_again() -> None:
    codes = [grpc.StatusCode.CANCELLED, grpc.StatusCode.CANCELLED]

    async def attempt(_timeout_s: float) -> str:
        if codes:
            raise grpc.aio.AioRpcError(codes.pop(), grpc.aio.Metadata(), grpc.aio.Metadata())
        return "done"

    assert await call_with_retries(attempt, where=lambda: "x:1", policy=RetryPolicy()) == "done"
    assert not codes


@pytest.mark.parametrize(
    "error",
    [
        fg.InvalidArgument("cpu_milli", 5, "at least 10"),
        fg.NotFound("no such thing"),
        fg.AlreadyExists("other content"),
        fg.FailedPrecondition("not now"),
        fg.PermissionDenied("not you"),
        fg.Unauthenticated("who are you"),
        fg.FinegrainError("a bug"),
        fg.ResourceExhausted("too large", reason=Reason.MESSAGE_TOO_LARGE),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_nothing_else_is_tried_twice(
    servant: Scripted, cluster: fg.Cluster, error: fg.FinegrainError
) -> None:
    servant.failures["ListExecutors"].append(error)
    with pytest.raises(type(error), match=error.message) as caught:
        await cluster.executors()
    assert caught.value.reason is error.reason
    assert len(servant.calls["ListExecutors"]) == 1


async def test_an_overloaded_server_is_given_the_time_it_names(
    servant: Scripted, cluster: fg.Cluster
) -> None:
    servant.failures["ListExecutors"].append(fg.ResourceExhausted("slow down", retry_after_s=0.3))
    before = time.monotonic()
    await cluster.executors()
    assert time.monotonic() - before >= 0.3


async def test_the_budget_covers_all_tries(servant: Scripted) -> None:
    servant.failures["ListExecutors"].extend([fg.Unavailable("starting")] * 1000)
    before = time.monotonic()
    async with fg.connect(servant.address, budget_s=2.5) as cluster:
        with pytest.raises(fg.Unavailable, match="starting"):
            await cluster.executors()
    assert time.monotonic() - before < 10
    assert len(servant.calls["ListExecutors"]) > 1


async def test_a_silent_server_is_given_up_at_the_deadline(servant: Scripted) -> None:
    servant.blocked["ListExecutors"] = asyncio.Event()
    async with fg.connect(servant.address, budget_s=20) as cluster:
        await cluster.info()  # the connection is open, which can take long on a busy machine
        cluster._connection.policy = RetryPolicy(budget_s=0.3)
        with pytest.raises(fg.Unavailable, match=r"127\.0\.0\.1.*did not answer in time"):
            await cluster.executors()
    await eventually(lambda: servant.live["ListExecutors"] == 0)
    assert len(servant.calls["ListExecutors"]) == 1


async def test_nobody_there_is_said_with_the_address() -> None:
    async with fg.connect("127.0.0.1:1", budget_s=3) as cluster:
        with pytest.raises(fg.Unavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
            await cluster.info()


def test_delays_double_up_to_a_cap_with_jitter() -> None:
    backoff = Backoff(RetryPolicy(first_delay_s=0.1, longest_delay_s=0.5))
    for longest in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert longest / 2 <= backoff.next_s() <= longest
    backoff.reset()
    assert backoff.next_s() <= 0.1

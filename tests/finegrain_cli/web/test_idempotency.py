"""Answers that are kept for repeated requests: how long, how many, and how much memory."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response

from finegrain.errors import FailedPrecondition
from finegrain_cli.web.idempotency import BYTES_MAX, KEPT_S, Repeats


class Calls:
    """Counts how often a request was executed."""

    def __init__(self, size: int = 1) -> None:
        self.count, self.size = 0, size

    async def __call__(self) -> Response:
        self.count += 1
        return Response(b"x" * self.size)


async def test_an_answer_is_kept_for_a_day() -> None:
    now_s = [0.0]
    repeats, calls = Repeats(lambda: now_s[0]), Calls()
    for at_s in (0.0, KEPT_S - 1, KEPT_S + 1):
        now_s[0] = at_s
        await repeats.once("alice", "k", "d", calls)
    assert calls.count == 2


async def test_large_answers_drop_the_oldest_ones() -> None:
    repeats, large, small = Repeats(), Calls(BYTES_MAX // 2), Calls()
    await repeats.once("alice", "first", "d", small)
    for number in range(3):
        await repeats.once("bob", str(number), "d", large)
    await repeats.once("bob", "2", "d", large)
    await repeats.once("alice", "first", "d", small)
    assert (large.count, small.count) == (3, 2)


async def test_a_request_that_still_runs_is_not_executed_twice() -> None:
    repeats, calls, may_end = Repeats(), Calls(), asyncio.Event()

    async def slow() -> Response:
        await may_end.wait()
        return await calls()

    first = asyncio.create_task(repeats.once("alice", "k", "d", slow))
    await asyncio.sleep(0)
    with pytest.raises(FailedPrecondition, match="still executed"):
        await repeats.once("alice", "k", "d", slow)
    may_end.set()
    assert (await first).body == (await repeats.once("alice", "k", "d", slow)).body
    assert calls.count == 1


async def test_a_request_that_failed_may_be_tried_again() -> None:
    repeats, calls = Repeats(), Calls()

    async def fails() -> Response:
        raise FailedPrecondition("not now")

    with pytest.raises(FailedPrecondition):
        await repeats.once("alice", "k", "d", fails)
    await repeats.once("alice", "k", "d", calls)
    assert calls.count == 1

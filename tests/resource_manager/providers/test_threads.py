"""Tests of blocking work whose caller is cancelled."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from resource_manager.providers.threads import Cancellation, in_thread


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - they come and go


async def test_calls_that_wait_for_a_thread_take_no_descriptors() -> None:
    """Even after a request for a thousand executors, other calls still work."""
    gate = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        before = descriptors()
        calls = [asyncio.create_task(in_thread(threads, lambda _: gate.wait())) for _ in range(200)]
        await asyncio.sleep(0.05)
        taken = descriptors() - before
        gate.set()
        await asyncio.gather(*calls)

    assert taken < 10


@pytest.mark.parametrize("listens_first", [True, False])
def test_it_is_heard_of_whenever_one_begins_to_listen(listens_first: bool) -> None:
    cancellation = Cancellation()
    if listens_first:
        cancellation.fileno()
    cancellation.set()
    ready, _, _ = select.select([cancellation], [], [], 0)
    cancellation.close()

    assert ready

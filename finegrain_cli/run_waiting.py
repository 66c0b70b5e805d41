"""Waiting for a slot, and saying why when that takes a while."""

from __future__ import annotations

import asyncio

import finegrain_client as fg
from finegrain_cli.output import say

QUIET_S = 1.5  # waiting for a slot is not worth a word before


async def granted(request: fg.Request, timeout_s: float | None) -> fg.Slot:
    """The slot; says why it waits when that takes a while."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    quiet = QUIET_S if timeout_s is None else min(QUIET_S, timeout_s)
    try:
        return await request.granted(quiet)
    except fg.StillWaiting:
        explanation = await request.explain(max_executors=1)
        say(
            f"finegrain: waiting for a slot: {explanation.summary} "
            f"[{explanation.primary_reason}]; finegrain explain {request.allocation_id}"
        )
    rest = None if timeout_s is None else max(0.0, timeout_s - (loop.time() - started))
    return await request.granted(rest)

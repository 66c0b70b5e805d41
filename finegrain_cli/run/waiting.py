"""Waiting for a slot, and saying why when that takes a while."""

from __future__ import annotations

import asyncio

import finegrain_client as fg
from finegrain_cli.text.output import say

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
    if timeout_s is None:
        return await request.granted()
    try:
        return await request.granted(max(0.0, timeout_s - (loop.time() - started)))
    except fg.StillWaiting as error:  # in all it was what had been said
        raise fg.StillWaiting(
            request.allocation_id, timeout_s, request.state, error.reason
        ) from None

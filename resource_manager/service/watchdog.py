"""Sends keep-alives to systemd's watchdog: on a leader, as long as the writer answers.

A database that does not answer is no reason to be killed, since the next process would find it in
the same condition.
"""

from __future__ import annotations

import asyncio

from finegrain.errors import Reason, StoreError, Unavailable
from finegrain.systemd import notify, watchdog_interval_s
from resource_manager.service.runner import Runner
from resource_manager.service.standby import Leadership


async def feed_watchdog(runner: Runner, leadership: Leadership) -> None:
    """Notifies systemd as often as it expects; returns at once if it does not watch this process.

    A process that does not lead has no writer, and is always reported alive.
    """
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        if not leadership.leading or await writer_answers(runner):
            notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)


async def writer_answers(runner: Runner) -> bool:
    """Returns True if the writer works, or only the database keeps it from working."""
    try:
        await runner.read(lambda _state: None)
    except StoreError:
        return True
    except Unavailable as error:
        return error.reason is Reason.NOT_LEADER  # the database does not say who leads
    return True

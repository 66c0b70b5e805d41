"""Sends keep-alives to systemd's watchdog. A leader sends keep-alives only while its writer
answers.

If only the database does not answer, keep-alives continue: a restart of this process would not
help.
"""

from __future__ import annotations

import asyncio

from finegrain.errors import Reason, StoreError, Unavailable
from finegrain.systemd import notify, watchdog_interval_s
from resource_manager.service.runner import Runner
from resource_manager.service.standby import Leadership


async def feed_watchdog(runner: Runner, leadership: Leadership) -> None:
    """Notifies systemd at the interval that systemd requires. Returns at once if systemd does not
    watch this process.

    A process that does not lead has no writer that could fail to answer. So it always sends
    keep-alives.
    """
    interval_s = watchdog_interval_s()
    while interval_s is not None:
        if not leadership.leading or await writer_answers(runner):
            notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)


async def writer_answers(runner: Runner) -> bool:
    """Returns True if the writer works, or if it only waits for the database."""
    try:
        await runner.read(lambda _state: None)
    except StoreError:
        return True
    except Unavailable as error:
        return error.reason is Reason.NOT_LEADER  # the database does not report the leader
    return True

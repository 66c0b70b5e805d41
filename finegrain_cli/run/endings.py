"""Finds out why the command of `finegrain run` was killed: because its slot ended, and for which
reason.
"""

from __future__ import annotations

import signal

import finegrain_client as fg
from finegrain.errors import Reason
from finegrain_cli.run.options import RunOptions
from finegrain_cli.run.signals import Signals

# longest waits in seconds for the reason why a command was killed: with the option
# --restart-on-device-loss, and without this option
REASON_S = 3.0
SHORT_REASON_S = 1.0


async def why_killed(
    slot: fg.Slot, result: fg.TaskResult, options: RunOptions, signals: Signals
) -> fg.FinegrainError | None:
    """Returns the reason why the slot of a killed command has ended, or None if the slot has not
    ended.

    The end of the task is possibly known before its reason. So the function waits for the reason
    for a short time.
    """
    explained = (
        result.oom_killed
        or result.timed_out
        or result.end_reason == Reason.TIME_LIMIT
        or signals.ask_for_the_end
    )
    # A command can end by itself after SIGTERM. The executor then says that it was cancelled.
    killed = result.cancelled or result.signal in (signal.SIGTERM, signal.SIGKILL)
    if not killed or explained:
        return None
    return await slot.await_end(REASON_S if options.slot.restart_on_device_loss else SHORT_REASON_S)

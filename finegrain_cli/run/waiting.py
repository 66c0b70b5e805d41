"""Waits for a slot and for the end of its command, and prints the reason of a long wait or of an
early end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal

import finegrain_client as fg
from finegrain.errors import FailedPrecondition, FinegrainError, NotFound, Reason
from finegrain_cli.run.signals import Signals
from finegrain_cli.text.output import say

QUIET_S = 1.5  # no message is printed for a shorter wait
KILLED_S = 1.0  # longest wait for the end of the slot of a killed command


class SlotNotGranted(FinegrainError):
    """No slot was granted within `--wait-timeout`. The request has ended or will end."""

    default_reason = Reason.STILL_WAITING

    def __init__(self, timeout_s: float) -> None:
        super().__init__(f"no slot was granted within {timeout_s:g} s; the request is cancelled")


async def granted(request: fg.Request, timeout_s: float | None) -> fg.Slot:
    """Returns the slot of a request. If the wait takes longer than `QUIET_S`, prints why the
    request waits.

    Args:
        request: the request to wait for.
        timeout_s: longest time to wait in seconds. If None, the time is not limited.

    Raises:
        SlotNotGranted: the slot was not granted within `timeout_s`.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    quiet = QUIET_S if timeout_s is None else min(QUIET_S, timeout_s)
    try:
        return await request.granted(quiet)
    except fg.RequestRejected as error:
        raise _not_granted(error, timeout_s) from None
    except fg.StillWaiting:
        await _say_why(request)
    if timeout_s is None:
        return await request.granted()
    try:
        return await request.granted(max(0.0, timeout_s - (loop.time() - started)))
    except fg.RequestRejected as error:
        raise _not_granted(error, timeout_s) from None
    except fg.StillWaiting:
        raise SlotNotGranted(timeout_s) from None


async def _say_why(request: fg.Request) -> None:
    try:
        explanation = await request.explain(max_executors=1)
    except (NotFound, FailedPrecondition):
        return  # the request has just ended, and `granted` raises the reason
    # If a request is placed but not granted yet, the explanation has no reason.
    reason = f" [{explanation.primary_reason}]" if explanation.primary_reason else ""
    say(
        f"finegrain: waiting for a slot: {explanation.summary}{reason}; "
        f"finegrain explain {request.allocation_id}"
    )


def _not_granted(error: fg.RequestRejected, timeout_s: float | None) -> FinegrainError:
    """Returns the error for a rejected request. The resource manager also applies `timeout_s`, and
    rejects the request after this time.
    """
    if error.reason is Reason.TIMED_OUT and timeout_s is not None:
        return SlotNotGranted(timeout_s)
    return error


async def result_of(slot: fg.Slot, task: fg.Task, signals: Signals) -> fg.TaskResult:
    """Waits for the end of a command, and returns its result. If the slot was released meanwhile,
    prints why.

    Raises:
        SlotLost, JobEnded: the slot was lost, or the job has ended.
    """
    result = await task.wait()
    if signals.ask_for_the_end or result.oom_killed or result.timed_out or result.end_reason:
        return result
    if result.signal == signal.SIGKILL and not result.cancelled:
        # A process outside the executor has killed the command, and perhaps its whole slot.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_S):
                await slot.lost.wait()
        if slot.is_lost and slot.error is not None:
            raise slot.error
    if slot.error is not None:
        say(f"finegrain: {slot.error.message} [{slot.error.reason}]")
    return result

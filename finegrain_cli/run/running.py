"""Implements the main sequence of `finegrain run`: waits for a slot, runs the command, and releases
the slot.

The module passes on input and output as unchanged bytes. `gangs.py` runs the command of a gang.
"""

from __future__ import annotations

import asyncio
import contextlib

import finegrain_client as fg
from finegrain.errors import Reason
from finegrain_cli.connection import PATIENCE_S, open_cluster_async
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.last import remember
from finegrain_cli.run.gangs import run_gang
from finegrain_cli.run.options import (
    RunOptions,
    environment_of,
    exit_code_of_task,
    report,
    start_failure,
    tell_unenforced,
)
from finegrain_cli.run.signals import EndedEarlyError, Signals
from finegrain_cli.run.streams import OutputTarget, standard_input
from finegrain_cli.run.waiting import granted, result_of
from finegrain_cli.text.output import say

OUTAGE_S = 60.0  # longest outage of the resource manager, in seconds, during which a run continues


def run_command(options: RunOptions) -> int:
    """Runs the command, and returns the exit code of `finegrain run`.

    Raises:
        FinegrainError: the command could not be run at all.
    """
    try:
        return asyncio.run(_run(options))
    except EndedEarlyError as ended:
        return ExitCode.SIGNAL + ended.number


async def _run(options: RunOptions) -> int:
    environment = environment_of(options.env)
    signals = Signals(options.grace_s)
    with contextlib.closing(OutputTarget(options.output)) as target:
        return await _run_to(target, options, environment, signals)


async def _run_to(
    target: OutputTarget, options: RunOptions, environment: dict[str, str], signals: Signals
) -> int:
    async with open_cluster_async(PATIENCE_S) as cluster:
        await cluster.info()  # with a wrong address, this call fails after 5 s, not after OUTAGE_S
    async with (
        open_cluster_async(OUTAGE_S) as cluster,
        cluster.job(
            options.name,
            group=options.group,
            after=options.after,
            labels=dict(options.job_labels),
            priority=options.priority,
        ) as job,
    ):
        if options.gang is not None:
            code = await run_gang(job, target, options, options.gang, environment, signals)
        else:
            code = await _run_one(job, target, options, environment, signals)
        if code != ExitCode.OK:
            job.fail()
        return code


async def _run_one(
    job: fg.Job,
    target: OutputTarget,
    options: RunOptions,
    environment: dict[str, str],
    signals: Signals,
) -> int:
    (request,) = await job.request_slots(options.slot)
    remember(job.job_id, request.allocation_id)
    is_told = False
    while True:
        slot = await signals.unless_ended(granted(request, options.wait_timeout_s))
        if not is_told:
            tell_unenforced(slot, options.slot)
            is_told = True
        code = await _run_in(slot, target, options, environment, signals)
        if code is not None:
            return code
        say("finegrain: a device of the slot failed; the command starts again in another slot")


async def _run_in(
    slot: fg.Slot,
    target: OutputTarget,
    options: RunOptions,
    environment: dict[str, str],
    signals: Signals,
) -> int | None:
    """Runs the command in a slot. Returns its exit code, or None if the command must be started
    again.
    """
    try:
        task = await slot.run(
            options.argv,
            env=environment,
            cwd=options.cwd,
            user=options.user,
            timeout_s=options.timeout_s,
            stdin=standard_input() if options.stdin else None,
            output=target.pass_on,
            output_limit_bytes=options.output_limit_bytes,
            hold_output=True,
        )
        signals.forward_to(task)
        result = await result_of(slot, task, signals)
    except fg.TaskNotStarted as error:
        say(f"finegrain: {error.message} [{error.reason}]")
        return start_failure(error.reason)
    except fg.SlotLost as error:
        if options.slot.restart_on_device_loss and error.reason is Reason.DEVICE_LOST:
            return None
        raise
    await slot.release(thread_end=fg.ThreadEnd.FINISHED)
    report(result, options)
    return exit_code_of_task(result)

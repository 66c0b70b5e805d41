"""Implements `finegrain run --gang`, which runs one command in every slot of a gang.

As with mpirun, the first member that fails ends all other members, and determines the exit code.
Each member gets environment variables with its index, and with the size and the id of the gang.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import finegrain_client as fg
from finegrain.errors import FinegrainError
from finegrain.ids import new_id
from finegrain_cli.last import remember
from finegrain_cli.run.options import (
    GangOptions,
    RunOptions,
    exit_code_of_task,
    report,
    start_failure,
    tell_unenforced,
)
from finegrain_cli.run.signals import Signals
from finegrain_cli.run.streams import LabelledLines, OutputTarget, standard_input
from finegrain_cli.run.waiting import granted, result_of
from finegrain_cli.text.output import say

INDEX, SIZE, ID = "FINEGRAIN_GANG_INDEX", "FINEGRAIN_GANG_SIZE", "FINEGRAIN_GANG_ID"


async def run_gang(
    job: fg.Job,
    target: OutputTarget,
    options: RunOptions,
    wanted: GangOptions,
    environment: Mapping[str, str],
    signals: Signals,
) -> int:
    """Requests all slots, runs the command in each slot, and returns the exit code of `finegrain
    run`.

    Args:
        job: the job that requests the slots.
        target: the object that writes the output of all members.
        options: the command and its slot.
        wanted: size and placement of the gang.
        environment: variables of all commands, to which the function adds the variables of the
            gang.
        signals: the object that forwards signals to all members.

    Raises:
        FinegrainError: the gang was not granted, or lost a slot.
        EndedEarlyError: a termination signal arrived before the gang was granted.
    """
    gang_id = new_id()
    requests = await job.request_slots(
        fg.GangSpec(
            replace(options.slot, count=wanted.members),
            placement=wanted.placement,
            label=wanted.label,
            timeout_s=wanted.timeout_s,
            gang_id=gang_id,
        )
    )
    remember(job.job_id, requests[0].allocation_id)
    first = await signals.unless_ended(granted(requests[0], options.wait_timeout_s))
    # The slots of the other members already exist, because a gang is granted as a whole.
    others = [await each.granted() for each in requests[1:]]
    tell_unenforced(first, options.slot)
    members = _Members([first, *others], target, gang_id, options, environment, signals)
    code = await members.run()
    with contextlib.suppress(fg.JobEnded):  # the commands have ended before their job
        await job.release(members.slots, thread_end=fg.ThreadEnd.FINISHED)
    return code


class _Members:
    """The commands of one gang, from the start of the first command until the end of the last
    command.
    """

    def __init__(
        self,
        slots: Sequence[fg.Slot],
        target: OutputTarget,
        gang_id: str,
        options: RunOptions,
        environment: Mapping[str, str],
        signals: Signals,
    ) -> None:
        self.slots = slots
        self._target = target
        self._gang_id = gang_id
        self._options = options
        self._environment = environment
        self._signals = signals
        self._tasks: dict[int, fg.Task] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._left = len(slots)
        self._code: int | None = None
        self._error: FinegrainError | None = None

    async def run(self) -> int:
        """Runs all members to their end. Returns 0, or the exit code of the first failed member.

        Raises:
            FinegrainError: the first failure had no exit code, for example because the slot was
                lost. All other members have been ended.
        """
        works = [asyncio.ensure_future(self._run_one(index)) for index in range(len(self.slots))]
        try:
            await asyncio.gather(*works)
        finally:
            for work in works:
                work.cancel()
        if self._error is not None:
            raise self._error
        return self._code or 0

    async def _run_one(self, index: int) -> None:
        """Runs one member until it has ended. If the member fails, ends all other members."""
        try:
            code = await self._code_of(index)
        except fg.TaskNotStarted as error:
            self._fail(start_failure(error.reason), f"{error.message} [{error.reason}]")
        except FinegrainError as error:
            self._fail(None, f"member {index} was lost; the other members are stopped", error)
        else:
            if code:
                self._fail(code, f"member {index} failed; the other members are stopped")
        # Decrease the number last, because `_fail` must still count this member.
        self._left -= 1

    async def _code_of(self, index: int) -> int:
        options, lines = self._options, LabelledLines(self._target, index)
        own = {INDEX: str(index), SIZE: str(len(self.slots)), ID: self._gang_id}
        task = await self.slots[index].run(
            options.argv,
            env={**self._environment, **own},
            cwd=options.cwd,
            user=options.user,
            timeout_s=options.timeout_s,
            stdin=standard_input() if options.stdin and index == 0 else None,
            output=lines,
            output_limit_bytes=options.output_limit_bytes,
            hold_output=True,
        )
        self._tasks[index] = task
        self._signals.forward_to(task)
        if self._has_failed and not self._signals.ask_for_the_end:
            self._end(task)  # another member failed while this one started
        try:
            result = await result_of(self.slots[index], task, self._signals)
        finally:
            await lines.end()
        report(result, options, index)
        return exit_code_of_task(result)

    @property
    def _has_failed(self) -> bool:
        return self._code is not None or self._error is not None

    def _fail(self, code: int | None, message: str, error: FinegrainError | None = None) -> None:
        """Records the first failure, and ends all other members. Ignores later failures."""
        if self._has_failed:
            return
        self._code, self._error = code, error
        if self._signals.ask_for_the_end:
            return  # all members have received the signal, and can end within the grace period
        if self._left > 1:
            say(f"finegrain: {message}")
        for each in self._tasks.values():
            if not each.state.has_ended:
                self._end(each)

    def _end(self, task: fg.Task) -> None:
        work = asyncio.ensure_future(_cancel(task, self._options.grace_s))
        self._ending.add(work)
        work.add_done_callback(self._ending.discard)


async def _cancel(task: fg.Task, grace_s: float) -> None:
    try:
        await task.cancel(grace_s)
    except FinegrainError:
        pass  # `_code_of` gets the error from `task.wait`

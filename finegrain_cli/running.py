"""What happens between `finegrain run` and its exit code: wait, run, forward, leave nothing behind.

Output and input are bytes and pass through unchanged. Signals that ask for an end (SIGINT, SIGTERM,
SIGHUP) go to the command first; what is still there after the grace period is killed. Other signals
are only passed on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import finegrain_client as fg
from finegrain.errors import InvalidArgument, Reason
from finegrain.units import format_bytes, format_duration
from finegrain_cli.connection import PATIENCE_S, open_cluster_async
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.output import say
from finegrain_client.types import OutputChunk

PASSED_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TERM", "TZ")
"""Variables of the caller that a command gets without asking; every LC_* likewise."""

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
OTHER_SIGNALS = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
OUTAGE_S = 60.0  # an outage of the resource manager that a run lives through
QUIET_S = 1.5  # waiting for a slot is not worth a word before
INPUT_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Everything that `finegrain run` was told."""

    argv: tuple[str, ...]
    cpu_milli: int | None
    memory_bytes: int | None
    cpu_limit_milli: int
    pids_max: int
    extended: tuple[tuple[str, int], ...]
    labels: tuple[tuple[str, str], ...]
    env: tuple[str, ...]
    cwd: str
    user: str
    name: str
    group: str
    timeout_s: float | None
    wait_timeout_s: float | None
    grace_s: float
    allow_pending: bool
    stats: bool


class EndedEarlyError(Exception):
    """A signal asked for the end before there was a command to pass it to."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def run_command(options: RunOptions) -> int:
    """Runs it and returns the exit code of `finegrain run`.

    Raises:
        FinegrainError: the command could not be run at all.
    """
    try:
        return asyncio.run(_run(options))
    except EndedEarlyError as ended:
        return ExitCode.SIGNAL + ended.number


async def _run(options: RunOptions) -> int:
    environment = environment_of(options.env)
    signals = _Signals(options.grace_s)
    async with open_cluster_async(PATIENCE_S) as cluster:
        await cluster.info()  # one who has mistyped the address learns it soon
    async with (
        open_cluster_async(OUTAGE_S) as cluster,
        cluster.job(options.name, group=options.group) as job,
    ):
        request = (await job.request_slots(_spec(options)))[0]
        slot = await signals.unless_ended(_wait(request, options.wait_timeout_s))
        try:
            task = await slot.run(
                options.argv,
                env=environment,
                cwd=options.cwd,
                user=options.user,
                timeout_s=options.timeout_s,
                stdin=_standard_input(),
                output=_pass_on,
            )
        except fg.TaskNotStarted as error:
            say(f"finegrain: {error.message} [{error.reason}]")
            return _start_failure(error.reason)
        signals.forward_to(task)
        result = await task.wait()
        await slot.release()
    return _report(result, options)


def _spec(options: RunOptions) -> fg.SlotSpec:
    return fg.SlotSpec(
        cpu_milli=options.cpu_milli,
        memory_bytes=options.memory_bytes,
        cpu_limit_milli=options.cpu_limit_milli,
        pids_max=options.pids_max,
        extended=dict(options.extended),
        labels=dict(options.labels),
        allow_pending=options.allow_pending,
    )


async def _wait(request: fg.Request, timeout_s: float | None) -> fg.Slot:
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


def environment_of(wanted: tuple[str, ...]) -> dict[str, str]:
    """The command's environment: a few variables of the caller, and what `--env` says.

    Raises:
        InvalidArgument: a name is empty, or a variable to pass on is not set here.
    """
    result = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED_VARIABLES or name.startswith("LC_")
    }
    for text in wanted:
        name, given, value = text.partition("=")
        if not name or (not given and name not in os.environ):
            raise InvalidArgument("--env", text, "KEY=VALUE, or KEY of a variable that is set")
        result[name] = value if given else os.environ[name]
    return result


class _Signals:
    """Where signals go: to whoever waits for the slot, later to the command."""

    def __init__(self, grace_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._grace_s = grace_s
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._background: set[asyncio.Task[None]] = set()
        for number in ENDING_SIGNALS:
            self._handle(number, self._end_early)

    async def unless_ended(self, waiting: Coroutine[Any, Any, fg.Slot]) -> fg.Slot:
        """The slot, or EndedEarlyError as soon as a signal asks for the end."""
        work = asyncio.ensure_future(waiting)
        either: set[asyncio.Future[Any]] = {work, self._ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not self._ended.done():
            return await work
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        raise EndedEarlyError(self._ended.result())

    def forward_to(self, task: fg.Task) -> None:
        """From now on signals go to the command; one that came meanwhile, too."""
        for number in (*ENDING_SIGNALS, *OTHER_SIGNALS):
            self._handle(number, lambda number: self._forward(task, number))
        if self._ended.done():
            self._forward(task, self._ended.result())

    def _handle(self, number: int, handler: Callable[[int], None]) -> None:
        self._loop.add_signal_handler(number, handler, number)

    def _end_early(self, number: int) -> None:
        if not self._ended.done():
            self._ended.set_result(number)

    def _forward(self, task: fg.Task, number: int) -> None:
        work = self._end(task, number) if number in ENDING_SIGNALS else task.signal(number)
        running = asyncio.ensure_future(work)
        self._background.add(running)
        running.add_done_callback(self._background.discard)

    async def _end(self, task: fg.Task, number: int) -> None:
        await task.signal(number)
        await asyncio.sleep(self._grace_s)
        await task.cancel(grace_s=0.0)


def _pass_on(chunk: OutputChunk) -> None:
    stream = sys.stdout if chunk.stream == "stdout" else sys.stderr
    try:
        stream.buffer.write(chunk.data)
        stream.buffer.flush()
    except BrokenPipeError:
        # Nobody reads any more: end, once, as a command at the head of a pipe does. What still
        # comes goes nowhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        os.kill(os.getpid(), signal.SIGTERM)


def _standard_input() -> AsyncIterator[bytes] | None:
    """Our standard input as chunks; None where there is none, or a terminal that others use."""
    try:
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        os.fstat(0)
    except OSError:
        return None
    return _read_input()


async def _read_input() -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    while True:
        ready = asyncio.Event()
        try:
            loop.add_reader(0, ready.set)
        except PermissionError:  # a plain file is always ready
            ready.set()
        try:
            await ready.wait()
        finally:
            loop.remove_reader(0)
        data = os.read(0, INPUT_CHUNK_BYTES)
        if not data:
            return
        yield data


def _start_failure(reason: Reason) -> int:
    if reason is Reason.COMMAND_NOT_FOUND:
        return ExitCode.NOT_FOUND_COMMAND
    if reason is Reason.COMMAND_NOT_EXECUTABLE:
        return ExitCode.NOT_EXECUTABLE
    return ExitCode.RUN_FAILED


def _report(result: fg.TaskResult, options: RunOptions) -> int:
    if result.oom_killed or result.timed_out:
        say(f"finegrain: the command {result.how}")
    if result.dropped_bytes:
        say(f"finegrain: {result.dropped_bytes} bytes of output were dropped: the log was full")
    if options.stats:
        peak = format_bytes(result.peak_memory_bytes) if result.peak_memory_bytes else "unknown"
        say(f"finegrain: peak memory {peak}, cpu time {format_duration(result.cpu_time_s)}")
    return ExitCode.SIGNAL + result.signal if result.signal else result.exit_code

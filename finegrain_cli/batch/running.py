"""Implements the main sequence of `finegrain batch`: starts, continues, follows or stops a batch,
and reports the result.

This module also chooses exit codes. The first Ctrl-C stops the batch in an orderly way. A second
Ctrl-C ends this process at once. In both cases, the batch can be continued later.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import AlreadyExists, ConfigurationError, FinegrainError, Reason
from finegrain_cli.batch import attached, detached
from finegrain_cli.batch.naming import command_for, short_name, state_file_of
from finegrain_cli.batch.progress import Display, display
from finegrain_cli.batch.results import batch_dict, print_outcome, write_results
from finegrain_cli.common import HINTS
from finegrain_cli.connection import PATIENCE_S, open_cluster_async
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.last import remembering
from finegrain_cli.text.output import OutputFormat, print_error, print_object, say
from finegrain_cli.two_signals import TwoSignals
from finegrain_client.batch.job import BatchJob
from finegrain_client.batch.state_file import StateFile
from finegrain_client.batch.status import BatchStatus, default_state_file, read_status
from finegrain_client.batch.values import BatchState

if TYPE_CHECKING:
    from finegrain_client.batch.spec import BatchSpec

# time limit in seconds of one call with all its retries; after this time, the runner starts a new
# call
OUTAGE_S = 60.0
COMPANION_SUFFIXES = ("-wal", "-shm", ".lock", detached.LOG)
"""Suffixes of the files that are removed together with a state file."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """The options of the command that do not describe the batch."""

    form: OutputFormat
    quiet: bool = False
    detach: bool = False
    retry_failed: bool = False


def start(spec: BatchSpec, state: str, results: str, options: BatchOptions) -> int:
    """Starts a new batch and returns the exit code.

    Args:
        spec: the batch.
        state: path of the state file. If empty, the function makes a new file in the default
            folder.
        results: directory for results. If empty, no results are written.
        options: the options of the command.

    Raises:
        FinegrainError: the batch could not be started. Its files have been removed.
    """
    asyncio.run(check_connection())
    path = Path(state).absolute() if state else default_state_file(spec.name)
    results_dir = Path(results).absolute() if results else None
    # Close the file at once, because the runner opens it again, perhaps in another process.
    StateFile.create(path, spec, results_dir).close()
    try:
        return _detached(path, options, is_new=True) if options.detach else work_on(path, options)
    except FinegrainError:
        _remove_unless_started(path)
        raise


def attach(name: str, options: BatchOptions) -> int:
    """Follows a batch if a process works on the batch. Otherwise, continues the batch.

    Raises:
        FinegrainError: there is no such batch, or it cannot be continued.
    """
    path = state_file_of(name)
    if options.detach and (batch := read_status(path)).is_worked_on:
        return _print_detached(batch, options, f"pid {batch.runner_pid} runs it already")
    # Another process possibly resumes the batch after this process has read the status. In this
    # case, follow the batch again.
    while True:
        try:
            batch = attached.follow(path, quiet=options.quiet)
        except KeyboardInterrupt:
            return ExitCode.SIGNAL + signal.SIGINT
        again = options.retry_failed and batch.progress.failed
        if batch.progress.state is BatchState.ENDED and not again:
            return _report_outcome(batch, options)
        try:
            return _detached(path, options) if options.detach else work_on(path, options)
        except AlreadyExists as error:
            if error.reason is not Reason.STORE_IN_USE:
                raise
            say("finegrain: another process has just resumed the batch")


def stop(name: str, options: BatchOptions) -> int:
    """Interrupts the runner of a batch, waits until the runner has ended, and prints the state of
    the batch.

    Raises:
        FinegrainError: there is no such batch, or its runner cannot be stopped.
    """
    path = state_file_of(name)
    batch = attached.stop(path)
    if batch.progress.state is not BatchState.ENDED:
        asyncio.run(_end_leftover_job(path))
    print_outcome(batch, options.form)
    if batch.progress.state is not BatchState.ENDED:
        say(f"finegrain: stopped; resume with {command_for(path)}")
    return ExitCode.OK


def work_on(path: Path, options: BatchOptions) -> int:
    """Runs a batch in this process, prints the outcome, and returns the exit code.

    The caller has checked that no other process works on the batch. The function returns when the
    batch is done or stopped, or after Ctrl-C.

    Raises:
        FinegrainError: the batch could not be continued.
    """
    spec = read_status(path).spec
    try:
        with display(spec.name, spec.threads, quiet=options.quiet) as shown:
            interrupted = asyncio.run(_work(path, shown, retry_failed=options.retry_failed))
    except OSError as error:
        raise _write_error(error, path) from None
    batch = read_status(path)
    if interrupted and batch.progress.state is not BatchState.ENDED:
        _keep_results(batch)
        print_outcome(batch, options.form)
        say(f"finegrain: stopped; resume with {command_for(path)}")
        return ExitCode.SIGNAL + interrupted
    return _report_outcome(batch, options)


async def _work(path: Path, shown: Display, *, retry_failed: bool) -> int:
    """Works on the batch. Returns the number of the termination signal that arrived, or 0."""
    async with open_cluster_async(OUTAGE_S) as cluster:
        job = BatchJob(cluster, state_file=path)
        # keep a reference to the future here, because asyncio has only weak references
        cancelling: list[asyncio.Future[None]] = []

        def stop() -> None:
            cancelling.append(asyncio.ensure_future(job.cancel()))
            shown.say("finegrain: stopping running tasks; repeat the signal to stop immediately")

        def stop_at_once() -> None:
            shown.close()
            say(f"finegrain: stopped immediately; resume with {command_for(path)}")

        signals = TwoSignals(stop, stop_at_once)
        show = remembering(shown.show, lambda: read_status(path).job_id)
        await job.run(show, retry_failed=retry_failed)
        return signals.first


async def _end_leftover_job(path: Path) -> None:
    """Ends the job of a runner that was killed before it could end the job itself."""
    async with open_cluster_async(PATIENCE_S) as cluster:
        await BatchJob(cluster, state_file=path).cancel()


async def check_connection() -> None:
    """Connects once, so that a wrong address causes an error before a file is created."""
    async with open_cluster_async(PATIENCE_S) as cluster:
        await cluster.info()


def _detached(path: Path, options: BatchOptions, *, is_new: bool = False) -> int:
    if options.retry_failed:
        with closing(StateFile.open(path)) as file:
            file.forget_failures()
    try:
        batch = detached.start_detached(path)
    except detached.NotStartedError as error:
        if is_new:
            _remove_unless_started(path)
        print_error(error, options.form, HINTS.get(error.reason, ""))
        return error.exit_code
    return _print_detached(batch, options, f"its log is {detached.log_file_of(path)}")


def _print_detached(batch: BatchStatus, options: BatchOptions, where: str) -> int:
    path = Path(batch.state_file)
    shown = {**batch_dict(batch), "log_file": str(detached.log_file_of(path))}
    print_object("BatchBegun", shown, options.form, short_name(batch))
    say(f"finegrain: {command_for(path)} shows its progress; {where}")
    return ExitCode.OK


def _remove_unless_started(path: Path) -> None:
    """If the batch never had a job, removes the state file, because there is nothing to
    continue.
    """
    with suppress(FinegrainError):
        batch = read_status(path)
        if not (batch.job_id or batch.is_worked_on):
            for left in ("", *COMPANION_SUFFIXES):
                path.with_name(path.name + left).unlink(missing_ok=True)


def _keep_results(batch: BatchStatus) -> None:
    try:
        write_results(batch)
    except OSError as error:
        raise _write_error(error, Path(batch.state_file)) from None


def _write_error(error: OSError, path: Path) -> ConfigurationError:
    where = error.filename or path
    return ConfigurationError(
        f"{where} cannot be written: {error.strerror or error}; fix that, then resume with "
        f"{command_for(path)}",
        details={"path": where},
    )


def _report_outcome(batch: BatchStatus, options: BatchOptions) -> int:
    """Prints how a batch ended, and returns the exit code."""
    _keep_results(batch)
    print_outcome(batch, options.form)
    progress = batch.progress
    if progress.done == progress.threads:
        return ExitCode.OK
    path = Path(batch.state_file)
    again = command_for(path) + (" --retry-failed" if progress.failed else "")
    left = progress.threads - progress.done
    what = "1 thread is" if left == 1 else f"{left} threads are"
    say(f"finegrain: {what} not done; resume with {again}")
    return ExitCode.THREADS_FAILED

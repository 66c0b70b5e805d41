"""Implements the main sequence of `finegrain job run`: starts, continues, follows or cancels a job.

The first Ctrl-C cancels the job. A second Ctrl-C ends this process at once. In this case, the job
can be continued later.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finegrain.errors import AlreadyExists, FinegrainError, Reason
from finegrain_cli.batch import attached, detached
from finegrain_cli.batch.running import COMPANION_SUFFIXES, OUTAGE_S, check_connection
from finegrain_cli.common import HINTS
from finegrain_cli.connection import open_cluster_async
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.job.naming import command_for, state_file_of
from finegrain_cli.job.text import job_dict, print_outcome, progress_text
from finegrain_cli.last import remembering
from finegrain_cli.text.output import OutputFormat, print_error, print_object, say
from finegrain_cli.two_signals import TwoSignals
from finegrain_client.graph_run.graph_job import GraphJob
from finegrain_client.graph_run.state_file import GraphStateFile
from finegrain_client.graph_run.status import (
    GraphJobStatus,
    read_job_status,
)
from finegrain_client.graph_run.values import GraphState
from finegrain_client.state_folder import JOBS

if TYPE_CHECKING:
    from finegrain_client.graph_run.spec import GraphRunSpec
    from finegrain_client.graph_run.values import GraphProgress

LINE_EVERY_S = 1.0
POLL_INTERVAL_S = 0.5


@dataclass(frozen=True, slots=True)
class JobRunOptions:
    """The options of the command that do not describe the job."""

    form: OutputFormat
    quiet: bool = False
    detach: bool = False


def start(spec: GraphRunSpec, state: str, options: JobRunOptions) -> int:
    """Starts a new job and returns the exit code.

    Raises:
        FinegrainError: the job could not be started. Its files have been removed.
    """
    asyncio.run(check_connection())
    path = Path(state).absolute() if state else JOBS.new_file(spec.plan.name)
    # Close the file at once, because the runner opens it again, perhaps in another process.
    GraphStateFile.create(path, spec).close()
    try:
        return _detached(path, options) if options.detach else work_on(path, options)
    finally:
        _remove_unless_started(path)


def attach(name: str, options: JobRunOptions) -> int:
    """Follows a job if a process works on the job. Otherwise, continues the job.

    Raises:
        FinegrainError: there is no such job, or it cannot be continued.
    """
    path = state_file_of(name)
    while True:
        job = read_job_status(path)
        if job.is_worked_on:
            if options.detach:
                return _print_detached(job, options)
            try:
                job = _follow(path, options)
            except KeyboardInterrupt:
                again, end = command_for(path), command_for(path, "run --stop")
                say(
                    f"finegrain: the job continues in the background; {again} shows it again, "
                    f"{end} cancels it"
                )
                return ExitCode.SIGNAL + signal.SIGINT
        if job.state is not GraphState.OPEN:
            return _report_outcome(job, options)
        try:
            return _detached(path, options) if options.detach else work_on(path, options)
        except AlreadyExists as error:
            # Another process has just resumed the job, so follow the job.
            if error.reason is not Reason.STORE_IN_USE:
                raise


def stop(name: str, options: JobRunOptions) -> int:
    """Cancels a job. If a process works on the job, interrupts this process first.

    Raises:
        FinegrainError: there is no such job, or its runner cannot be stopped.
    """
    path = state_file_of(name)
    job = attached.stop_runner(lambda: read_job_status(path), "job")
    if job.state is GraphState.OPEN:
        asyncio.run(_cancel_left_job(path))
    print_outcome(read_job_status(path), options.form)
    return ExitCode.OK


def work_on(path: Path, options: JobRunOptions) -> int:
    """Runs a job in this process, prints the outcome, and returns the exit code.

    Raises:
        FinegrainError: the job could not be continued.
    """
    lines = _Lines(path.stem, quiet=options.quiet)
    interrupted = asyncio.run(_work(path, lines.show))
    lines.close()
    code = _report_outcome(read_job_status(path), options)
    return ExitCode.SIGNAL + interrupted if interrupted and code else code


async def _work(path: Path, show: Callable[[GraphProgress], None]) -> int:
    """Works on the job. Returns the number of the termination signal that arrived, or 0."""
    async with open_cluster_async(OUTAGE_S) as cluster:
        job = GraphJob(cluster, state_file=path)

        def cancel() -> None:
            job.cancel()
            say("finegrain: cancelling the job; repeat the signal to stop immediately")

        def stop_at_once() -> None:
            say(f"finegrain: stopped immediately; resume with {command_for(path)}")

        signals = TwoSignals(cancel, stop_at_once)
        await job.run(remembering(show, lambda: read_job_status(path).job_id))
        return signals.first


async def _cancel_left_job(path: Path) -> None:
    """Cancels a job whose runner was killed."""
    async with open_cluster_async(OUTAGE_S) as cluster:
        job = GraphJob(cluster, state_file=path)
        job.cancel()
        await job.run()


class _Lines:
    """Prints progress on standard error when it has changed, at most one line every `LINE_EVERY_S`
    seconds.
    """

    def __init__(self, name: str, *, quiet: bool) -> None:
        self._name, self._quiet = name, quiet
        self._latest = self._printed = ""
        self._next_s = 0.0

    def show(self, progress: GraphProgress) -> None:
        self._latest = progress_text(progress)
        if time.monotonic() >= self._next_s:
            self.close()

    def close(self) -> None:
        """Prints the last progress, unless it was already printed."""
        if self._latest != self._printed and not self._quiet:
            say(f"finegrain: {self._name}: {self._latest}")
            self._next_s = time.monotonic() + LINE_EVERY_S
        self._printed = self._latest


def _follow(path: Path, options: JobRunOptions) -> GraphJobStatus:
    lines = _Lines(path.stem, quiet=options.quiet)
    while (job := read_job_status(path)).is_worked_on:
        lines.show(job.progress)
        time.sleep(POLL_INTERVAL_S)
    lines.show(job.progress)
    lines.close()
    return job


def _detached(path: Path, options: JobRunOptions) -> int:
    def has_started(pid: int) -> bool:
        job = read_job_status(path)
        return job.runner_pid == pid and bool(job.job_id)

    try:
        detached.start_runner(["job", "run", "--runner", str(path)], path, has_started)
    except detached.NotStartedError as error:
        print_error(error, options.form, HINTS.get(error.reason, ""))
        return error.exit_code
    return _print_detached(read_job_status(path), options)


def _print_detached(job: GraphJobStatus, options: JobRunOptions) -> int:
    path = Path(job.state_file)
    log = detached.log_file_of(path)
    print_object("JobRunBegun", {**job_dict(job), "log_file": str(log)}, options.form, path.stem)
    say(f"finegrain: {command_for(path)} shows its progress; its log is {log}")
    return ExitCode.OK


def _remove_unless_started(path: Path) -> None:
    """If the job was never registered, removes the state file, because there is nothing to
    continue.
    """
    try:
        job = read_job_status(path)
    except FinegrainError:
        return
    if not (job.job_id or job.is_worked_on):
        for left in ("", *COMPANION_SUFFIXES):
            path.with_name(path.name + left).unlink(missing_ok=True)


def _report_outcome(job: GraphJobStatus, options: JobRunOptions) -> int:
    """Prints how a job ended, and returns the exit code."""
    print_outcome(job, options.form)
    return ExitCode.OK if job.state is GraphState.FINISHED else ExitCode.THREADS_FAILED

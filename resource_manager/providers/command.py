"""The command provider: starts and stops executors with commands that the administrator configures.

This module fills the administrator's templates, runs them and interprets their exit status. Before
a command runs, this module writes a record to disk, which the code calls a note. The note names the
process of the command, and says how to stop the executor. So a resource manager that starts after a
crash can stop the process and the executor, even if the shape is not configured any more.

    <directory>/notes/ID.json      the executor's shape and handle, and how to stop it
    <directory>/output/ID.start    the start command, its exit status and output; also .stop and
                                   .status; only the newest files are kept
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from finegrain.config_table import ConfigTable
from finegrain.logs import get_logger
from resource_manager.providers.command_config import (
    CommandSettings,
    CommandShape,
    read_command_shape,
    read_settings,
)
from resource_manager.providers.command_environment import environment_of, values_of
from resource_manager.providers.command_run import (
    Outcome,
    StillRuns,
    end_group,
    last_lines,
    run_command,
)
from resource_manager.providers.command_template import HANDLE, fill, uses_handle
from resource_manager.providers.notes import keep_newest, read_json, write_durably
from resource_manager.providers.process_tree import Process, boot_id
from resource_manager.providers.provider import (
    ConfiguredShape,
    Observation,
    Presence,
    ProviderContext,
    ProviderFailed,
    ReadShape,
    Started,
)
from resource_manager.providers.threads import Cancellation, in_thread

FOLDER = "provided/command"
CHECKS_AT_ONCE_MAX = 4
OUTPUTS_KEPT_MAX = 300
HANDLE_LENGTH_MAX = 256

_log = get_logger("finegrain.rm.providers.command")


@dataclass(slots=True)
class _Note:
    """The record of one executor on disk, with all data that is needed to stop the executor."""

    shape: str
    stop: list[str]
    values: dict[str, str]
    stop_gone: list[int]
    timeout_ms: int
    handle: str = ""
    running: dict[str, Any] | None = None  # boot id, pid and start time of the running command


class CommandKind:
    """Decodes the configuration of the command provider and creates it."""

    def read_common(self, table: ConfigTable) -> CommandSettings:
        """Decodes the table [command]."""
        return read_settings(table)

    def read_shape(self, table: ConfigTable, name: str) -> ReadShape:
        """Decodes the table [shape.command]."""
        del name
        return ReadShape(read_command_shape(table))

    def check(self, common: Any, shapes: Mapping[str, Any], file: Path) -> None:
        """Checks nothing, because shapes of this provider do not depend on each other."""

    def make(
        self,
        common: CommandSettings,
        shapes: Sequence[ConfiguredShape],
        context: ProviderContext,
    ) -> CommandProvider:
        """Creates the provider."""
        return CommandProvider(common, shapes, context)


class CommandProvider:
    """Implements `Provider` with the administrator's commands; see the module."""

    def __init__(
        self,
        settings: CommandSettings,
        shapes: Sequence[ConfiguredShape],
        context: ProviderContext,
    ) -> None:
        self._shapes = {each.shape.name: each for each in shapes}
        self._context = context
        self.directory = (settings.directory or context.state_dir / FOLDER).absolute()
        self._hanging: dict[str, Process] = {}  # status commands that could not be killed
        # The number of threads is the number of commands that can run at the same time. Further
        # commands wait for a thread.
        self._runs = ThreadPoolExecutor(settings.run_at_once_max, thread_name_prefix="command")
        self._status_threads = ThreadPoolExecutor(
            CHECKS_AT_ONCE_MAX, thread_name_prefix="command-status"
        )

    async def start(self, executor_id: str, shape: str, *, again: bool) -> Started:
        """See `Provider`. With `again`, the stop command runs first."""
        return await in_thread(
            self._runs, lambda cancellation: self._start(executor_id, shape, again, cancellation)
        )

    async def stop(self, executor_id: str, shape: str, handle: str) -> str:
        """See `Provider`."""
        return await in_thread(
            self._runs, lambda cancellation: self._stop(executor_id, shape, handle, cancellation)
        )

    async def status(self, executor_id: str, shape: str, handle: str) -> Observation:
        """See `Provider`. Without a status command the result is UNKNOWN."""
        own = self._shapes.get(shape)
        if own is None or not own.settings.status:
            return Observation(Presence.UNKNOWN)
        return await in_thread(
            self._status_threads,
            lambda cancellation: self._status(executor_id, own, handle, cancellation),
        )

    def owns(self, executor_id: str) -> bool:
        """See `Provider`."""
        return self._note_file(executor_id).exists()

    def noted(self) -> list[str]:
        """See `Provider`."""
        with suppress(OSError):
            names = [path.name for path in (self.directory / "notes").iterdir()]
            return [
                name.removesuffix(".json")
                for name in names
                if name.endswith(".json") and not name.startswith(".")
            ]
        return []

    async def close(self) -> None:
        """See `Provider`."""
        self._runs.shutdown(wait=False)
        self._status_threads.shutdown(wait=False)

    def _start(
        self, executor_id: str, shape: str, again: bool, cancellation: Cancellation
    ) -> Started:
        own = self._shapes.get(shape)
        if own is None:
            raise ProviderFailed(f"shape {shape} is no longer configured")
        settings: CommandShape = own.settings
        # An executor with this id possibly runs already. It is stopped first, so that exactly one
        # executor with this id runs afterwards.
        if again or self.owns(executor_id):
            self._stop(executor_id, shape, "", cancellation)
        note = self._fresh_note(executor_id, own)
        words = fill(settings.start, note.values)
        outcome = self._run(executor_id, "start", words, note, cancellation)
        # A command that was killed can also exit with 0.
        if outcome.exit_code != 0 or outcome.ended_because:
            raise _failed("start", executor_id, outcome)
        note.handle = _handle(settings, executor_id, outcome)
        # Write the note before the check below: the resource manager calls `stop` after a failure,
        # and `stop` uses the note.
        self._write_note(executor_id, note)
        if not note.handle:
            raise ProviderFailed(
                f"the start command of {executor_id} succeeded, but its output does not match "
                f"{settings.handle_pattern or settings.handle}; its last output: "
                f"{last_lines(outcome.stdout) or 'nothing'}",
                details={"executor_id": executor_id},
            )
        output = last_lines(outcome.stdout) or last_lines(outcome.stderr)
        return Started(note.handle, output or "the start command succeeded")

    def _stop(self, executor_id: str, shape: str, handle: str, cancellation: Cancellation) -> str:
        note = self._note(executor_id)
        own = self._shapes.get(shape)
        if own is not None:  # the current configuration overrides the note
            fresh = self._fresh_note(executor_id, own)
            known = note.handle if note else ""
            running = note.running if note else None
            # The handle of the executor, and a command that possibly still runs, are only in the
            # old note.
            note = replace(fresh, handle=known or fresh.handle, running=running)
        if note is None:
            raise ProviderFailed(
                f"shape {shape} is not configured, and there is no record of how to stop executor "
                f"{executor_id}; configure the shape again, or set [command] directory to its "
                "former value",
                details={"executor_id": executor_id, "shape": shape},
            )
        # An earlier command that still runs is ended first. Otherwise that command could start the
        # executor after the stop command.
        _end_running(executor_id, note)
        note.handle = handle or note.handle
        if uses_handle(note.stop) and not note.handle:
            # The start command printed no handle, so there is nothing to pass to the stop command.
            _log.warning("nothing_to_stop", executor_id=executor_id, reason="no handle is known")
            self._forget(executor_id)
            return "the start command printed no handle"
        words = fill(note.stop, {**note.values, HANDLE: note.handle})
        outcome = self._run(executor_id, "stop", words, note, cancellation)
        # `stop_gone` contains the exit statuses with which the stop command reports that there is
        # nothing to stop.
        if outcome.ended_because or outcome.exit_code not in (0, *note.stop_gone):
            raise _failed("stop", executor_id, outcome)
        # Delete the note only after success, because after a failure the next attempt needs the
        # note.
        self._forget(executor_id)
        return last_lines(outcome.stdout)

    def _status(
        self, executor_id: str, own: ConfiguredShape, handle: str, cancellation: Cancellation
    ) -> Observation:
        settings: CommandShape = own.settings
        # No second status command is started while the previous status command hangs. Otherwise
        # each check could leave another process that cannot be killed.
        hanging = self._hanging.get(executor_id)
        if hanging is not None and hanging.is_running():
            return Observation(Presence.UNKNOWN, f"status: process {hanging.pid} still runs")
        self._hanging.pop(executor_id, None)
        if uses_handle(settings.status) and not handle:
            # The executor can register before the start command has ended. Until the command ends,
            # the resource manager does not know the handle.
            note = self._note(executor_id) or self._fresh_note(executor_id, own)
            if not (handle := note.handle):
                return Observation(Presence.UNKNOWN, "no handle is known")
        values = {**values_of(executor_id, own, self._context), HANDLE: handle}
        words = fill(settings.status, values)
        try:
            outcome = run_command(
                words,
                environment_of(values, own),
                settings.timeout_ms / 1000,
                cancellation=cancellation,
                secret=self._context.token(executor_id),
            )
        except OSError as error:
            return Observation(Presence.UNKNOWN, f"{words[0]} cannot be started: {error.strerror}")
        except StillRuns as error:
            self._hanging[executor_id] = error.process
            return Observation(Presence.UNKNOWN, f"status: {error}")
        if outcome.ended_because:
            return Observation(Presence.UNKNOWN, f"status: {outcome.summary}")
        # Without a pattern, only the exit status decides.
        pattern = settings.status_running_pattern
        if outcome.exit_code == 0 and (not pattern or re.search(pattern, outcome.stdout)):
            return Observation(Presence.RUNS)
        self._keep_output(executor_id, "status", outcome)
        # Any other exit status is possibly an error of the status command itself, such as a missing
        # network.
        if outcome.exit_code == 0 or outcome.exit_code in settings.status_gone:
            return Observation(Presence.ENDED, f"status: {outcome.summary}")
        return Observation(Presence.UNKNOWN, f"status: {outcome.summary}")

    def _run(
        self,
        executor_id: str,
        what: str,
        words: list[str],
        note: _Note,
        cancellation: Cancellation,
    ) -> Outcome:
        """Runs a start or stop command. While it runs, a note on disk names its process.

        Raises:
            ProviderFailed: the command cannot be started or killed, or the note cannot be written.
        """
        # Write the note before the command starts. Then `stop` works even if the resource manager
        # crashes at any later moment.
        self._write_note(executor_id, note)

        # `run_command` calls this function before the program runs. So the program never runs
        # without a note.
        def noted(process: Process) -> None:
            note.running = {"boot_id": boot_id(), **asdict(process)}
            self._write_note(executor_id, note)

        values = {**note.values, HANDLE: note.handle}
        own = self._shapes.get(note.shape)
        try:
            outcome = run_command(
                words,
                environment_of(values, own),
                note.timeout_ms / 1000,
                cancellation=cancellation,
                secret=self._context.token(executor_id),
                started=noted,
            )
        except OSError as error:
            raise ProviderFailed(
                f"the {what} command of {executor_id}: {words[0]} cannot be started: "
                f"{error.strerror}",
                details={"executor_id": executor_id},
            ) from None
        # the note stays on disk, because the next call must end the process that it names
        except StillRuns as error:
            raise ProviderFailed(
                f"the {what} command of {executor_id} took too long or is no longer needed, and "
                f"{error}",
                details={"executor_id": executor_id},
            ) from None
        # The command has ended, so no later attempt must look for its process.
        note.running = None
        self._write_note(executor_id, note)
        self._keep_output(executor_id, what, outcome)
        _log.info(
            "command_ended",
            executor_id=executor_id,
            what=what,
            exit_code=outcome.exit_code,
            seconds=round(outcome.seconds, 3),
            ended_because=outcome.ended_because,
        )
        return outcome

    def _note_file(self, executor_id: str) -> Path:
        return self.directory / "notes" / f"{executor_id}.json"

    def _note(self, executor_id: str) -> _Note | None:
        content = read_json(self._note_file(executor_id))
        try:
            return _Note(**content) if content else None
        except TypeError:
            # A note of another version or a damaged note counts as missing.
            return None

    def _fresh_note(self, executor_id: str, own: ConfiguredShape) -> _Note:
        settings: CommandShape = own.settings
        # This note is computed only from the configuration; `_stop` adds data of an older note.
        by_name = settings.handle == "executor_id" and not settings.handle_pattern
        return _Note(
            shape=own.shape.name,
            stop=list(settings.stop),
            values=values_of(executor_id, own, self._context),
            stop_gone=list(settings.stop_gone),
            timeout_ms=settings.timeout_ms,
            handle=executor_id if by_name else "",
        )

    def _write_note(self, executor_id: str, note: _Note) -> None:
        path = self._note_file(executor_id)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, json.dumps(asdict(note)))
        except OSError as error:
            raise ProviderFailed(
                f"the directory {self.directory} cannot be written: {error.strerror}",
                details={"directory": self.directory},
            ) from None

    def _forget(self, executor_id: str) -> None:
        self._hanging.pop(executor_id, None)
        with suppress(OSError):
            self._note_file(executor_id).unlink(missing_ok=True)

    def _keep_output(self, executor_id: str, what: str, outcome: Outcome) -> None:
        """Saves the output for people. If the output cannot be written, it is dropped."""
        folder = self.directory / "output"
        text = (
            f"command: {json.dumps(outcome.argv)}\n{outcome.summary}\n"
            f"--- standard output\n{outcome.stdout}\n--- standard error\n{outcome.stderr}\n"
        )
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / f"{executor_id}.{what}").write_text(text, encoding="utf-8", errors="replace")
        keep_newest(folder, OUTPUTS_KEPT_MAX)


def _end_running(executor_id: str, note: _Note) -> None:
    """Ends the command that the note names, if that command still runs. An earlier call or an
    earlier resource manager started the command.

    Raises:
        ProviderFailed: the command cannot be ended.
    """
    running = note.running
    # After a reboot, the pid in the note belongs to another process.
    if running and running.get("boot_id") == boot_id():
        process = Process(int(running["pid"]), int(running["start_ticks"]))
        if process.is_running():
            end_group(process.pid)
        if process.is_running():
            raise ProviderFailed(
                f"a command of {executor_id} that was started earlier is still running: "
                f"{StillRuns(process)}",
                details={"executor_id": executor_id},
            )
    note.running = None


def _handle(settings: CommandShape, executor_id: str, outcome: Outcome) -> str:
    """Extracts the handle from the output of the start command. The handle is empty if the pattern
    does not match.
    """
    if settings.handle_pattern:
        match = re.search(settings.handle_pattern, outcome.stdout, re.MULTILINE)
        found = (match[1] if match.re.groups else match[0]) if match else ""
    elif settings.handle == "last_line":
        found = next((x.strip() for x in reversed(outcome.stdout.splitlines()) if x.strip()), "")
    else:
        found = executor_id
    # The handle goes into logs, commands and the store, so it must be short and printable.
    printable = "".join(each for each in found or "" if each.isprintable())
    return printable[:HANDLE_LENGTH_MAX]


def _failed(what: str, executor_id: str, outcome: Outcome) -> ProviderFailed:
    return ProviderFailed(
        f"the {what} command of {executor_id} failed: {outcome.summary}",
        details={"executor_id": executor_id, "exit_code": outcome.exit_code},
    )

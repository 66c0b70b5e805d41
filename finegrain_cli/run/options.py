"""Defines the options of `finegrain run`, and the code that single commands and gangs have in
common.

The shared code determines a command's environment and exit code, and prints the report at the end
of the command.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import finegrain_client as fg
from finegrain.errors import InvalidArgument, Reason
from finegrain.units import format_bytes, format_duration
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.text.output import say

PASSED_VARIABLES = ("PATH", "LANG", "LANGUAGE", "TERM", "TZ")
"""Variables of the caller that a command gets by default. A command also gets every LC_*
variable.
"""


@dataclass(frozen=True, slots=True)
class GangOptions:
    """Options of a gang: `--gang`, and the options that need `--gang`."""

    members: int
    placement: str  # one of "ANYWHERE", "SAME_EXECUTOR", "SAME_LABEL" and "SPREAD"
    label: str
    timeout_s: float | None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """All options of `finegrain run`."""

    argv: tuple[str, ...]
    slot: fg.SlotSpec
    env: tuple[str, ...]
    cwd: str
    user: str
    name: str
    group: str
    priority: int
    timeout_s: float | None
    wait_timeout_s: float | None
    grace_s: float
    stats: bool
    stdin: bool = False
    output: str = ""  # a file for the output; if empty, the streams of this process are used
    output_limit_bytes: int = 0  # if 0, the executor's limit applies
    gang: GangOptions | None = None
    job_labels: tuple[tuple[str, str], ...] = ()
    after: tuple[fg.JobDependency, ...] = ()  # jobs that must end before the command starts


def environment_of(wanted: tuple[str, ...]) -> dict[str, str]:
    """Returns the command's environment: some of the caller's variables, and the variables of
    `--env`.

    Raises:
        InvalidArgument: a name is empty, or a variable of the caller that `--env` names is not set.
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


def tell_unenforced(slot: fg.Slot, spec: fg.SlotSpec) -> None:
    """Prints on standard error the requested amounts that the slot's executor does not enforce.

    The command can use more of these amounts than were requested, so that less is left for other
    slots.

    Args:
        slot: the granted slot.
        spec: the requested slot. A default slot requests no amounts, so nothing is printed for a
            default slot.
    """
    isolation = slot.isolation
    if isolation is None or spec.is_unknown:
        return
    open_ = [
        name
        for name, level in (("cpu", isolation.cpu), ("memory", isolation.memory))
        if level == "none"
    ]
    if open_:
        names, demands = " and ".join(open_), " ".join(f"{each}=kernel" for each in open_)
        say(
            f"finegrain: {names} of this slot are only booked, not enforced, on "
            f"{slot.executor_id}; `finegrain slots -o wide` shows why, and `--require-isolation"
            f" {demands.split()[-1]}` refuses such executors"
        )


def start_failure(reason: Reason) -> int:
    """Returns the exit code for a command that could not be started."""
    if reason is Reason.COMMAND_NOT_FOUND:
        return ExitCode.NOT_FOUND_COMMAND
    if reason is Reason.COMMAND_NOT_EXECUTABLE:
        return ExitCode.NOT_EXECUTABLE
    return ExitCode.RUN_FAILED


def exit_code_of_task(result: fg.TaskResult) -> int:
    """Returns the exit code for a task. If the slot reached its time limit, the exit code is
    TIME_LIMIT. If a signal ended the task for another reason, the exit code is 128 plus the number
    of the signal, as in shells.

    If the command succeeded but its output is incomplete, the exit code is RUN_FAILED.
    """
    if result.end_reason == Reason.TIME_LIMIT:
        return ExitCode.TIME_LIMIT
    if result.signal:
        return ExitCode.SIGNAL + result.signal
    if result.output_lost and not result.exit_code:
        return ExitCode.RUN_FAILED
    return result.exit_code


def report(result: fg.TaskResult, options: RunOptions, member: int | None = None) -> None:
    """Prints on standard error which limit was exceeded, and how much output was dropped. With
    `stats`, also prints the usage.

    Args:
        result: the result of the task.
        options: the options of this run.
        member: index of the task in the gang. None if the task is not in a gang.
    """
    what = "the command" if member is None else f"member {member}"
    start = "finegrain: " if member is None else f"finegrain: {what}: "
    if result.oom_killed or result.timed_out or result.end_reason:
        say(f"finegrain: {what} {result.how}")
    if result.output_lost:
        say(
            f"{start}{result.dropped_bytes} bytes of output were lost, because this command had no "
            "connection to the executor for too long, or the executor's disk was full; let the "
            f"command write a file [{Reason.OUTPUT_LOST}]"
        )
    if options.stats:
        peak = format_bytes(result.peak_memory_bytes) if result.peak_memory_bytes else "unknown"
        if result.peak_gpu_memory_bytes:
            peak += f", of GPUs {format_bytes(result.peak_gpu_memory_bytes)}"
        say(f"{start}peak memory {peak}, cpu time {format_duration(result.cpu_time_s)}")

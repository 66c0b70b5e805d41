"""Implements `finegrain run`, which runs one command in one slot, as if the command ran in this
terminal.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import FinegrainError, InvalidArgument, Reason
from finegrain.units import parse_bytes, parse_pair
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    enter_command,
    hint_for,
)
from finegrain_cli.device_options import DeviceOptions
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.option_errors import name_options
from finegrain_cli.slot_options import (
    AfterOption,
    AllowPendingOption,
    ApartOption,
    CpuBindOption,
    CpuExclusiveOption,
    CpuLimitOption,
    CpuOption,
    DeviceOption,
    EnvOption,
    ExpectedRunTimeOption,
    FpgaOption,
    GpuCoreOption,
    GpuMemoryOption,
    GpuMemoryRatioOption,
    GpuModelOption,
    GpuOption,
    GpuSharedOption,
    GroupOption,
    JobLabelOption,
    LabelOption,
    MemoryOption,
    NearOption,
    NumaOption,
    PidsOption,
    PortsOption,
    PriorityOption,
    QosOption,
    RdmaOption,
    RequireIsolationOption,
    ResourceOption,
    RestartOnDeviceLossOption,
    RevocableOption,
    SlotLabelOption,
    TimeLimitOption,
    UserOption,
    seconds,
    slot_spec,
    task_seconds,
)
from finegrain_cli.text.output import OutputFormat, print_error

if TYPE_CHECKING:
    from finegrain_cli.run.options import GangOptions

# The size of a pipe. With a smaller limit, the executor could not read the pipe again before the
# caller has received the stored output.
OUTPUT_LIMIT_BYTES_MIN = 64 * 1024
_OF_RUN = {
    Reason.STILL_WAITING: ExitCode.STILL_WAITING,
    Reason.TIME_LIMIT: ExitCode.TIME_LIMIT,
    Reason.REVOKED: ExitCode.REVOKED,
}
"""Exit codes of `run` for errors with these reasons. For all other errors of `run` itself, the exit
code is RUN_FAILED.
"""

PLACEMENTS = ("anywhere", "same-executor", "same-label", "spread")


def register(app: typer.Typer) -> None:
    """Registers the command of this module."""
    settings = {"allow_interspersed_args": False}
    app.command(context_settings=settings)(run)


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND [ARGS]...", help="Command to run, without a shell."),
    ],
    cpu: CpuOption = "",
    memory: MemoryOption = "",
    cpu_limit: CpuLimitOption = "",
    qos: QosOption = "",
    cpu_bind: CpuBindOption = "",
    cpu_exclusive: CpuExclusiveOption = "",
    numa: NumaOption = "",
    slot_label: SlotLabelOption = [],  # noqa: B006
    near: NearOption = [],  # noqa: B006
    apart: ApartOption = [],  # noqa: B006
    pids: PidsOption = 0,
    ports: PortsOption = 0,
    gpu: GpuOption = "",
    gpu_core: GpuCoreOption = 0,
    gpu_memory: GpuMemoryOption = "",
    gpu_memory_ratio: GpuMemoryRatioOption = 0,
    gpu_shared: GpuSharedOption = 0,
    gpu_model: GpuModelOption = "",
    rdma: RdmaOption = "",
    fpga: FpgaOption = "",
    device: DeviceOption = [],  # noqa: B006 - typer wants the default as a list
    restart_on_device_loss: RestartOnDeviceLossOption = False,
    resource: ResourceOption = [],  # noqa: B006 - typer wants the default as a list
    require_isolation: RequireIsolationOption = [],  # noqa: B006
    label: LabelOption = [],  # noqa: B006
    env: EnvOption = [],  # noqa: B006
    cwd: Annotated[
        str,
        typer.Option(
            "--cwd",
            metavar="DIR",
            help="Working directory of the command; default: a scratch directory.",
        ),
    ] = "",
    user: UserOption = "",
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Name of the job; default: the file name of the program."
        ),
    ] = "",
    group: GroupOption = "",
    priority: PriorityOption = 0,
    revocable: RevocableOption = False,
    job_label: JobLabelOption = [],  # noqa: B006
    after: AfterOption = [],  # noqa: B006
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="End the command after this time, such as 10m; default: never.",
        ),
    ] = "",
    wait_timeout: Annotated[
        str,
        typer.Option(
            "--wait-timeout",
            metavar="DURATION",
            help="Stop waiting for a slot after this time, such as 10m; default: never.",
        ),
    ] = "",
    grace: Annotated[
        str,
        typer.Option(
            "--grace",
            metavar="DURATION",
            help="Time between the first signal to the command and SIGKILL.",
        ),
    ] = "5s",
    stdin: Annotated[
        bool,
        typer.Option(
            "--stdin/--no-stdin",
            "-i",
            help="Pass standard input to the command. By default, the command's input is empty, "
            "so that it does not take the input of a surrounding shell loop.",
        ),
    ] = False,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Write standard output and standard error of the command to FILE, in the order "
            "of arrival; default: to the terminal.",
        ),
    ] = "",
    output_limit: Annotated[
        str,
        typer.Option(
            "--output-limit",
            metavar="SIZE",
            help="Maximum size of output that the executor stores of each stream until it is "
            "passed on, such as 16M; default and maximum: executor.output_limit. When this size "
            "is stored, the command waits.",
        ),
    ] = "",
    gang: Annotated[
        int | None,
        typer.Option(
            "--gang",
            min=1,
            max=1000,
            metavar="N",
            help="Run the command in N slots, granted all at once or not at all.",
        ),
    ] = None,
    gang_placement: Annotated[
        str,
        typer.Option(
            "--gang-placement",
            metavar="PLACEMENT",
            autocompletion=completing.words(*PLACEMENTS),
            help="Hosts of the gang: anywhere (default), same-executor, same-label:KEY, or spread "
            "(each member on another executor).",
        ),
    ] = "",
    gang_timeout: Annotated[
        str,
        typer.Option(
            "--gang-timeout",
            metavar="DURATION",
            help="Cancel the gang after it has waited for this time, such as 10m; default: never.",
        ),
    ] = "",
    time_limit: TimeLimitOption = "",
    expected_run_time: ExpectedRunTimeOption = "",
    allow_pending: AllowPendingOption = False,
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="At the end, print the memory, GPU memory and cpu time that the command used.",
        ),
    ] = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Run a command in a slot, as if the command ran in this terminal.

    The command gets your signals and, with -i, your standard input. `run` prints the command's
    output, and ends with the command's exit code. No shell runs the command. If you read the output
    slowly, the command waits.

    Without --cpu and --memory, the slot is the executor's default slot. With only --memory, the
    slot has 1 core. With only --cpu, it has 256M.

    With --gang N, the command runs in N slots that are granted all at once. Each member has
    FINEGRAIN_GANG_INDEX, FINEGRAIN_GANG_SIZE and FINEGRAIN_GANG_ID in its environment. Each line of
    its output begins with "[INDEX] ". The first member that fails ends all other members.

    \b
    Examples:
      finegrain run --cpu 0.5 --memory 256M -- hostname
      finegrain run --gang 2 --cpu 0.5 -- hostname
      finegrain run --gpu 1 --timeout 1h -- nvidia-smi
      finegrain run --after last:any -- ./report.sh
    """
    typed = dict(locals())  # all parameters; errors need the typed values
    enter_command(OutputFormat.TABLE, manager, credentials, config)
    try:
        from finegrain_cli.naming import dependencies
        from finegrain_cli.run.options import RunOptions
        from finegrain_cli.run.running import run_command

        options = RunOptions(
            argv=tuple(command),
            slot=slot_spec(
                cpu=cpu,
                memory=memory,
                cpu_limit=cpu_limit,
                pids=pids,
                ports=ports,
                resources=resource,
                labels=label,
                require_isolation=require_isolation,
                allow_pending=allow_pending,
                restart_on_device_loss=restart_on_device_loss,
                qos=qos,
                cpu_bind=cpu_bind,
                cpu_exclusive=cpu_exclusive,
                numa=numa,
                slot_labels=slot_label,
                near=near,
                apart=apart,
                time_limit=time_limit,
                revocable=revocable,
                expected_run_time=expected_run_time,
                # A gang has a separate timeout.
                wait_timeout=wait_timeout if gang is None else "",
                devices=DeviceOptions(
                    gpu,
                    gpu_core,
                    gpu_memory,
                    gpu_memory_ratio,
                    gpu_shared,
                    gpu_model,
                    rdma,
                    fpga,
                    tuple(device),
                ),
            ),
            env=tuple(env),
            cwd=cwd,
            user=user,
            # All users see the name, so the name contains no folders and no arguments.
            name=name or Path(command[0]).name[:200] or "run",
            group=group,
            priority=priority,
            job_labels=tuple(parse_pair("--job-label", each) for each in job_label),
            after=dependencies(after),
            timeout_s=task_seconds("--timeout", timeout),
            wait_timeout_s=seconds("--wait-timeout", wait_timeout),
            grace_s=seconds("--grace", grace) or 0.0,
            stats=stats,
            stdin=stdin,
            output=output,
            output_limit_bytes=_output_limit(output_limit),
            gang=_gang(
                gang,
                gang_placement,
                gang_timeout,
                restarts=restart_on_device_loss,
            ),
        )
        code = run_command(options)
    except FinegrainError as error:
        name_options(error, typed)
        print_error(error, OutputFormat.TABLE, hint_for(error, typed))
        code = _OF_RUN.get(error.reason, ExitCode.RUN_FAILED)
        raise typer.Exit(code) from None
    raise typer.Exit(code)


def _output_limit(text: str) -> int:
    size = parse_bytes("--output-limit", text) if text else 0
    if text and size < OUTPUT_LIMIT_BYTES_MIN:
        raise InvalidArgument("--output-limit", text, "64K or more")
    return size


def _gang(
    members: int | None, placement: str, timeout: str, *, restarts: bool
) -> GangOptions | None:
    from finegrain_cli.run.options import GangOptions

    if members is not None and restarts:
        # Reject this combination: the other members have already done a part of their work, and a
        # restarted member would start from the beginning.
        raise InvalidArgument("--restart-on-device-loss", "set", "no --gang with it")

    if members is None:
        for option, text in (("--gang-placement", placement), ("--gang-timeout", timeout)):
            if text:
                raise InvalidArgument(option, text, "--gang N as well")
        return None
    word, _, label = placement.partition(":")
    word = word or "anywhere"
    if word not in PLACEMENTS or bool(label) != (word == "same-label"):
        expected = "anywhere, same-executor, same-label:KEY (such as same-label:rack), or spread"
        raise InvalidArgument("--gang-placement", placement, expected)
    timeout_s = seconds("--gang-timeout", timeout)
    if timeout_s == 0:
        raise InvalidArgument("--gang-timeout", timeout, "more than 0, or no limit without it")
    return GangOptions(members, word.replace("-", "_").upper(), label, timeout_s)

"""Implements `finegrain batch`, which runs one command for each of many threads of work, and
`finegrain batches`, which lists batches.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from finegrain.errors import InvalidArgument, NotFound
from finegrain.units import parse_bytes, parse_pair
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.device_options import DeviceOptions
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
    RevocableOption,
    SlotLabelOption,
    TimeLimitOption,
    UserOption,
    seconds,
    slot_spec,
    task_seconds,
)
from finegrain_cli.text import columns
from finegrain_cli.text.output import OutputFormat, print_list

ONE_OF = "--threads N and -- COMMAND, or else --attach NAME, or --stop NAME"


class OnFailure(StrEnum):
    """The effect on other threads when a thread has failed and has no retries left."""

    CONTINUE = "continue"
    STOP = "stop"


def _names(incomplete: str) -> list[str]:
    """Returns names of batches that begin with `incomplete`, for shell completion."""
    from finegrain_client.state_folder import BATCHES

    return [path.stem for path in BATCHES.files() if path.stem.startswith(incomplete)]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    settings = {"allow_interspersed_args": False}
    app.command(context_settings=settings)(reporting_errors(batch))
    app.command()(reporting_errors(batches))


def batch(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- COMMAND [ARGS]...",
            help="Command of each thread, without a shell; {index} is the thread's number.",
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", "-n", min=1, metavar="N", help="Number of threads of work."),
    ] = None,
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
    resource: ResourceOption = [],  # noqa: B006 - typer wants the default as a list
    require_isolation: RequireIsolationOption = [],  # noqa: B006
    label: LabelOption = [],  # noqa: B006
    env: EnvOption = [],  # noqa: B006
    cwd: Annotated[
        str,
        typer.Option(
            "--cwd",
            metavar="DIR",
            help="Working directory of the command; default: your current directory if the "
            "program is a relative path such as ./work.sh, otherwise a scratch directory.",
        ),
    ] = "",
    user: UserOption = "",
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Name of the batch and its job; default: the command."
        ),
    ] = "",
    group: GroupOption = "",
    priority: PriorityOption = 0,
    job_label: JobLabelOption = [],  # noqa: B006
    after: AfterOption = [],  # noqa: B006
    revocable: RevocableOption = False,
    timeout: Annotated[
        str,
        typer.Option(
            "--timeout",
            metavar="DURATION",
            help="A thread fails after this time, such as 10m; default: never.",
        ),
    ] = "",
    retries: Annotated[
        int,
        typer.Option(
            "--retries",
            metavar="N",
            min=0,
            help="Number of times that a failed thread is tried again.",
        ),
    ] = 2,
    retry_delay: Annotated[
        str,
        typer.Option(
            "--retry-delay",
            metavar="DURATION",
            help="Delay before the first retry; the delay doubles with each retry.",
        ),
    ] = "1s",
    on_failure: Annotated[
        OnFailure,
        typer.Option(
            "--on-failure",
            help="When a thread has failed and has no retries left: continue with the other "
            "threads, or stop starting threads.",
        ),
    ] = OnFailure.CONTINUE,
    failures_max: Annotated[
        int | None,
        typer.Option(
            "--failures-max",
            metavar="N",
            min=0,
            help="Stop starting threads when more than N threads have failed.",
        ),
    ] = None,
    speculate: Annotated[
        bool,
        typer.Option(
            "--speculate", help="When no thread waits, run a very slow thread a second time."
        ),
    ] = False,
    slots_max: Annotated[
        int,
        typer.Option(
            "--slots-max",
            metavar="N",
            min=0,
            help="Maximum number of slots at a time; 0: no limit.",
        ),
    ] = 0,
    time_limit: TimeLimitOption = "",
    expected_run_time: ExpectedRunTimeOption = "",
    allow_pending: AllowPendingOption = False,
    output_limit: Annotated[
        str,
        typer.Option(
            "--output-limit",
            metavar="SIZE",
            help="Maximum size that is kept of each output of a thread.",
        ),
    ] = "16M",
    results: Annotated[
        str,
        typer.Option(
            "--results",
            metavar="DIR",
            help="Directory for each thread's output, results.json and results.csv.",
        ),
    ] = "",
    state: Annotated[
        str,
        typer.Option(
            "--state",
            metavar="FILE",
            help="State file; default: a new file in your state directory.",
        ),
    ] = "",
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Run in the background; return when the batch has started."
        ),
    ] = False,
    attach: Annotated[
        str,
        typer.Option(
            "--attach",
            metavar="NAME|FILE",
            autocompletion=_names,
            help="Show the progress of a batch; continue it if no process works on it. "
            "`finegrain batches` lists batches.",
        ),
    ] = "",
    stop: Annotated[
        str,
        typer.Option(
            "--stop",
            metavar="NAME|FILE",
            autocompletion=_names,
            help="Stop a batch; --attach can continue it.",
        ),
    ] = "",
    retry_failed: Annotated[
        bool,
        typer.Option("--retry-failed", help="With --attach: try failed threads again."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")] = False,
    runner: Annotated[str, typer.Option("--runner", hidden=True)] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, as -o json does.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Run a command many times: once for each thread of work.

    A thread of work is one part of the batch. COMMAND runs once for each thread, in one slot.

    In COMMAND and --env, {index} is the number of the thread (0 to N-1), and {threads} is N.
    {attempt} is the number of the thread's attempt (1, 2, ...).

    Ctrl-C stops the batch; `--attach` can continue it later. A second Ctrl-C ends this command at
    once. The summary goes to standard output as a table. With -o json it is JSON, and with -o jsonl
    one result per line.

    \b
    Examples:
      finegrain batch -n 50 --cpu 0.25 --memory 64M -- echo {index}
      finegrain batch -n 500 --results out --name big -- ./work.sh {index}
      finegrain batch --attach big
      finegrain batch -n 20 --after big -- ./sum.sh {index}
    """
    # Stage 1: choose between a new batch, --attach, --stop and the hidden --runner.
    form = OutputFormat.JSON if json_ else output
    enter_command(form, manager, credentials, config)
    is_new = bool(command) or threads is not None
    if [is_new, bool(attach), bool(stop), bool(runner)].count(True) != 1:
        raise InvalidArgument("batch", " ".join(command or ()), ONE_OF)
    if retry_failed and not attach:
        raise InvalidArgument("--retry-failed", "", "--attach NAME as well")
    from finegrain_cli.batch import running

    options = running.BatchOptions(form, quiet=quiet, detach=detach, retry_failed=retry_failed)
    if stop:
        raise typer.Exit(running.stop(stop, options))
    if runner:
        raise typer.Exit(running.work_on(Path(runner), options))
    if attach:
        raise typer.Exit(running.attach(attach, options))
    # Stage 2: a new batch needs both the command and the number of threads.
    if not command or threads is None:
        raise InvalidArgument("batch", " ".join(command or ()), ONE_OF)
    from finegrain_cli.naming import dependencies
    from finegrain_cli.run.options import environment_of
    from finegrain_client.batch.spec import BatchSpec

    spec = BatchSpec(
        threads,
        command,
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
        name=name or Path(command[0]).name[:200] or "batch",
        group=group,
        priority=priority,
        job_labels=dict(parse_pair("--job-label", each) for each in job_label),
        after=dependencies(after),
        env=environment_of(tuple(env)),
        cwd=_directory(command[0], cwd),
        user=user,
        timeout_s=task_seconds("--timeout", timeout),
        retries=retries,
        retry_delay_s=seconds("--retry-delay", retry_delay) or 0.0,
        on_failure=on_failure.value,
        failures_max=failures_max,
        speculate=speculate,
        slots_max=slots_max,
        output_limit_bytes=parse_bytes("--output-limit", output_limit),
    )
    raise typer.Exit(running.start(spec, state, results, options))


def batches(
    name: Annotated[
        str,
        typer.Argument(
            metavar="[NAME]",
            help="Show only this batch; a prefix of the name is enough.",
            autocompletion=_names,
        ),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List your batches on this host, the newest last.

    The list also shows which process works on each batch.
    """
    enter_command(output)
    from finegrain_cli.batch.naming import found_batches, short_name
    from finegrain_cli.batch.results import batch_dict

    found = [each for each in found_batches() if short_name(each).startswith(name)]
    if name and not found:
        raise NotFound(f"no batch has the name {name!r}, or a name that begins with it")
    print_list("BatchList", [batch_dict(each) for each in found], columns.BATCHES, output)


def _directory(program: str, cwd: str) -> str:
    """Returns the working directory of the command, or an empty text for a scratch directory.

    A program with a relative path, such as ./work.sh, runs in the caller's directory, because a
    scratch directory does not contain the program.
    """
    if cwd:
        return str(Path(cwd).absolute())
    relative = os.sep in program and not program.startswith(os.sep)
    return str(Path.cwd()) if relative else ""

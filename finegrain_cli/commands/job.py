"""Implements `finegrain job ...`, which plans and runs job graphs.

`plan` shows the plan of a graph, without a cluster. `run` runs the graph, and `status` shows the
progress of a job.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain.units import parse_pair
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
    write_file,
)
from finegrain_cli.slot_options import (
    AfterOption,
    EnvOption,
    GroupOption,
    JobLabelOption,
    PriorityOption,
    RevocableOption,
    UserOption,
)
from finegrain_cli.text.output import API_VERSION, OutputFormat, json_text, print_object, say


class DrawForm(StrEnum):
    """The values of `--draw`."""

    TEXT = "text"
    SVG = "svg"
    MERMAID = "mermaid"


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    group = typer.Typer(no_args_is_help=True)
    for each in (plan, run, status):
        group.command()(reporting_errors(each))
    app.add_typer(group, name="job", help="Plan and run jobs that consist of connected operators.")


def _names(incomplete: str) -> list[str]:
    """Returns names of jobs that begin with `incomplete`, for shell completion."""
    from finegrain_client.state_folder import JOBS

    return [path.stem for path in JOBS.files() if path.stem.startswith(incomplete)]


def plan(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH", help="Job file FILE.toml, or FILE.py:FUNCTION that returns a JobGraph."
        ),
    ],
    draw: Annotated[
        DrawForm | None,
        typer.Option("--draw", help="Print only a picture, in this form.", show_default=False),
    ] = None,
    out: Annotated[
        str, typer.Option("--out", metavar="FILE", help="Write the output to this file.")
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the plan of a job graph: regions, slots, tasks, memory.

    The command runs no task, and needs no cluster.

    \b
    Examples:
      finegrain job plan report.toml
      finegrain job plan report.toml --draw svg --out report.svg
    """
    enter_command(output)
    from finegrain_cli.graph_loading import load_graph
    from finegrain_client.graph import describe, plan_to_json
    from finegrain_client.graph import draw as drawn

    as_json = output in (OutputFormat.JSON, OutputFormat.JSONL)
    if draw is not None and as_json:
        raise InvalidArgument("--draw", str(draw), f"no --draw together with -o {output}")
    compiled = load_graph(graph).compile()
    wide = output is OutputFormat.WIDE
    text = describe(compiled, wide=wide) if draw is None else drawn(compiled, draw).rstrip("\n")
    if not out:
        print_object("JobPlan", plan_to_json(compiled), output, text)
        return
    if as_json:
        text = json_text({"api_version": API_VERSION, "kind": "JobPlan", **plan_to_json(compiled)})
    write_file(out, f"{text}\n")
    say(f"finegrain: wrote the plan of {compiled.name} to {out}")


def run(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="GRAPH",
            help="Job file FILE.toml, or FILE.py:FUNCTION that returns a JobGraph.",
        ),
    ] = "",
    group: GroupOption = "",
    priority: PriorityOption = 0,
    job_label: JobLabelOption = [],  # noqa: B006
    after: AfterOption = [],  # noqa: B006
    revocable: RevocableOption = False,
    env: EnvOption = [],  # noqa: B006 - typer wants the default as a list
    cwd: Annotated[
        str,
        typer.Option(
            "--cwd",
            metavar="DIR",
            help="Working directory of the tasks; default: your current directory if a program is "
            "a relative path such as ./work.sh, otherwise a scratch directory.",
        ),
    ] = "",
    user: UserOption = "",
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
            "--detach", "-d", help="Run in the background; return when the job is registered."
        ),
    ] = False,
    attach: Annotated[
        str,
        typer.Option(
            "--attach",
            metavar="JOB|FILE",
            autocompletion=_names,
            help="Show the progress of a job; continue it if no process works on it.",
        ),
    ] = "",
    stop: Annotated[
        str,
        typer.Option(
            "--stop",
            metavar="JOB|FILE",
            autocompletion=_names,
            help="Cancel a job and release its slots.",
        ),
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not show progress.")] = False,
    runner: Annotated[str, typer.Option("--runner", hidden=True)] = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Run a job graph in the slots of a cluster.

    The command requests slots for each region, runs the tasks of the region, and restarts a
    region that fails.

    Ctrl-C cancels the job and releases its slots. A second Ctrl-C ends this command at once;
    --attach then continues the job.

    \b
    Examples:
      finegrain job run report.toml
      finegrain job run report.toml --detach
      finegrain job run --attach report
      finegrain job run report.toml --after nightly:any
    """
    enter_command(output, manager, credentials, config)
    if [bool(graph), bool(attach), bool(stop), bool(runner)].count(True) != 1:
        raise InvalidArgument("GRAPH", graph, "GRAPH, or else --attach JOB, or --stop JOB")
    from finegrain_cli.job import running

    options = running.JobRunOptions(output, quiet=quiet, detach=detach)
    if stop:
        raise typer.Exit(running.stop(stop, options))
    if runner:
        raise typer.Exit(running.work_on(Path(runner), options))
    if attach:
        raise typer.Exit(running.attach(attach, options))
    from finegrain_cli.graph_loading import load_graph
    from finegrain_cli.naming import dependencies
    from finegrain_cli.run.options import environment_of
    from finegrain_client.graph_run.spec import GraphRunSpec

    plan = load_graph(graph).compile()
    if revocable:
        plan = plan.with_revocable_slots()
    spec = GraphRunSpec(
        plan,
        group=group,
        env=environment_of(tuple(env)),
        cwd=_directory([each.program for each in plan.chains if each.program], cwd),
        user=user,
        priority=priority,
        job_labels=dict(parse_pair("--job-label", each) for each in job_label),
        after=dependencies(after),
    )
    raise typer.Exit(running.start(spec, state, options))


def status(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|FILE", help="Name or state file of a job.", autocompletion=_names
        ),
    ],
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show the regions, tasks and slots of a job.

    The output also shows what each region waits for, and the managed memory of each operator. The
    command reads the state file of the job, and asks executors for the managed memory. If an
    executor does not answer, its managed memory is not shown.

    \b
    Examples:
      finegrain job status report
    """
    enter_command(output, manager, credentials, config)
    from finegrain_cli.job.naming import state_file_of
    from finegrain_cli.job.showing import show_status

    show_status(state_file_of(job), output)


def _directory(programs: Iterable[Sequence[str]], cwd: str) -> str:
    """Returns the working directory of all tasks, or an empty text if each task gets a scratch
    directory.

    A program with a relative path runs in the caller's directory, because a scratch directory does
    not contain the program.
    """
    if cwd:
        return str(Path(cwd).absolute())
    relative = any(os.sep in each[0] and not each[0].startswith(os.sep) for each in programs)
    return str(Path.cwd()) if relative else ""

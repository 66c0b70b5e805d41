"""Implements the commands for administrators, such as drain, release and terminate, and
`explain`.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from finegrain.errors import FinegrainError, Reason
from finegrain.units import counted, parse_duration_ms
from finegrain.values.states import RequestState
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    DryRunOption,
    ManagerOption,
    OutputOption,
    YesOption,
    confirm_operation,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.job.naming import find_state_file
from finegrain_cli.naming import full_allocation_id, full_job_id
from finegrain_cli.text import columns
from finegrain_cli.text.explanation import explanation_text
from finegrain_cli.text.output import OutputFormat, print_list, print_object, say
from finegrain_cli.text.preview import preview_text

ExecutorArgument = Annotated[
    str,
    typer.Argument(
        metavar="EXECUTOR", autocompletion=completing.executors, help="Full id of the executor."
    ),
]
GraceOption = Annotated[
    str,
    typer.Option(
        "--grace", metavar="DURATION", help="Time between SIGTERM and SIGKILL of tasks, such as 5s."
    ),
]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (explain, drain, undrain, forget, release, terminate):
        app.command()(reporting_errors(command))


def explain(
    request: Annotated[
        str,
        typer.Argument(
            metavar="REQUEST|JOB",
            autocompletion=completing.requests,
            help="Id of the request, or the beginning of the id; or name or state file of a job "
            "of `finegrain job run`.",
        ),
    ],
    executor: Annotated[
        str,
        typer.Option(
            "--executor",
            metavar="EXECUTOR",
            autocompletion=completing.executors,
            help="Show only this executor.",
        ),
    ] = "",
    max_executors: Annotated[
        int,
        typer.Option(
            "--max-executors",
            metavar="N",
            min=1,
            max=1000,
            help="Maximum number of executors to show.",
        ),
    ] = 20,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Say why a request waits, and which change would make it fit.

    For each executor, the table shows what is missing. For a job of `finegrain job run`, the
    command explains each region that waits.

    \b
    Examples:
      finegrain explain 01a20a21
      finegrain explain 01a20a21 --executor host-a
      finegrain explain report
    """
    enter_command(output, manager, credentials, config)
    if job := find_state_file(request):
        from finegrain_cli.job.showing import explain_job

        explain_job(job, executor, max_executors, output)
        return
    with open_cluster() as cluster:
        allocation_id = full_allocation_id(cluster, request)
        found = cluster.explain(allocation_id, executor_id=executor, max_executors=max_executors)
    print_object("Explanation", found.to_dict(), output, explanation_text(found))


def drain(
    executor: ExecutorArgument,
    deadline: Annotated[
        str,
        typer.Option(
            "--deadline",
            metavar="DURATION",
            help="Remove slots that still exist after this time, such as 10m.",
        ),
    ] = "",
    reason: Annotated[
        str,
        typer.Option(
            "--reason", metavar="TEXT", help="Reason, shown to all users, such as 'new kernel'."
        ),
    ] = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Place no new slots on an executor.

    Existing slots continue. With --deadline, the resource manager removes slots that still exist
    after this time. Their tasks end, too.

    \b
    Examples:
      finegrain drain host-a --reason 'new kernel'
      finegrain drain host-a --deadline 10m --yes
    """
    enter_command(output, manager, credentials, config)
    deadline_s = parse_duration_ms("--deadline", deadline) / 1000 if deadline else None
    with open_cluster() as cluster:
        status = cluster.executor(executor)
        if dry_run:
            preview = cluster.preview("DRAIN", executor_id=executor)
            text = f"would drain {executor}: {preview_text(preview)}"
            data = {**status.to_dict(), "preview": preview.to_dict()}
            print_object("Executor", data, output, text)
            return
        if deadline_s is not None:
            preview = cluster.preview("DRAIN", executor_id=executor)
            text = (
                f"{counted(status.slots, 'slot')} of {executor} will be freed after {deadline};"
                f" another executor has room now for {preview.moving}"
            )
            confirm_operation(cluster, text, yes=yes)
        status = cluster.drain(executor, reason=reason, deadline_s=deadline_s)
    text = f"draining {executor}: {counted(status.slots, 'slot')} left"
    print_object("Executor", status.to_dict(), output, text)


def undrain(
    executor: ExecutorArgument,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Allow new slots on a drained executor again.

    \b
    Examples:
      finegrain undrain host-a
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        status = cluster.undrain(executor)
    print_object("Executor", status.to_dict(), output, f"{executor} accepts new slots")


def forget(
    executor: ExecutorArgument,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Delete a lost executor from the resource manager's state.

    \b
    Examples:
      finegrain forget host-a --yes
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        text = f"{executor} will be deleted from the resource manager's state"
        confirm_operation(cluster, text, yes=yes)
        cluster.forget(executor)
    print_object("Forgotten", {"executor_id": executor}, output, f"forgot {executor}")


def release(
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID...", autocompletion=completing.requests, help="Ids of slots or requests."
        ),
    ],
    grace: GraceOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Release slots, or cancel requests, of any job.

    \b
    Examples:
      finegrain release 01a20a21
      finegrain release 01a20a21 01a20a22 --grace 10s
    """
    enter_command(output, manager, credentials, config)
    grace_s = parse_duration_ms("--grace", grace) / 1000 if grace else None
    with open_cluster() as cluster:
        full = [full_allocation_id(cluster, each) for each in ids]
        if dry_run:
            for each in full:
                say(f"would release {each}")
            preview = cluster.preview("RELEASE", allocation_ids=full)
            print_object("Preview", preview.to_dict(), output, preview_text(preview))
            return
        # A request that still waits has no tasks. So cancel such a request without a question.
        listed = cluster.requests(allocation_ids=full)
        slots = [each.allocation_id for each in listed if each.state != RequestState.PENDING]
        if slots:
            text = f"these slots will be freed, and their tasks ended: {', '.join(slots)}"
            confirm_operation(cluster, text, yes=yes)
        outcomes = cluster.release(full, grace_s=grace_s)
    rows: list[dict[str, Any]] = [each.to_dict() for each in outcomes]
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_list("OutcomeList", rows, columns.EVENTS, output)
    else:
        for outcome in outcomes:
            print(f"{outcome.id}  {'releasing' if outcome.ok else outcome.message}")
    failed = [each for each in outcomes if not each.ok]
    if failed:
        raise FinegrainError(
            f"{len(failed)} of {len(outcomes)} could not be released: {failed[0].message}",
            reason=Reason(failed[0].reason),
        )


def terminate(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            autocompletion=completing.jobs,
            help="Name or id of the job; the beginning or end of the id is enough.",
        ),
    ],
    grace: GraceOption = "",
    yes: YesOption = False,
    dry_run: DryRunOption = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """End a job: cancel its requests, free its slots, kill its tasks.

    \b
    Examples:
      finegrain terminate nightly --yes
    """
    enter_command(output, manager, credentials, config)
    grace_s = parse_duration_ms("--grace", grace) / 1000 if grace else None
    with open_cluster() as cluster:
        chosen = full_job_id(cluster, job)
        preview = cluster.preview("END_JOB", job_id=chosen)
        if dry_run:
            text = f"would end {chosen}: {preview_text(preview)}"
            print_object("Preview", preview.to_dict(), output, text)
            return
        text = f"job {chosen} will be ended: {preview.summary}"
        confirm_operation(cluster, text, yes=yes)
        cluster.terminate_job(chosen, grace_s=grace_s)
    print_object("Terminated", {"job_id": chosen}, output, f"ended {chosen}")

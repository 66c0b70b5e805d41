"""Implements `finegrain advise`, which recommends a number of threads for a job's work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from finegrain.errors import InvalidArgument
from finegrain.units import format_duration, parse_duration_ms
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.naming import full_job_id
from finegrain_cli.text.output import OutputFormat, print_object

if TYPE_CHECKING:
    import finegrain_client as fg


def register(app: typer.Typer) -> None:
    """Registers the command of this module."""
    app.command()(reporting_errors(advise))


def advise(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB",
            autocompletion=completing.jobs,
            help="Name or id of the job; the beginning or end of the id is enough.",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="DURATION", help="Longest time that a thread of work should take."
        ),
    ] = "120s",
    quantile: Annotated[
        float,
        typer.Option(
            "--quantile",
            metavar="FRACTION",
            help="Fraction of all threads that should meet the target.",
        ),
    ] = 0.95,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON, as -o json does.")] = False,
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Recommend a number of threads for a job's work.

    A thread is one part of the work: it runs in one slot. The recommendation is based on the
    durations of the job's threads: each thread counts once, and attempts that were repeated do not
    count. It also works for an ended job, as long as the resource manager
    keeps the job.

    \b
    Examples:
      finegrain advise nightly
      finegrain advise nightly --target 60s --quantile 0.9
    """
    output = OutputFormat.JSON if json_ else output
    enter_command(output, manager, credentials, config)
    target_s = parse_duration_ms("--target", target) / 1000
    if not 0 < quantile < 1:
        raise InvalidArgument("--quantile", quantile, "above 0 and below 1, such as 0.95")
    with open_cluster() as cluster:
        advice = cluster.advise(full_job_id(cluster, job), target_s=target_s, quantile=quantile)
    print_object("ThreadAdvice", advice.to_dict(), output, advice_text(advice))


def advice_text(advice: fg.ThreadAdvice) -> str:
    """Returns a text with three parts: the recommendation, the observations from which the
    recommendation was computed, and remarks.
    """
    number = advice.threads_recommended
    others = [
        f"{count} {what}"
        for count, what in ((advice.threads_running, "run"), (advice.threads_waiting, "wait"))
        if count
    ]
    lines = [
        f"recommended  {_threads(number)}" if number else "recommended  nothing yet",
        f"observed     {', '.join([_threads(advice.threads_observed), *others])}",
    ]
    if advice.attempts_unfinished:
        attempts = advice.threads_observed + advice.attempts_unfinished
        lines.append(
            f"attempts     {attempts}, of which {advice.attempts_unfinished} finished no thread and"
            " do not count"
        )
    if advice.threads_observed:
        part, kept = _percent(advice.quantile), _percent(advice.share_within_target)
        median, at_quantile, longest, target = map(
            format_duration,
            (advice.median_s, advice.at_quantile_s, advice.longest_s, advice.target_s),
        )
        lines += [
            f"durations    median {median}, {part} within {at_quantile}, longest {longest}",
            f"target       {part} within {target}; {kept} were",
        ]
    return "\n".join([*lines, *(f"- {remark}" for remark in advice.remarks)])


def _threads(count: int) -> str:
    return f"{count} thread{'' if count == 1 else 's'}"


def _percent(share: float) -> str:
    return f"{round(share * 100, 1):g} %"

"""Prints a job that runs a job graph, as text for people or as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrain.units import counted, format_bytes
from finegrain_cli.text.explanation import explanation_text
from finegrain_cli.text.output import (
    Column,
    OutputFormat,
    columns_in,
    print_object,
    table_lines,
)
from finegrain_client.graph_run.values import GraphState

if TYPE_CHECKING:
    from finegrain_client.graph_run.operator_use import OperatorsInUse, OperatorUse
    from finegrain_client.graph_run.status import GraphJobStatus
    from finegrain_client.graph_run.values import GraphProgress
    from finegrain_client.types.explain import Explanation

TASKS_SHOWN = 50


def _tasks_text(row: Mapping[str, Any]) -> str:
    if row["state"] == "FINISHED":
        return f"{row['tasks']} done"
    return f"{row['tasks_running']} of {row['tasks']} running"


_REGIONS = (
    Column("region", lambda row: str(row["number"]), right=True),
    Column("chains", lambda row: ", ".join(row["chains"]), shrinks=True),
    Column("state", lambda row: str(row["state"])),
    Column("tasks", _tasks_text, rank=2, shrinks=True),
    Column("slots", lambda row: str(row["slots"]), right=True),
    Column("restarts", lambda row: str(max(0, row["attempt"] - 1)), right=True),
    Column("waits for", lambda row: row["reason"] or "-", rank=1, shrinks=True),
)
_TASKS = (
    Column("task", lambda row: row["chain"], shrinks=True),
    Column("subtask", lambda row: str(row["subtask"]), right=True),
    Column("attempt", lambda row: str(row["attempt"]), right=True),
    Column("running", lambda row: "yes" if row["running"] else "no"),
    Column("slot", lambda row: str(row["slot"]), right=True),
    Column("executor", lambda row: row["executor_id"], rank=1, shrinks=True),
)
_SLOTS = (
    Column("slot", lambda row: str(row["slot"]), right=True),
    Column("group", lambda row: row["group"]),
    Column("position", lambda row: str(row["position"]), right=True),
    Column("executor", lambda row: row["executor_id"], rank=1, shrinks=True),
    Column("operators", lambda row: ", ".join(row["operators"]) or "-", rank=2, shrinks=True),
    Column("id", lambda row: row["allocation_id"], wide=True),
)

_OPERATORS = (
    Column("operator", lambda row: row["operator_id"], shrinks=True),
    Column("subtask", lambda row: str(row["subtask"]), right=True),
    Column("executor", lambda row: row["executor_id"], rank=1, shrinks=True),
    Column("fraction", lambda row: row["fraction"] or "-", wide=True),
    Column("quota", lambda row: format_bytes(row["quota_bytes"]), right=True),
    Column(
        "used",
        # With the quota enforcement DECLARED, no process measures the use of the operator.
        lambda row: format_bytes(row["used_bytes"]) if row["enforcement"] != DECLARED else "-",
        right=True,
    ),
    Column(
        "revoked",
        lambda row: format_bytes(row["revoked_bytes"]) if row["revoked_bytes"] else "-",
        right=True,
    ),
    Column("enforced by", lambda row: row["enforcement"].lower()),
)
DECLARED = "DECLARED"


def progress_text(progress: GraphProgress) -> str:
    """Returns one line: "region 1 of 2 finished, 3 of 6 tasks done, 2 running, 4 slots"."""
    parts = [
        f"{progress.regions_finished} of {progress.regions} regions finished",
        f"{progress.tasks_done} of {progress.tasks} tasks done",
    ]
    if progress.tasks_running:
        parts.append(f"{progress.tasks_running} running")
    if progress.slots:
        parts.append(counted(progress.slots, "slot"))
    if progress.restarts:
        parts.append(counted(progress.restarts, "restart"))
    if progress.message:
        parts.append(progress.message)
    return ", ".join(parts)


def job_dict(job: GraphJobStatus) -> dict[str, Any]:
    """Returns a job as data for JSON. Of environment variables, the data has only the names."""
    return {
        "job": Path(job.state_file).stem,
        "name": job.spec.plan.name,
        "state_file": job.state_file,
        "job_id": job.job_id,
        "state": str(job.state),
        "message": job.message,
        "create_time": job.create_time.isoformat(),
        "runner_pid": job.runner_pid,
        "runner_host": job.runner_host,
        "group": job.spec.group,
        "env": sorted(job.spec.env),
        "cwd": job.spec.cwd,
        "progress": job.progress.to_dict(),
        "regions": [{**asdict(each), "reason": each.reason} for each in job.regions],
        "tasks": [asdict(each) for each in job.tasks],
        "slots": [asdict(each) for each in job.slots],
        "requests": [asdict(each) for each in job.requests],
    }


def operators_dict(found: OperatorsInUse) -> dict[str, Any]:
    """Returns the managed memory of operators as data for JSON."""
    return {
        "operators": [_operator_dict(each) for each in found.operators],
        "operators_missing": dict(found.missing or {}),
    }


def _operator_dict(use: OperatorUse) -> dict[str, Any]:
    own = {**asdict(use.operator), "enforcement": str(use.operator.enforcement)}
    return {
        "chain": use.chain,
        "subtask": use.subtask,
        "executor_id": use.executor_id,
        **own,
    }


def print_status(job: GraphJobStatus, found: OperatorsInUse, form: OutputFormat) -> None:
    """Prints a job, with the managed memory of its operators."""
    shown = {**job_dict(job), **operators_dict(found)}
    runner = f"pid {job.runner_pid} on {job.runner_host}" if job.is_worked_on else "none"
    lines = [
        f"{shown['job']}: {job.state}, {progress_text(job.progress)}",
        f"runner: {runner}",
        *([f"reason: {job.message}"] if job.message else []),
        "",
        *table_lines(_REGIONS, shown["regions"], form),
    ]
    lines += [
        f"\nlast failure of region {each.number}: {each.message}"
        for each in job.regions
        if each.message
    ]
    # A job can have 100,000 tasks. Show running tasks first, because people look for running tasks.
    tasks = sorted(shown["tasks"], key=lambda row: not row["running"])
    if tasks:
        lines += ["", *table_lines(_TASKS, tasks[:TASKS_SHOWN], form)]
        if len(tasks) > TASKS_SHOWN:
            lines.append(f"({len(tasks) - TASKS_SHOWN} more tasks; -o json shows all)")
    if shown["slots"]:
        lines += ["", *table_lines(columns_in(_SLOTS, form), shown["slots"], form)]
    managed = [each for each in shown["operators"] if each["fraction"]]
    if managed:
        lines += ["", *table_lines(columns_in(_OPERATORS, form), managed[:TASKS_SHOWN], form)]
        if len(managed) > TASKS_SHOWN:
            lines.append(f"({len(managed) - TASKS_SHOWN} more; -o json shows all)")
    lines += [
        f"\nmanaged memory on executor {name} is not known: {error}"
        for name, error in shown["operators_missing"].items()
    ]
    print_object("JobRun", shown, form, "\n".join(lines))


def print_explanation(
    job: GraphJobStatus, waits: Mapping[int, Explanation], form: OutputFormat
) -> None:
    """Prints what each region of a job waits for.

    Args:
        job: the job.
        waits: for each region that waits for slots, the explanation of its request, by the number
            of the region.
        form: table or JSON.
    """
    shown = job_dict(job)
    regions = [
        {
            **each,
            "explanation": waits[number].to_dict() if (number := each["number"]) in waits else None,
        }
        for each in shown["regions"]
    ]
    lines = [
        f"{shown['job']}: {job.state}, {progress_text(job.progress)}",
        *([f"reason: {job.message}"] if job.message else []),
        *(
            ["no process works on it"]
            if job.state is GraphState.OPEN and not job.is_worked_on
            else []
        ),
        "",
        *table_lines(_REGIONS, shown["regions"], form),
    ]
    for number, found in waits.items():
        lines += [
            "",
            f"region {number} waits for slots; the first of them:",
            explanation_text(found),
        ]
    data = {"job": shown["job"], "state": shown["state"], "message": shown["message"]}
    print_object("JobExplanation", {**data, "regions": regions}, form, "\n".join(lines))


def print_outcome(job: GraphJobStatus, form: OutputFormat) -> None:
    """Prints how a job ended."""
    text = f"{Path(job.state_file).stem}: {job.state}, {progress_text(job.progress)}"
    if job.message:
        text += f"\n{job.message}"
    print_object("JobRun", job_dict(job), form, text)

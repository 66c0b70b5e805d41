"""How a job that runs a plan is printed: for people, and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finegrain_cli.text.output import Column, OutputFormat, print_object, table_lines

if TYPE_CHECKING:
    from finegrain_client.graph_run.status import GraphJobStatus
    from finegrain_client.graph_run.values import GraphProgress

TASKS_SHOWN = 50

_REGIONS = (
    Column("region", lambda row: str(row["number"]), right=True),
    Column("chains", lambda row: ", ".join(row["chains"])),
    Column("state", lambda row: str(row["state"])),
    Column("tasks", lambda row: f"{row['tasks_running']}/{row['tasks']} run"),
    Column("slots", lambda row: str(row["slots"]), right=True),
    Column("restarts", lambda row: str(max(0, row["attempt"] - 1)), right=True),
    Column("waits for", lambda row: row["reason"] or "-"),
)
_TASKS = (
    Column("task", lambda row: row["chain"]),
    Column("subtask", lambda row: str(row["subtask"]), right=True),
    Column("attempt", lambda row: str(row["attempt"]), right=True),
    Column("running", lambda row: "yes" if row["running"] else "no"),
    Column("slot", lambda row: str(row["slot"]), right=True),
    Column("executor", lambda row: row["executor_id"]),
)
_SLOTS = (
    Column("slot", lambda row: str(row["slot"]), right=True),
    Column("group", lambda row: row["group"]),
    Column("position", lambda row: str(row["position"]), right=True),
    Column("executor", lambda row: row["executor_id"]),
)


def progress_text(progress: GraphProgress) -> str:
    """Returns one line: "region 1 of 2 finished, 3 of 6 tasks done, 2 running, 4 slots"."""
    parts = [
        f"{progress.regions_finished} of {progress.regions} regions finished",
        f"{progress.tasks_done} of {progress.tasks} tasks done",
    ]
    if progress.tasks_running:
        parts.append(f"{progress.tasks_running} running")
    if progress.slots:
        parts.append(_counted(progress.slots, "slot"))
    if progress.restarts:
        parts.append(_counted(progress.restarts, "restart"))
    if progress.message:
        parts.append(progress.message)
    return ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def job_dict(job: GraphJobStatus) -> dict[str, Any]:
    """Returns a job as data for JSON. Of its environment, only the names are shown."""
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
    }


def print_status(job: GraphJobStatus, form: OutputFormat) -> None:
    """Prints a job."""
    shown = job_dict(job)
    runner = f"pid {job.runner_pid} on {job.runner_host}" if job.is_worked_on else "none"
    lines = [
        f"{shown['job']}: {job.state}, {progress_text(job.progress)}",
        f"runner: {runner}",
        *([f"reason: {job.message}"] if job.message else []),
        "",
        *table_lines(_REGIONS, shown["regions"]),
    ]
    lines += [
        f"\nlast failure of region {each.number}: {each.message}"
        for each in job.regions
        if each.message
    ]
    # A job may have 100,000 tasks. Those that run are what people look for.
    tasks = sorted(shown["tasks"], key=lambda row: not row["running"])
    if tasks:
        lines += ["", *table_lines(_TASKS, tasks[:TASKS_SHOWN])]
        if len(tasks) > TASKS_SHOWN:
            lines.append(f"({len(tasks) - TASKS_SHOWN} more tasks; -o json shows all)")
    if shown["slots"]:
        lines += ["", *table_lines(_SLOTS, shown["slots"])]
    print_object("JobRun", shown, form, "\n".join(lines))


def print_outcome(job: GraphJobStatus, form: OutputFormat) -> None:
    """Prints how a job ended."""
    text = f"{Path(job.state_file).stem}: {job.state}, {progress_text(job.progress)}"
    if job.message:
        text += f"\n{job.message}"
    print_object("JobRun", job_dict(job), form, text)

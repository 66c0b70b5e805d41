"""Implements the commands that list executors, slots, requests, jobs and events, and `status`,
which shows totals.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain.errors import InvalidArgument, NotFound, Reason
from finegrain.units import format_bytes, format_cpu
from finegrain.values.states import RequestState
from finegrain_cli import completing
from finegrain_cli.common import (
    ConfigOption,
    CredentialsOption,
    ManagerOption,
    OutputOption,
    WatchOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.last import LAST, last_allocation_id, last_job_id
from finegrain_cli.naming import (
    ENDED_STATES,
    best_matches,
    full_allocation_id,
    full_job_id,
    job_names,
)
from finegrain_cli.text import columns
from finegrain_cli.text.fit import output_width, shortened
from finegrain_cli.text.output import (
    Column,
    OutputFormat,
    columns_in,
    print_json_line,
    print_list,
    print_object,
    print_table,
)
from finegrain_cli.text.providers import pending_rows

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster

WATCH_INTERVAL_S = 1.0
ALL_STATES = tuple(RequestState)
CLEAR_SCREEN = "\x1b[H\x1b[2J"

Rows = Sequence[Mapping[str, Any]]


def _id_argument(complete: Callable[[typer.Context, str], list[tuple[str, str]]]) -> Any:
    return typer.Argument(
        metavar="[ID]",
        autocompletion=complete,
        help="Show only the item with this id; the beginning or end of the id is enough.",
    )


ExecutorIdArgument = Annotated[str, _id_argument(completing.executors)]
SlotIdArgument = Annotated[str, _id_argument(completing.slots)]
RequestIdArgument = Annotated[str, _id_argument(completing.requests)]
JobOption = Annotated[
    str,
    typer.Option(
        "--job",
        metavar="JOB",
        autocompletion=completing.jobs,
        help="Show only items of this job: its name, its id, or the beginning or end of its id.",
    ),
]
ExecutorOption = Annotated[
    str,
    typer.Option(
        "--executor",
        metavar="EXECUTOR",
        autocompletion=completing.executors,
        help="Show only slots on this executor.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Also show items that have ended.")]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (status, slots, requests, jobs, events):
        app.command()(reporting_errors(command))


def status(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show capacity, slots, and the number of waiting requests by reason."""
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        info = cluster.info().to_dict()
    print_object("Cluster", info, output, _status_text(info))


def executors(
    executor_id: ExecutorIdArgument = "",
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List executors with total, allocated and available resources.

    Tables also show executors that were requested and have not registered yet.

    \b
    Examples:
      finegrain executors
      finegrain executors -o wide --watch
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:

        def read() -> Rows:
            rows = [each.to_dict() for each in cluster.executors()]
            if output in (OutputFormat.TABLE, OutputFormat.WIDE):
                known = {row["executor_id"] for row in rows}
                rows += [
                    row
                    for row in pending_rows(cluster.providers())
                    if row["executor_id"] not in known
                ]
            return _chosen(rows, "executor", "executor_id", executor_id, Reason.EXECUTOR_UNKNOWN)

        _show("ExecutorList", "executor_id", read, columns.EXECUTORS, output, watch=watch)


def slots(
    allocation_id: SlotIdArgument = "",
    job: JobOption = "",
    executor: ExecutorOption = "",
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List slots.

    -o wide adds cpus, NUMA nodes, devices, and which limits are enforced.

    \b
    Examples:
      finegrain slots
      finegrain slots --executor host-a -o wide
      finegrain slots --job nightly
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        job_id = full_job_id(cluster, job) if job else ""
        slot_id = ""
        if allocation_id:
            slot_id = full_allocation_id(cluster, allocation_id)
            (request,) = cluster.requests(allocation_ids=[slot_id], states=ALL_STATES)
            job_id = job_id or request.job_id

        def read() -> Rows:
            rows = [each.to_dict() for each in cluster.slots(executor_id=executor, job_id=job_id)]
            if output is OutputFormat.WIDE:
                _add_device_usage(cluster, rows)
            rows = _with_names(cluster, rows, output)
            found = _chosen(rows, "slot", "allocation_id", slot_id, Reason.ALLOCATION_UNKNOWN)
            return _for_people(found, output, "allocation_id", "job_id")

        _show("SlotList", "allocation_id", read, columns.SLOTS, output, watch=watch)


def _add_device_usage(cluster: Cluster, rows: list[dict[str, Any]]) -> None:
    """Adds the measured use of devices to slots that have devices."""
    if not any((row["assignment"] or {}).get("devices") for row in rows):
        return
    used: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for executor in cluster.devices():
        for device in executor.devices:
            for each in device.usage.slots if device.usage is not None else ():
                usage = {**each.to_dict(), "type": device.device.type, "uuid": device.device.uuid}
                used.setdefault((each.allocation_id, each.generation), []).append(usage)
    for row in rows:
        row["device_usage"] = used.get((row["allocation_id"], row["generation"]), [])


def requests(
    allocation_id: RequestIdArgument = "",
    job: JobOption = "",
    all_: AllOption = False,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List slot requests in the order of the queue, with the reasons why they wait.

    \b
    Examples:
      finegrain requests
      finegrain requests last
      finegrain requests --job nightly --all -o wide
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        wanted = last_allocation_id() if allocation_id == LAST else allocation_id
        job_id = full_job_id(cluster, job) if job else ""

        def read() -> Rows:
            only = [wanted] if wanted else []
            found = cluster.requests(job_id=job_id, allocation_ids=only)
            if all_ or wanted:
                ended = cluster.requests(job_id=job_id, states=ENDED_STATES, allocation_ids=only)
                found = [*ended, *found]
            rows = [each.to_dict() for each in found]
            if wanted and not rows:
                raise _unknown("request", wanted, Reason.ALLOCATION_UNKNOWN)
            return _for_people(rows, output, "allocation_id", "job_id")

        _show("RequestList", "allocation_id", read, columns.REQUESTS, output, watch=watch)


def jobs(
    job_id: Annotated[
        str,
        typer.Argument(
            metavar="[JOB]",
            autocompletion=completing.jobs,
            help="Show only this job: its name, its id, or the beginning or end of its id.",
        ),
    ] = "",
    all_: AllOption = False,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List jobs.

    \b
    Examples:
      finegrain jobs
      finegrain jobs nightly
      finegrain jobs --all -o json
    """
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        wanted = last_job_id() if job_id == LAST else job_id

        def read() -> Rows:
            found = cluster.jobs(
                include_ended=all_ or bool(wanted), matching=[wanted] if wanted else []
            )
            if wanted and not found:
                raise _unknown("job", wanted, Reason.JOB_UNKNOWN)
            return _for_people([each.to_dict() for each in found], output, "job_id")

        _show("JobList", "job_id", read, columns.JOBS, output, watch=watch)


def events(
    subject_id: Annotated[
        str,
        typer.Argument(
            metavar="[ID]",
            autocompletion=completing.subjects,
            help="Show only events of this executor, job, request or slot; the beginning or end of "
            "an id is enough.",
        ),
    ] = "",
    newest: Annotated[
        int,
        typer.Option("-n", "--newest", metavar="N", min=1, help="Start with the last N events."),
    ] = 100,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """List events, the oldest first.

    \b
    Examples:
      finegrain events --newest 20
      finegrain events --watch -o jsonl
    """
    enter_command(output, manager, credentials, config)
    if watch and output is OutputFormat.JSON:
        raise InvalidArgument("--output", "json", "jsonl or table together with --watch")
    with open_cluster() as cluster:
        subject = _full_subject(cluster, subject_id) if subject_id else ""
        if watch:
            _follow_events(cluster, subject, newest, output)
        else:
            found = cluster.events(subject_id=subject, newest=newest)
            rows = [each.to_dict() for each in found]
            shown = _for_people(rows, output, "allocation_id", "job_id")
            print_list("EventList", shown, columns.EVENTS, output)


def _full_subject(cluster: Cluster, text: str) -> str:
    """Returns the full id of the request, slot or job that `text` means. If there is none, returns
    `text`, which is then the id of an executor.

    A text that means no known object is not an error, because events are kept longer than jobs and
    executors.
    """
    for find in (full_allocation_id, full_job_id):
        with suppress(NotFound):
            return find(cluster, text)
    return text


def _follow_events(cluster: Cluster, subject_id: str, newest: int, output: OutputFormat) -> None:
    shown = columns_in(columns.EVENTS, output)
    width = output_width()
    for event in cluster.events(subject_id=subject_id, newest=newest, follow=True):
        row = event.to_dict()
        if output is OutputFormat.JSONL:
            print_json_line(row)
            continue
        (cells,) = _for_people([row], output, "allocation_id", "job_id")
        line = "  ".join(column.text(cells) for column in shown)
        print(line if output is OutputFormat.WIDE else shortened(line, width), flush=True)


def _with_names(
    cluster: Cluster, rows: list[dict[str, Any]], output: OutputFormat
) -> list[dict[str, Any]]:
    """Adds the names of jobs to rows of a table."""
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        return rows
    names = job_names(cluster, (row["job_id"] for row in rows))
    return [{**row, columns.JOB_NAME: names.get(row["job_id"], "")} for row in rows]


def _for_people(rows: Rows, output: OutputFormat, *keys: str) -> Rows:
    """If `output` is a table that is not wide, adds short forms of the ids under `keys` to the
    rows.
    """
    return columns.with_short_ids(rows, *keys) if output is OutputFormat.TABLE else rows


def _unknown(what: str, text: str, reason: Reason) -> NotFound:
    return NotFound(
        f"no {what} has the id {text!r}, or an id that begins or ends with it", reason=reason
    )


def _chosen(rows: Rows, what: str, key: str, wanted: str, reason: Reason) -> Rows:
    """Returns the row with the id `wanted`. If there is no such row, returns all rows that
    `best_matches` finds.

    Args:
        rows: the rows.
        what: the kind of object in a row ("slot"), for the error.
        key: the key under which a row has its id.
        wanted: the id, or its beginning or end. If empty, the function returns all rows.
        reason: the reason of the error.

    Raises:
        NotFound: there is no such row.
    """
    if not wanted:
        return rows
    found = best_matches(wanted, (row[key] for row in rows))
    if not found:
        raise _unknown(what, wanted, reason)
    return [row for row in rows if row[key] in found]


def _show(
    kind: str,
    key: str,
    read: Callable[[], Rows],
    shown: Sequence[Column],
    output: OutputFormat,
    *,
    watch: bool,
) -> None:
    if not watch:
        print_list(kind, read(), shown, output)
        return
    if output is OutputFormat.JSON:
        raise InvalidArgument("--output", "json", "jsonl or table together with --watch")
    if output is OutputFormat.JSONL:
        _watch_lines(key, read)
    else:
        _watch_table(read, columns_in(shown, output), output)


def _watch_lines(key: str, read: Callable[[], Rows]) -> None:
    """Prints a JSON line for each new or changed row, and {key: id, "gone": true} for each removed
    row.
    """
    before: dict[str, Mapping[str, Any]] = {}
    while True:
        now = {str(row[key]): row for row in read()}
        for name, row in now.items():
            if before.get(name) != row:
                print_json_line(row)
        for name in before.keys() - now.keys():
            print_json_line({key: name, "gone": True})
        before = now
        time.sleep(WATCH_INTERVAL_S)


def _watch_table(read: Callable[[], Rows], shown: Sequence[Column], output: OutputFormat) -> None:
    before: list[list[str]] | None = None
    while True:
        rows = read()
        now = [[column.text(row) for column in shown] for row in rows]
        if now != before:
            if sys.stdout.isatty():
                sys.stdout.write(CLEAR_SCREEN)
            elif before is not None:
                print()
            print_table(shown, rows, output)
            sys.stdout.flush()
        before = now
        time.sleep(WATCH_INTERVAL_S)


def _status_text(info: Mapping[str, Any]) -> str:
    lines = [
        f"resource manager {info['software_version']}, epoch {info['rm_epoch']}",
        f"up         {columns.age(info, 'start_time')}",
        f"executors  {_counts(info['executors'])}",
        f"jobs       {info['jobs']}",
        f"slots      {info['slots']}",
        f"waiting    {_counts(info['pending_requests'])}",
        "",
        f"{'':<12}{'cpu':>10}{'memory':>12}",
    ]
    has_devices = bool(columns.devices_of(info["total"]))
    lines[-1] += "    devices" if has_devices else ""
    for name in ("total", "reserved", "allocated", "available"):
        amounts = info[name]
        cpu = format_cpu(amounts.get("cpu_milli", 0))
        devices = ", ".join(columns.devices_text(columns.devices_of(amounts))) or "-"
        line = f"{name:<12}{cpu:>10}{format_bytes(columns.memory_of(amounts)):>12}"
        lines.append(f"{line}    {devices}" if has_devices else line)
    used = info["used"]
    lines.append(
        f"{'used':<12}{format_cpu(used['cpu_milli']):>10}{format_bytes(used['memory_bytes']):>12}"
    )
    return "\n".join(lines)


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count) or "none"

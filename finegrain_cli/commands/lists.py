"""Commands that list executors, slots, requests, jobs and events; `status` summarises them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain.errors import InvalidArgument, NotFound, Reason
from finegrain.units import format_bytes, format_cpu
from finegrain_cli.common import (
    ConfigOption,
    ManagerOption,
    OutputOption,
    TokenFileOption,
    WatchOption,
    enter_command,
    reporting_errors,
)
from finegrain_cli.connection import open_cluster
from finegrain_cli.naming import ENDED_STATES
from finegrain_cli.text import columns
from finegrain_cli.text.output import (
    Column,
    OutputFormat,
    print_json_line,
    print_list,
    print_object,
    print_table,
)
from finegrain_cli.text.providers import pending_rows

if TYPE_CHECKING:
    from finegrain_client.blocking import Cluster

WATCH_INTERVAL_S = 1.0
CLEAR_SCREEN = "\x1b[H\x1b[2J"

Rows = Sequence[Mapping[str, Any]]
IdArgument = Annotated[
    str, typer.Argument(metavar="[ID]", help="Show only the item with this id; a prefix is enough.")
]
JobOption = Annotated[str, typer.Option("--job", help="Show only items of the job with this id.")]
ExecutorOption = Annotated[
    str, typer.Option("--executor", help="Show only slots on this executor.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Also show items that have ended.")]


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (status, slots, requests, jobs, events):
        app.command()(reporting_errors(command))


def status(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """Show capacity, slots, and how many requests wait, by reason."""
    enter_command(output, manager, token_file, config)
    with open_cluster() as cluster:
        info = cluster.info().to_dict()
    print_object("Cluster", info, output, _status_text(info))


def executors(
    executor_id: IdArgument = "",
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """List executors with total, allocated and available resources.

    Tables also show executors that were requested and have not registered yet.

    \b
    Examples:
      finegrain executors
      finegrain executors -o wide --watch
    """
    enter_command(output, manager, token_file, config)
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
    allocation_id: IdArgument = "",
    job: JobOption = "",
    executor: ExecutorOption = "",
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """List slots.

    -o wide adds cpus, NUMA nodes, devices, and which limits are enforced.

    \b
    Examples:
      finegrain slots
      finegrain slots --executor host-a -o wide
    """
    enter_command(output, manager, token_file, config)
    with open_cluster() as cluster:

        def read() -> Rows:
            rows = [each.to_dict() for each in cluster.slots(executor_id=executor, job_id=job)]
            if output is OutputFormat.WIDE:
                _add_device_usage(cluster, rows)
            return _chosen(rows, "slot", "allocation_id", allocation_id, Reason.ALLOCATION_UNKNOWN)

        _show("SlotList", "allocation_id", read, columns.SLOTS, output, watch=watch)


def _add_device_usage(cluster: Cluster, rows: list[dict[str, Any]]) -> None:
    """Adds measured use of devices to slots that have some."""
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
    allocation_id: IdArgument = "",
    job: JobOption = "",
    all_: AllOption = False,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """List slot requests in queue order, with the reasons why they wait.

    \b
    Examples:
      finegrain requests
      finegrain requests --all -o wide
    """
    enter_command(output, manager, token_file, config)
    with open_cluster() as cluster:

        def read() -> Rows:
            # "ID.7" is a member of a range. In a list of all requests it may be part of an entry
            # that has the id of another member. So this call names it.
            only = [allocation_id] if "." in allocation_id else []
            found = cluster.requests(job_id=job, allocation_ids=only)
            if all_ or allocation_id:
                ended = cluster.requests(job_id=job, states=ENDED_STATES, allocation_ids=only)
                found = [*ended, *found]
            rows = [each.to_dict() for each in found]
            return _chosen(
                rows, "request", "allocation_id", allocation_id, Reason.ALLOCATION_UNKNOWN
            )

        _show("RequestList", "allocation_id", read, columns.REQUESTS, output, watch=watch)


def jobs(
    job_id: IdArgument = "",
    all_: AllOption = False,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """List jobs.

    \b
    Examples:
      finegrain jobs
      finegrain jobs --all -o json
    """
    enter_command(output, manager, token_file, config)
    with open_cluster() as cluster:

        def read() -> Rows:
            rows = [each.to_dict() for each in cluster.jobs(include_ended=all_ or bool(job_id))]
            return _chosen(rows, "job", "job_id", job_id, Reason.JOB_UNKNOWN)

        _show("JobList", "job_id", read, columns.JOBS, output, watch=watch)


def events(
    subject_id: Annotated[
        str,
        typer.Argument(
            metavar="[ID]",
            help="Show only events of the executor, job, request or slot with this id.",
        ),
    ] = "",
    newest: Annotated[
        int, typer.Option("-n", "--newest", min=1, help="Start with the last N events.")
    ] = 100,
    output: OutputOption = OutputFormat.TABLE,
    watch: WatchOption = False,
    manager: ManagerOption = "",
    token_file: TokenFileOption = "",
    config: ConfigOption = "",
) -> None:
    """List events, the oldest first.

    \b
    Examples:
      finegrain events --newest 20
      finegrain events --watch -o jsonl
    """
    enter_command(output, manager, token_file, config)
    if watch and output is OutputFormat.JSON:
        raise InvalidArgument("--output", "json", "jsonl or table together with --watch")
    with open_cluster() as cluster:
        if watch:
            _follow_events(cluster, subject_id, newest, output)
        else:
            found = cluster.events(subject_id=subject_id, newest=newest)
            rows = [each.to_dict() for each in found]
            print_list("EventList", rows, columns.EVENTS, output)


def _follow_events(cluster: Cluster, subject_id: str, newest: int, output: OutputFormat) -> None:
    shown = [each for each in columns.EVENTS if output is OutputFormat.WIDE or not each.wide]
    for event in cluster.events(subject_id=subject_id, newest=newest, follow=True):
        row = event.to_dict()
        if output is OutputFormat.JSONL:
            print_json_line(row)
        else:
            print("  ".join(column.text(row) for column in shown), flush=True)


def _chosen(rows: Rows, what: str, key: str, wanted: str, reason: Reason) -> Rows:
    """Returns the row with the id `wanted`; if there is none, all rows whose id begins with it.

    Args:
        rows: the rows.
        what: what a row is ("slot"), for the error.
        key: the key under which a row has its id.
        wanted: the id, or its beginning; empty: all rows are returned.
        reason: the reason of the error.

    Raises:
        NotFound: there is no such row.
    """
    if not wanted:
        return rows
    # A full id may be the beginning of other ids, so an exact match has priority.
    exact = [row for row in rows if row[key] == wanted]
    found = exact or [row for row in rows if str(row[key]).startswith(wanted)]
    if not found:
        raise NotFound(
            f"no {what} has the id {wanted!r}, or an id that begins with it", reason=reason
        )
    return found


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
        _watch_table(read, [each for each in shown if output is OutputFormat.WIDE or not each.wide])


def _watch_lines(key: str, read: Callable[[], Rows]) -> None:
    """Prints a JSON line per new or changed row; {key: id, "gone": true} for a removed row."""
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


def _watch_table(read: Callable[[], Rows], shown: Sequence[Column]) -> None:
    before: list[list[str]] | None = None
    while True:
        rows = read()
        now = [[column.text(row) for column in shown] for row in rows]
        if now != before:
            if sys.stdout.isatty():
                sys.stdout.write(CLEAR_SCREEN)
            elif before is not None:
                print()
            print_table(shown, rows)
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

"""Implements the commands about hosts: `detect`, `topo` and `doctor`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from finegrain.errors import InvalidArgument, NotFound, Reason
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
from finegrain_cli.context import current
from finegrain_cli.exit_codes import ExitCode
from finegrain_cli.text.output import Column, OutputFormat, Style, painted, print_list, print_object

if TYPE_CHECKING:
    from finegrain_cli.doctor.findings import Examination
    from finegrain_client.blocking import Cluster

FINDINGS = (
    Column("grade", lambda row: row["grade"].upper()),
    Column("what", lambda row: row["name"]),
    Column("finding", lambda row: row["message"]),
)
REPORTED = ("cpus", "announced", "now", "settings", "zones", "pools", "lost_cpus")
"""Keys that `topo` adds to the executor's JSON form, from the report on the executor's cpus."""

STYLES = {"ok": Style.GOOD, "warn": Style.DOUBTFUL, "fail": Style.BAD}


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    for command in (detect, topo, doctor):
        app.command()(reporting_errors(command))


def detect(
    output: OutputOption = OutputFormat.TABLE,
    config: ConfigOption = "",
) -> None:
    """Show which resources an executor on this host would offer.

    No executor is started. Reserves and shares come from the section [executor] of the
    configuration.

    \b
    Examples:
      finegrain detect
    """
    enter_command(output, config_file=config)
    from finegrain.cpuset import CpuSet
    from finegrain.topology_text import render_topology
    from finegrain_cli.config.daemon_options import task_executor_options
    from finegrain_cli.text.columns import profile_text
    from finegrain_cli.text.devices import offered_lines
    from task_executor.host.capacity import CapacityOptions, plan_capacity
    from task_executor.host.configured_devices import discover
    from task_executor.host.detection import detect as detect_host
    from task_executor.host.memory_regions import limit_problems
    from task_executor.host.nvml import PynvmlSource
    from task_executor.service.host_plan import plan_host

    options = task_executor_options(current().configuration().settings)
    topology = detect_host(Path("/"), PynvmlSource())
    configured = discover(options.device_types, topology.numa_nodes)
    plan = plan_host(options, topology, configured)
    # Compute the capacity, because the plan has only totals, and the drawing also needs the cpus.
    capacity = plan_capacity(
        topology,
        CapacityOptions(
            reserved_cpus=CpuSet.parse(options.reserved_cpus) if options.reserved_cpus else None,
            reserved_memory_bytes=options.reserved_memory_bytes,
            share_cpus=CpuSet.parse(options.cpus) if options.cpus else None,
            share_memory_bytes=options.memory_bytes,
        ),
    )
    limits = limit_problems(plan.devices)
    profile = plan.default_profile.to_dict()
    data = {
        "total": dict(plan.share.total),
        "reserved": dict(plan.reserved),
        "default_slot_profile": profile,
        "shared_cpus": str(plan.share.shared_cpus),
        "devices": [asdict(each) for each in plan.devices.devices],
        "gpu_memory_limits": [
            {"uuid": uuid, "possible": not why, "reason": why} for uuid, why in limits.items()
        ],
        "topology": topology.to_dict(),
        "capacity": capacity.to_dict(),
        "warnings": list(plan.warnings),
    }
    text = f"{render_topology(topology, capacity)}\ndefault slot: {profile_text(profile)}"
    if offers := offered_lines(plan.devices):
        text += "\n\ndevices for slots:\n" + "\n".join(offers)
    names = {each.uuid: each.name for each in plan.devices.devices}
    for uuid, why in limits.items():
        possible = f"no, {why}" if why else "yes"
        text += f"\nmemory of {names[uuid]} can be limited for each slot: {possible}"
    text += "".join(f"\nwarning: {each}" for each in configured.warnings)
    print_object("HostDetection", data, output, text)


def topo(
    executor: Annotated[
        str,
        typer.Argument(
            metavar="[EXECUTOR]",
            autocompletion=completing.executors,
            help="Id of the executor, or a prefix; not needed if there is only one.",
        ),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Draw the cpus of an executor's host, with their slots.

    The drawing shows packages, NUMA nodes, cores and threads.

    \b
    Examples:
      finegrain topo
      finegrain topo host-a
    """
    enter_command(output, manager, credentials, config)
    from finegrain_cli.text.devices import link_matrix
    from finegrain_cli.text.executor_map import executor_text

    with open_cluster() as cluster:
        executor_id = _executor_id(cluster, executor)
        found = cluster.executor(executor_id).to_dict()
        report = cluster.topology(executor_id)
        (devices,) = cluster.devices(executor_id)
    report_data = report.to_dict()
    data = found | {name: report_data[name] for name in REPORTED}
    text = executor_text(found, report)
    if matrix := link_matrix([each.device for each in devices.devices], devices.links):
        text += f"\n\nlinks between GPUs{' (fake)' if devices.fake else ''}:\n{matrix}"
    print_object("ExecutorTopology", data | {"devices": devices.to_dict()}, output, text)


def doctor(
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Check this host, and print the fix for each problem.

    `doctor` changes nothing. The exit code is 1 if a check fails, and 0 if there are only
    warnings.

    \b
    Examples:
      finegrain doctor
      finegrain doctor -o json
    """
    enter_command(output, manager, credentials, config)
    from finegrain_cli.doctor.findings import Grade, examine

    findings = list(examine(_examinations()))
    rows = [each.to_dict() for each in findings]
    if output in (OutputFormat.JSON, OutputFormat.JSONL):
        print_list("FindingList", rows, FINDINGS, output)
    else:
        print("\n".join(_lines(rows)))
    if any(each.grade is Grade.FAIL for each in findings):
        raise typer.Exit(ExitCode.ERROR)


def _examinations() -> Sequence[tuple[str, Examination]]:
    from finegrain_cli.doctor import cgroups, devices, kubelet, network, software, storage, users

    settings = current().configuration().settings
    named = bool(current().manager or settings.client.manager)
    return (
        ("software", software.examine_software),
        ("cgroups", cgroups.examine_cgroups),
        ("devices", partial(devices.examine_devices, settings)),
        ("kubelet", partial(kubelet.examine_kubelet, settings)),
        ("users", partial(users.examine_users, settings)),
        ("clock", software.examine_clock),
        ("directories", partial(storage.examine_directories, settings)),
        ("credentials", partial(storage.examine_credentials, settings)),
        ("database", partial(storage.examine_database, settings)),
        ("ports", partial(network.examine_ports, settings)),
        ("resource manager", partial(network.examine_manager, named=named)),
    )


def _lines(rows: list[dict[str, str]]) -> list[str]:
    lines = []
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        grade = painted(f"{row['grade'].upper():<4}", STYLES[row["grade"]])
        lines.append(f"{grade}  {row['name']:<{width}}  {row['message']}")
        if row["fix"]:
            lines.append(f"{'':<4}  {'':<{width}}  fix: {row['fix']}")
    counts: dict[str, Any] = {}
    for row in rows:
        counts[row["grade"]] = counts.get(row["grade"], 0) + 1
    return [*lines, "", ", ".join(f"{count} {grade}" for grade, count in counts.items())]


def _executor_id(cluster: Cluster, text: str) -> str:
    """Returns the id that equals `text`. If no id equals `text`, returns the only id that begins
    with `text`.

    Raises:
        NotFound: no executor has an id that begins with `text`.
        InvalidArgument: several ids begin with `text`.
    """
    ids = [each.executor_id for each in cluster.executors()]
    found = [text] if text in ids else [each for each in ids if each.startswith(text)]
    if not found:
        what = (
            f"no executor has the id {text!r}, or an id that begins with it"
            if text
            else "there are no executors"
        )
        raise NotFound(what, reason=Reason.EXECUTOR_UNKNOWN)
    if len(found) > 1:
        raise InvalidArgument("EXECUTOR", text, f"one of {', '.join(sorted(found)[:20])}")
    return found[0]

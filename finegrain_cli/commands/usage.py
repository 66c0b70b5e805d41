"""Implements `finegrain usage`, which shows what a host, a slot or a group really uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from finegrain.errors import InvalidArgument
from finegrain.units import format_bytes, format_cpu
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
from finegrain_cli.naming import full_allocation_id
from finegrain_cli.text.columns import memory_of
from finegrain_cli.text.output import Column, OutputFormat, print_object, table_lines

BARS = " ▁▂▃▄▅▆▇█"
BARS_MAX = 48  # with this maximum, the line fits into 80 columns

Row = Mapping[str, Any]

SAMPLES = (
    Column("time", lambda row: str(row["sample_time"])[11:19]),
    Column("slots' cpu", lambda row: format_cpu(row["cpu_milli"]), right=True),
    Column("slots' memory", lambda row: format_bytes(row["memory_bytes"]), right=True),
    Column("host cpu", lambda row: format_cpu(row["host_cpu_milli"]), right=True),
    Column("host memory", lambda row: format_bytes(row["host_memory_used_bytes"]), right=True),
)
SLOT_SAMPLES = (
    SAMPLES[0],
    Column("cpu", SAMPLES[1].text, right=True),
    Column("memory", SAMPLES[2].text, right=True),
)
GROUP_SAMPLES = (
    SAMPLES[0],
    Column("cpu allocated", SAMPLES[1].text, right=True),
    Column("memory allocated", SAMPLES[2].text, right=True),
    Column("cpu used", lambda row: format_cpu(row["measured_cpu_milli"]), right=True),
    Column("memory used", lambda row: format_bytes(row["measured_memory_bytes"]), right=True),
    Column("share", lambda row: f"{row['share_now']:.1%}", right=True),
    Column("entitled", lambda row: f"{row['share_entitled']:.1%}", right=True),
    Column("waiting", lambda row: str(row["waiting"]), right=True),
)


def register(app: typer.Typer) -> None:
    """Registers the commands of this module."""
    app.command()(reporting_errors(usage))


def usage(
    executor: Annotated[
        str,
        typer.Argument(
            metavar="EXECUTOR",
            help="The executor whose host is shown.",
            autocompletion=completing.executors,
            show_default=False,
        ),
    ] = "",
    slot: Annotated[
        str,
        typer.Option(
            metavar="SLOT",
            help="Show a slot instead of an executor.",
            autocompletion=completing.slots,
        ),
    ] = "",
    group: Annotated[
        str,
        typer.Option(
            metavar="GROUP",
            help="Show a group instead.",
            autocompletion=completing.groups,
        ),
    ] = "",
    output: OutputOption = OutputFormat.TABLE,
    manager: ManagerOption = "",
    credentials: CredentialsOption = "",
    config: ConfigOption = "",
) -> None:
    """Show what a host, a slot or a group really uses, now and in the last hour.

    Allocated amounts are promises; this command shows measurements. For a group, it also shows
    allocated amounts and shares. `-o wide` lists the samples of the last hour.

    \b
    Examples:
      finegrain usage web-1
      finegrain usage web-1 -o wide
      finegrain usage --slot last
      finegrain usage --group research
    """
    if [bool(executor), bool(slot), bool(group)].count(True) != 1:
        allowed = "an executor, or else --slot SLOT or --group GROUP"
        raise InvalidArgument("EXECUTOR", executor, allowed)
    enter_command(output, manager, credentials, config)
    with open_cluster() as cluster:
        if slot:
            slot_id = full_allocation_id(cluster, slot)
            history = cluster.usage(allocation_id=slot_id).to_dict()
            data = {"allocation_id": slot_id, "group": "", "now": None, **history}
            text = _of_slot(slot_id, history, output)
        elif group:
            history = cluster.usage(group=group).to_dict()
            data = {"allocation_id": "", "group": group, "now": None, **history}
            text = _of_group(group, history["samples"], output)
        else:
            history = cluster.usage(executor_id=executor).to_dict()
            now = cluster.executor(executor).to_dict()
            data = {"allocation_id": "", "group": "", "now": now["used"], **history}
            text = _of_executor(now, history["samples"], output)
    print_object("Usage", data, output, text)


def _of_executor(row: Row, samples: Sequence[Row], output: OutputFormat) -> str:
    used, total, allocated = row["used"], row["total"], row["allocated"]
    by_slots = format_cpu(used["cpu_milli"])
    booked = format_cpu(allocated.get("cpu_milli", 0))
    facts = {
        "executor": row["executor_id"],
        "slots": str(row["slots"]),
        "tasks": str(used["tasks"]),
        "cpu": f"{by_slots} used by slots, {booked} allocated, "
        f"{format_cpu(total.get('cpu_milli', 0))} total",
        "memory": f"{format_bytes(used['memory_bytes'])} used by slots, "
        f"{format_bytes(memory_of(allocated))} allocated, {format_bytes(memory_of(total))} total",
        **(_host_facts(used["host"]) if used["host"] else {"host": "not measured yet"}),
    }
    return _text(facts, samples, SAMPLES, "host_cpu_milli", output)


def _host_facts(host: Row) -> dict[str, str]:
    def of_total(name: str) -> str:
        used, total = host[f"{name}_used_bytes"], host[f"{name}_total_bytes"]
        return f"{format_bytes(used)} of {format_bytes(total)}"

    def rate(name: str) -> str:
        return f"{format_bytes(host[f'{name}_bytes_per_second'])}/s"

    busy = " ".join(map(str, host["cpu_busy_percent"]))
    temperatures = (f"{each['sensor']} {each['celsius']:.0f} °C" for each in host["temperatures"])
    return {
        "host cpu": f"{format_cpu(host['cpu_milli'])} by all programs",
        "busy cpus": f"{host['cpus']}: {busy} %",
        "load": f"{host['load_1m']:.2f} {host['load_5m']:.2f} {host['load_15m']:.2f}"
        " in 1, 5 and 15 minutes",
        "host memory": of_total("memory"),
        "swap": of_total("swap"),
        "disk": f"{of_total('disk')}; reads {rate('disk_read')}, writes {rate('disk_write')}",
        "network": f"receives {rate('network_receive')}, sends {rate('network_transmit')}",
        "sensors": ", ".join(temperatures) or "none",
    }


def _of_slot(slot_id: str, history: Row, output: OutputFormat) -> str:
    if not history["executor_id"]:
        return f"request {slot_id} has no slot now; finegrain explain {slot_id} shows its state"
    facts = {"slot": slot_id, "executor": history["executor_id"]}
    if samples := history["samples"]:
        facts["cpu"] = format_cpu(samples[-1]["cpu_milli"])
        facts["memory"] = format_bytes(samples[-1]["memory_bytes"])
    return _text(facts, samples, SLOT_SAMPLES, "cpu_milli", output)


def _of_group(group: str, samples: Sequence[Row], output: OutputFormat) -> str:
    facts = {"group": group}
    if samples:
        last = samples[-1]
        used = format_cpu(last["measured_cpu_milli"])
        facts["cpu"] = f"{used} used, {format_cpu(last['cpu_milli'])} allocated"
        used = format_bytes(last["measured_memory_bytes"])
        facts["memory"] = f"{used} used, {format_bytes(last['memory_bytes'])} allocated"
        share, entitled = last["share_now"], last["share_entitled"]
        facts["share"] = f"{share:.1%} of all use, entitled to {entitled:.1%}"
        facts["waiting"] = str(last["waiting"])
    missing = "no samples; a group with slots or requests has one each minute"
    return _text(facts, samples, GROUP_SAMPLES, "measured_cpu_milli", output, missing)


def _text(
    facts: Mapping[str, str],
    samples: Sequence[Row],
    shown: Sequence[Column],
    key: str,
    output: OutputFormat,
    missing: str = "no samples yet; an executor reports every few seconds",
) -> str:
    """Returns a text with the facts, one on each line. After the facts, the text has the samples:
    as a table, or as bars that show the value `key`.
    """
    highest = max((each[key] for each in samples), default=0)
    steps = (round(each[key] / (highest or 1) * (len(BARS) - 1)) for each in samples)
    bars = "".join(BARS[step] for step in steps)[-BARS_MAX:]
    if not samples:
        facts = {**facts, "last hour": missing}
    elif output is not OutputFormat.WIDE:
        facts = {**facts, "last hour": f"{bars}  highest {format_cpu(highest)} cpu"}
    lines = [f"{name:<12}{fact}" for name, fact in facts.items()]
    if samples and output is OutputFormat.WIDE:
        lines += ["", *table_lines(shown, samples)]
    return "\n".join(lines)

"""Writes resource groups as text: a tree with weights, shares, usage, waiting requests and
limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from finegrain.resources import CPU_MILLI, DEVICE_PREFIX, EXTENDED_PREFIX, MEMORY_BYTES
from finegrain.units import format_bytes, format_cpu, format_duration
from finegrain_cli.text.columns import age, devices_of, devices_text, memory_of
from finegrain_cli.text.fit import ShortIds
from finegrain_cli.text.output import (
    Column,
    OutputFormat,
    Style,
    columns_in,
    painted,
    table_lines,
)

if TYPE_CHECKING:
    from finegrain_client.types.groups import Groups
    from finegrain_client.types.status import JobStatus

Row = Mapping[str, Any]

_MEASURES = {
    "dominant": "shares of the cluster x seconds",
    "slots": "slots x seconds",
    "cpu": "cores x seconds",
}


def groups_text(found: Groups, jobs: Sequence[JobStatus] = (), *, wide: bool = False) -> str:
    """Returns the text that `finegrain groups` prints."""
    rows = _rows(found, jobs, wide=wide)
    form = OutputFormat.WIDE if wide else OutputFormat.TABLE
    heading, *lines = table_lines(columns_in(COLUMNS, form), rows, form)
    held = [f"reserved: {each.summary}" for each in found.reservations]
    return "\n".join([painted(heading, Style.BOLD), *lines, "", *held, _legend(found)])


def limits_text(amounts: Mapping[str, int]) -> str:
    """Returns limits in one line, such as "cpu 64, memory 1Ti, license 3", or "-" if there are no
    limits.
    """
    named = {
        CPU_MILLI: lambda amount: f"cpu {format_cpu(amount)}",
        MEMORY_BYTES: lambda amount: f"memory {format_bytes(amount)}",
    }
    parts = [
        named[name](amount) if name in named else f"{name.removeprefix(EXTENDED_PREFIX)} {amount}"
        for name, amount in amounts.items()
        if not name.startswith(DEVICE_PREFIX)
    ]
    parts += devices_text(devices_of(amounts))
    return ", ".join(parts) or "-"


def users_text(users: Sequence[str]) -> str:
    """Returns the users of a group in one line: "alice, bob", or "all" for all users, or "-" for no
    users.
    """
    if "*" in users:
        return "all"
    return ", ".join(each.removeprefix("user/") for each in users) or "-"


def rules_text(rules: Sequence[Row]) -> str:
    """Returns a table of the rules that choose groups, in their order."""
    if not rules:
        return "no rules: jobs that name no group are in the group default"
    heading, *lines = table_lines(RULE_COLUMNS, rules, OutputFormat.TABLE)
    return "\n".join([painted(heading, Style.BOLD), *lines])


def used_text(amounts: Mapping[str, int]) -> str:
    """Returns the amounts of slots in the form of `limits_text`. The amount of memory is the sum of
    all memory parts.
    """
    found = {CPU_MILLI: amounts.get(CPU_MILLI, 0), MEMORY_BYTES: memory_of(amounts)}
    others = (EXTENDED_PREFIX, DEVICE_PREFIX)
    found |= {name: each for name, each in amounts.items() if name.startswith(others)}
    return limits_text({name: amount for name, amount in found.items() if amount})


def _rows(found: Groups, jobs: Sequence[JobStatus], *, wide: bool) -> list[Row]:
    """Returns a row for each group, followed by the rows of its jobs. Names are indented by the
    level of the group.
    """
    levels: dict[str, int] = {"": -1}
    of_group: dict[str, list[JobStatus]] = {}
    short = ShortIds(() if wide else (job.job_id for job in jobs))
    for job in jobs:
        of_group.setdefault(job.group, []).append(job)
    rows: list[Row] = []
    for group in found.groups:
        level = levels[group.name] = levels.get(group.parent, -1) + 1
        rows.append({**group.to_dict(), "label": "  " * level + group.name})
        indent = "  " * (level + 1)
        rows += [_job_row(job, indent, short) for job in of_group.get(group.name, ())]
    return rows


def _job_row(job: JobStatus, indent: str, short: ShortIds) -> Row:
    data = job.to_dict()
    return {
        **data,
        "label": f"{indent}{job.name} ({short(job.job_id)})",
        "weight": 1.0,
        "share_entitled": None,
        "tally": None,
        "running": job.slots,
        "waiting": job.pending_requests,
        "jobs": None,
        "used": data["allocated"],
        "measured": {},
        "minimum": {},
        "maximum": {},
        "users": None,
        "description": "",
    }


def _legend(found: Groups) -> str:
    unit = _MEASURES.get(found.service_measure, found.service_measure)
    if found.half_life_s is None:
        return f"usage: {unit}; past usage always counts in full"
    return f"usage: {unit}; past usage counts half after {format_duration(found.half_life_s)}"


def _share(key: str) -> Any:
    def text(row: Row) -> str:
        return "-" if row[key] is None else f"{100 * row[key]:.1f} %"

    return text


def _number(key: str) -> Any:
    def text(row: Row) -> str:
        return "-" if row[key] is None else f"{row[key]:.4g}"

    return text


RULE_COLUMNS = (
    Column("order", lambda row: str(row["order"]), right=True),
    Column("job", lambda row: row["job"] or "any"),
    Column("user", lambda row: row["user"] or "any"),
    Column(
        "labels",
        lambda row: ", ".join(f"{key}={value}" for key, value in row["labels"].items()) or "any",
    ),
    Column("group", lambda row: row["group"]),
)
COLUMNS = (
    Column("group", lambda row: str(row["label"]), shrinks=True),
    Column("weight", lambda row: f"{row['weight']:.10g}", right=True, rank=4),
    Column("entitled", _share("share_entitled"), right=True, rank=2),
    Column("now", _share("share_now"), right=True, rank=1),
    Column("usage", _number("service"), right=True, rank=9),
    Column("slots", lambda row: str(row["running"]), right=True, rank=3),
    Column("waiting", lambda row: str(row["waiting"]), right=True, rank=5),
    Column("oldest", lambda row: age(row, "oldest_wait_time"), right=True, rank=6),
    Column("allocated", lambda row: used_text(row["used"]), rank=8, shrinks=True),
    Column("minimum", lambda row: limits_text(row["minimum"]), rank=10, shrinks=True),
    Column("maximum", lambda row: limits_text(row["maximum"]), rank=7, shrinks=True),
    Column(
        "users",
        lambda row: "" if row["users"] is None else users_text(row["users"]),
        rank=11,
        shrinks=True,
    ),
    Column("measured", lambda row: used_text(row["measured"]), wide=True),
    Column("virtual time", _number("tally"), wide=True, right=True),
    Column("jobs", _number("jobs"), wide=True, right=True),
    Column("description", lambda row: row["description"] or "-", wide=True),
)

"""Writes providers as text: executor shapes, and the requested executors with the reason why each
executor was requested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES
from finegrain.units import format_bytes, format_cpu, format_duration
from finegrain_cli.text.columns import age, amounts_text
from finegrain_cli.text.output import (
    Column,
    OutputFormat,
    Style,
    columns_in,
    painted,
    table_lines,
)

if TYPE_CHECKING:
    from finegrain_client.types.providers import Providers

NONE = (
    "no providers: executors are started and stopped only by hand (to change that, set "
    "providers_file of the resource manager)"
)


def providers_text(found: Providers, *, wide: bool = False) -> str:
    """Returns the text that `finegrain providers` prints."""
    data = found.to_dict()
    if not (found.shapes or found.executors):
        return NONE
    failed = [f"{each['name']}: {_trouble(each)}" for each in data["shapes"] if each["failures"]]
    parts = [_limits_lines(data), [*_table(SHAPES, data["shapes"], wide=wide), *failed]]
    if not found.shapes:
        parts = [["no shapes are configured; executors of earlier shapes:"]]
    if data["executors"]:
        parts.append(_table(EXECUTORS, data["executors"], wide=wide))
    if found.unplanned:
        parts.append([f"not planned: {each}" for each in found.unplanned])
    return "\n\n".join("\n".join(part) for part in parts)


def _limits_lines(data: Mapping[str, Any]) -> list[str]:
    idle_s = data["idle_timeout_s"]
    idle = "-" if idle_s is None else format_duration(idle_s)
    return [
        f"present    {amounts_text(data['present'])}",
        f"minimum    {_limits(data['minimum'])}",
        f"maximum    {_limits(data['maximum'])}",
        f"idle       stopped after {idle} without slots",
    ]


def pending_rows(found: Providers) -> list[dict[str, Any]]:
    """Returns rows for the table of executors. The rows are about executors that have not
    registered yet.
    """
    totals = {each.name: dict(each.total) for each in found.shapes}
    labels = {each.name: dict(each.labels) for each in found.shapes}
    return [
        {
            "executor_id": each.executor_id,
            "state": str(each.state),
            "draining": False,
            "unreachable_reason": "",
            "total": totals.get(each.shape, {}),
            "available": {},
            "allocated": {},
            "reserved": {},
            "used": {"cpu_milli": 0, "memory_bytes": 0, "tasks": 0, "host": None},
            "default_slot_profile": None,
            "labels": labels.get(each.shape, {}),
            "provided_as": each.shape,
        }
        for each in found.executors
        if each.state in ("ASKED", "STARTED")
    ]


def _table(columns: tuple[Column, ...], rows: list[Mapping[str, Any]], *, wide: bool) -> list[str]:
    form = OutputFormat.WIDE if wide else OutputFormat.TABLE
    heading, *lines = table_lines(columns_in(columns, form), rows, form)
    return [painted(heading, Style.BOLD), *lines]


def _limits(amounts: Mapping[str, int]) -> str:
    """Returns limits as text. Dimensions without a limit are left out."""
    named = {
        CPU_MILLI: lambda amount: f"cpu {format_cpu(amount)}",
        MEMORY_BYTES: lambda amount: f"memory {format_bytes(amount)}",
    }
    parts = [
        named[name](amount) if name in named else f"{name.removeprefix(EXTENDED_PREFIX)} {amount}"
        for name, amount in amounts.items()
    ]
    return ", ".join(parts) or "none"


def _counts(row: Mapping[str, Any]) -> str:
    counts = {name: count for name, count in row["executors"].items() if count}
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _trouble(row: Mapping[str, Any]) -> str:
    until = row["backoff_until_time"]
    again = f", not before {until}" if until else ""
    return f"{row['failures']} failed{again}: {row['last_failure']}"


def _planned(row: Mapping[str, Any]) -> str:
    return "; ".join(row["planned"]) or "-"


SHAPES = (
    Column("shape", lambda row: str(row["name"]), shrinks=True),
    Column("provider", lambda row: str(row["provider"]), rank=6, shrinks=True),
    Column("total", lambda row: amounts_text(row["total"]), rank=3, shrinks=True),
    Column("cost", lambda row: f"{row['cost']:g}", right=True, rank=5),
    Column("max", lambda row: str(row["count_max"] or "-"), right=True, rank=4),
    Column("executors", _counts, rank=1, shrinks=True),
    Column("failures", lambda row: str(row["failures"]), right=True, rank=2),
    Column(
        "labels",
        lambda row: ",".join(f"{k}={v}" for k, v in sorted(row["labels"].items())) or "-",
        wide=True,
    ),
)

EXECUTORS = (
    Column("executor", lambda row: str(row["executor_id"]), shrinks=True),
    Column("shape", lambda row: str(row["shape"]), rank=5, shrinks=True),
    Column("state", lambda row: str(row["state"]), rank=1),
    Column("requested", lambda row: age(row, "ask_time"), right=True, rank=6),
    Column("planned", _planned, rank=3, shrinks=True),
    Column("cause", lambda row: row["cause"] or "-", rank=4, shrinks=True),
    Column("message", lambda row: row["message"] or "-", rank=2, shrinks=True),
    Column("deadline", lambda row: str(row["deadline_time"] or "-"), wide=True),
    Column("handle", lambda row: row["handle"] or "-", wide=True),
)

"""Defines the columns of the tables of executors, slots, requests, jobs, events and batches.

A row of a table is the mapping that `-o json` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from finegrain.devices.condition import ForeignUse
from finegrain.devices.device import GPU_CORE, GPU_MEMORY, GPU_MEMORY_RATIO, WHOLE
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_PARTS,
    ResourceProfile,
)
from finegrain.units import format_bytes, format_cpu, format_duration, format_duration_exactly
from finegrain_cli.text.cpus import class_text, cpus_text, nodes_text, notes_text, policy_text
from finegrain_cli.text.fit import ShortIds
from finegrain_cli.text.output import Column

Row = Mapping[str, Any]

SHORT = "short"
"""A key that only rows of tables have. The value under this key has the short forms of the row's
ids, by the key of each id.
"""

JOB_NAME = "job_name"
HOST_PORTS = f"{EXTENDED_PREFIX}ports"


def with_short_ids(rows: Sequence[Row], *keys: str) -> list[Row]:
    """Returns rows for a table: the given rows, with short forms of the ids under `keys`."""
    short = {key: ShortIds(row[key] for row in rows if row.get(key)) for key in keys}
    return [
        {**row, SHORT: {key: short[key](row[key]) for key in keys if row.get(key)}} for row in rows
    ]


def time_left(moment: object) -> str:
    """Returns the time until a moment, such as "12m", or "-" if there is no such moment."""
    if not moment:
        return "-"
    left_s = (datetime.fromisoformat(str(moment)) - datetime.now(UTC)).total_seconds()
    return format_duration(max(0.0, left_s))


def age(row: Row, key: str) -> str:
    """Returns the time since the timestamp `key` of the row, such as "5m", or "-" if the row has no
    such timestamp.
    """
    text = row.get(key)
    if not text:
        return "-"
    then = datetime.fromisoformat(str(text))
    return format_duration(max(0.0, (datetime.now(UTC) - then).total_seconds()))


def memory_of(amounts: Mapping[str, int]) -> int:
    """Returns the memory in bytes. A profile has one amount of memory, or memory parts, which the
    function adds up.
    """
    return amounts.get(MEMORY_BYTES, 0) or sum(amounts.get(part, 0) for part in MEMORY_PARTS)


def amounts_text(amounts: Mapping[str, int]) -> str:
    """Returns amounts in one line: "cpu 1.5, memory 2Gi, license 3"."""
    parts = [f"cpu {format_cpu(amounts.get(CPU_MILLI, 0))}"]
    parts.append(f"memory {format_bytes(memory_of(amounts))}")
    parts += [
        f"{name.removeprefix(EXTENDED_PREFIX)} {amount}"
        for name, amount in sorted(amounts.items())
        if name.startswith(EXTENDED_PREFIX)
    ]
    parts += devices_text({name: each for name, each in devices_of(amounts).items() if each})
    return ", ".join(parts)


def devices_of(amounts: Mapping[str, int]) -> dict[str, int]:
    """Returns only the amounts of devices. The names have no prefix: "gpu-core" for
    "device.gpu-core".
    """
    return {
        name.removeprefix(DEVICE_PREFIX): amount
        for name, amount in amounts.items()
        if name.startswith(DEVICE_PREFIX)
    }


def devices_text(amounts: Mapping[str, int]) -> list[str]:
    """Returns amounts of devices as text, such as "gpu 0.5".

    If the shares of compute and memory differ, the text names both: "gpu-core 50",
    "gpu-memory-ratio 25".
    """
    left = dict(amounts)
    parts = []
    if GPU_CORE in left and left[GPU_CORE] == left.get(GPU_MEMORY_RATIO):
        parts.append(f"gpu {left.pop(GPU_CORE) / WHOLE:g}")
        del left[GPU_MEMORY_RATIO]
    for name, amount in sorted(left.items()):
        if name == GPU_MEMORY:
            parts.append(f"{name} {format_bytes(amount)}")
        elif name in (GPU_CORE, GPU_MEMORY_RATIO):
            parts.append(f"{name} {amount}")
        else:
            parts.append(f"{name} {amount / WHOLE:g}")
    return parts


def profile_text(data: Mapping[str, Any] | None) -> str:
    """Returns a resource profile in one line. Returns "default" for None, which means a default
    slot.
    """
    if data is None:
        return "default"
    profile = ResourceProfile.from_dict(data)
    parts = [f"cpu {format_cpu(profile.cpu_milli)}", f"memory {format_bytes(profile.memory_bytes)}"]
    parts += [f"{name} {amount}" for name, amount in profile.extended]
    parts += devices_text({name: each for one in profile.devices for name, each in one.totals})
    return ", ".join(parts)


def size_text(row: Row) -> str:
    """Returns a slot's profile with its resizes: "cpu 1, memory 1Gi -> cpu 2, ... (waiting)"."""
    changes = (
        f" -> {profile_text(each['profile'])} ({each['state'].lower()})"
        for each in row.get("resizes") or ()
    )
    return profile_text(row["profile"]) + "".join(changes)


def is_parked(row: Row) -> bool:
    """Returns True if a slot is parked: it has given up its GPUs, and its processes stay."""
    return bool((row["assignment"] or {}).get("parked_devices"))


def _resize_reasons(row: Row) -> str:
    return "; ".join(each["message"] for each in row["resizes"] if each["message"]) or "-"


def _gang(row: Row) -> str:
    gang = row["gang"]
    if gang is None:
        return "-"
    where = gang["placement"].lower().replace("_", "-")
    return f"{gang['gang_id']} ({where}{':' + gang['label'] if gang['label'] else ''})"


def _of_total(row: Row, name: str) -> str:
    if name == CPU_MILLI:
        return (
            f"{format_cpu(row['allocated'].get(name, 0))}/{format_cpu(row['total'].get(name, 0))}"
        )
    return f"{format_bytes(memory_of(row['allocated']))}/{format_bytes(memory_of(row['total']))}"


def _best_effort(row: Row) -> str:
    allocated, total = (
        format_cpu(row[name].get(BEST_EFFORT_CPU_MILLI, 0)) for name in ("allocated", "total")
    )
    return f"{allocated}/{total}"


def _used(row: Row) -> str:
    """Returns the measured use of a slot or, in the row of an executor, of all slots of the
    executor.
    """
    used = row["used"]
    if used is None:
        return "-"
    return f"{format_cpu(used['cpu_milli'])}, {format_bytes(used['memory_bytes'])}"


def _host_used(row: Row) -> str:
    host = row["used"]["host"]
    if host is None:
        return "-"
    memory = f"{format_bytes(host['memory_used_bytes'])}/{format_bytes(host['memory_total_bytes'])}"
    return f"{format_cpu(host['cpu_milli'])}, {memory}, load {host['load_1m']:.1f}"


def _executor_state(row: Row) -> str:
    draining = " draining" if row["draining"] else ""
    return str(row["state"]) + draining + (" unreachable" if row["unreachable_reason"] else "")


def _labels(row: Row) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(row["labels"].items())) or "-"


def _time_limit(row: Mapping[str, Any]) -> str:
    limit_s = row["time_limit_s"]
    return "-" if limit_s is None else format_duration_exactly(round(limit_s * 1_000))


def _isolation(row: Row) -> str:
    isolation = row.get("isolation")
    if not isolation:
        return "-"
    # A driver that enforces all other amounts possibly does not enforce countable resources.
    declared = ["resources declared"] if isolation.get("countable") == "declared" else []
    # For each kind of limit, show the weakest level of enforcement of all devices. `-o json` has
    # the level of each device.
    words = {"gpu_core": "gpu-core", "gpu_memory": "gpu-memory", "devices": "devices"}
    levels = [f"{shown} {isolation[name]}" for name, shown in words.items() if isolation.get(name)]
    return ", ".join([isolation["driver"], *declared, *levels])


def _short(key: str) -> Any:
    """Returns a function that returns the id under `key` of a row. If the row has a short form from
    `with_short_ids`, the function returns the short form.
    """
    return lambda row: str(row.get(SHORT, {}).get(key) or row.get(key) or "-")


def _text(key: str) -> Any:
    return lambda row: str(row.get(key) if row.get(key) not in (None, "") else "-")


def _runner(row: Row) -> str:
    return f"pid {row['runner_pid']}" if row["runner_pid"] else row["runner_host"] or "-"


def _available(row: Row) -> str:
    """Returns free amounts without ports, because almost every executor has 10,000 ports."""
    amounts = {name: each for name, each in row["available"].items() if name != HOST_PORTS}
    return amounts_text(amounts)


def _ports(row: Row) -> str:
    total = row["total"].get(HOST_PORTS, 0)
    return f"{row['allocated'].get(HOST_PORTS, 0)}/{total}" if total else "-"


EXECUTORS = (
    Column("executor", _text("executor_id"), shrinks=True),
    Column("state", _executor_state, rank=1),
    Column("slots", _text("slots"), right=True, rank=2),
    Column("cpu", lambda row: _of_total(row, CPU_MILLI), right=True, rank=3),
    Column("memory", lambda row: _of_total(row, MEMORY_BYTES), right=True, rank=4),
    Column("available", _available, rank=5, shrinks=True),
    Column("ports", _ports, wide=True, right=True),
    Column("best-effort cpu", _best_effort, wide=True, right=True),
    Column("used", _used, wide=True),
    Column("used on host", _host_used, wide=True),
    Column("reserved", lambda row: amounts_text(row["reserved"]), wide=True),
    Column("default slot", lambda row: profile_text(row["default_slot_profile"]), wide=True),
    Column("isolation", _isolation, wide=True),
    Column("reported", lambda row: age(row, "report_time"), wide=True),
    Column("address", _text("address"), wide=True),
    Column("labels", _labels, wide=True),
    Column("drain reason", _text("drain_reason"), wide=True),
    Column("provided as", _text("provided_as"), wide=True),
    Column("unreachable because", _text("unreachable_reason"), wide=True),
)


def _slot_devices(row: Row) -> str:
    """Returns the devices of a slot, with the measured use and the problems of each device."""
    bad = {(each["type"], each["uuid"]): each for each in row["device_conditions"]}
    used = {(each["type"], each["uuid"]): each for each in row.get("device_usage", ())}
    shown = []
    for each in (row["assignment"] or {}).get("devices", ()):
        key = (each["type"], each["uuid"])
        text = f"{each['type']}{each['minor']}"
        if key in used:
            text += f" uses {format_bytes(used[key]['memory_bytes'])}"
        if key in bad:
            others = ", ".join(ForeignUse(**use).text for use in bad[key]["foreign_uses"])
            problem = bad[key]["problem"] or f"used outside of slots: {others}"
            text += f" {bad[key]['health']}: {problem}"
        shown.append(text)
    parked = (row["assignment"] or {}).get("parked_devices", ())
    shown += [f"{each['type']}{each['minor']} parked" for each in parked]
    return "; ".join(shown) or "-"


def job_label(row: Row) -> str:
    """Returns the name of the row's job, or its id if the name is not known."""
    return str(row.get(JOB_NAME) or row.get(SHORT, {}).get("job_id") or row["job_id"] or "-")


SLOTS = (
    Column("job", job_label, shrinks=True),
    Column("slot", _short("allocation_id")),
    Column("executor", _text("executor_id"), rank=2, shrinks=True),
    Column("state", lambda row: "PARKED" if is_parked(row) else str(row["state"]), rank=3),
    Column("profile", size_text, rank=1, shrinks=True),
    Column("age", lambda row: age(row, "allocated_time"), right=True, rank=4),
    Column("job id", _text("job_id"), wide=True),
    Column("generation", _text("generation"), wide=True, right=True),
    Column("limit", lambda row: format_bytes(row["memory_bytes"]), wide=True, right=True),
    Column("cpu cap", lambda row: format_cpu(row["cpu_limit_milli"]), wide=True, right=True),
    Column("pids", lambda row: str(row["pids_max"] or "default"), wide=True, right=True),
    Column("time limit", _time_limit, wide=True, right=True),
    Column("revocable", lambda row: "yes" if row["revocable"] else "-", wide=True),
    Column("class", class_text, wide=True),
    Column("cpus", cpus_text, wide=True),
    Column("numa", nodes_text, wide=True),
    Column("preferences not met", notes_text, wide=True),
    Column("resize waits because", _resize_reasons, wide=True),
    Column("used", _used, wide=True),
    Column("isolation", _isolation, wide=True),
    Column("devices", _slot_devices, wide=True),
)

REQUESTS = (
    Column("job", job_label, shrinks=True),
    # People copy the id, so other columns are left out first.
    Column("request", _short("allocation_id"), shrinks=True, readable=44),
    Column("count", _text("count"), right=True, rank=5),
    Column("state", _text("state"), rank=3),
    # The reason is never cut: people look for its code in the docs.
    Column("reason", _text("reason")),
    Column("profile", lambda row: profile_text(row["profile"]), rank=1, shrinks=True),
    Column("age", lambda row: age(row, "create_time"), right=True, rank=4),
    Column("arrival", _text("arrival_number"), wide=True, right=True),
    Column("generation", _text("generation"), wide=True, right=True),
    Column("executor", lambda row: str((row["slot"] or {}).get("executor_id") or "-"), wide=True),
    Column("job id", _text("job_id"), wide=True),
    Column("priority", _text("priority"), wide=True, right=True),
    Column("revocable", lambda row: "yes" if row["revocable"] else "-", wide=True),
    Column("gang", _gang, wide=True),
    Column("cpu policy", lambda row: policy_text(row["cpu_policy"]), wide=True),
)


def _job_state(row: Mapping[str, Any]) -> str:
    if not row["ended"]:
        awaited = len(row["awaited_job_ids"])
        return f"WAITS FOR {awaited} JOB{'S' * (awaited > 1)}" if awaited else "ACTIVE"
    # The reason is ENDED if the job's own job master ended the job. This reason need not be
    # repeated.
    if row["end_reason"] in ("", "ENDED"):
        return "ENDED FAILED" if row["outcome"] == "FAILED" else "ENDED"
    return f"ENDED {row['end_reason']}"


JOBS = (
    Column("name", _text("name"), shrinks=True),
    Column("job", _short("job_id")),
    Column("group", _text("group"), rank=6, shrinks=True),
    Column("state", _job_state, rank=1, shrinks=True),
    Column("pending", _text("pending_requests"), right=True, rank=2),
    Column("slots", _text("slots"), right=True, rank=3),
    Column("allocated", lambda row: amounts_text(row["allocated"]), rank=5, shrinks=True),
    Column("share", lambda row: f"{100 * row['share_now']:.1f} %", right=True, rank=7),
    Column("age", lambda row: age(row, "create_time"), right=True, rank=4),
    Column("usage", lambda row: f"{row['service']:.4g}", wide=True, right=True),
    Column("oldest wait", lambda row: age(row, "oldest_wait_time"), wide=True, right=True),
    Column("priority", _text("priority"), wide=True, right=True),
    Column("owner", _text("owner"), wide=True),
    Column(
        "lease",
        lambda row: "none" if row["detached"] else format_duration(row["lease_s"] or 0),
        wide=True,
        right=True,
    ),
    Column("events", _text("last_sequence"), wide=True, right=True),
)


def _moment(row: Row) -> str:
    """Returns the time of an event in UTC: "11-28 13:05:12". If the row has no short ids, returns
    the time as in JSON.
    """
    text = str(row["event_time"] or "-")
    return text[5:19].replace("T", " ") if SHORT in row else text


def _subject(row: Row) -> str:
    """Returns the slot or request of an event. If the event is about neither, returns its job."""
    key = "allocation_id" if row["allocation_id"] else "job_id"
    return str(_short(key)(row))


EVENTS = (
    Column("time", _moment),
    Column("event", _text("kind")),
    Column("subject", _subject, rank=1),
    Column("executor", _text("executor_id"), rank=3, shrinks=True),
    Column("reason", _text("reason"), rank=4, shrinks=True),
    Column("message", _text("message"), rank=2, shrinks=True),
    Column("sequence", _text("sequence"), wide=True, right=True),
    Column("job", _text("job_id"), wide=True),
)
BATCHES = (
    Column("batch", _text("batch"), shrinks=True),
    Column("state", lambda row: str(row["progress"]["state"]), rank=1),
    Column("threads", lambda row: str(row["progress"]["threads"]), right=True, rank=4),
    Column("done", lambda row: str(row["progress"]["done"]), right=True, rank=2),
    Column("failed", lambda row: str(row["progress"]["failed"]), right=True, rank=3),
    Column("running", lambda row: str(row["progress"]["running"]), right=True, rank=5),
    Column("age", lambda row: age(row, "create_time"), right=True, rank=6),
    Column("runner", _runner, rank=7, shrinks=True),
    Column("group", lambda row: row["spec"]["group"] or "default", wide=True),
    Column("command", lambda row: " ".join(row["spec"]["command"]), wide=True),
    Column("job", _text("job_id"), wide=True),
    Column("state file", _text("state_file"), wide=True),
)

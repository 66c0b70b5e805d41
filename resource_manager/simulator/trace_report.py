"""Builds the report about a replayed job log: as data for programs, and as tables for people.

All times in the data are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from finegrain.resources import CPU_MILLI, EXTENDED_PREFIX, MEMORY_BYTES, total_of
from finegrain.units import format_bytes, format_cpu, format_duration
from resource_manager.simulator.drawing import table_text
from resource_manager.simulator.measures import SLOWDOWN_BOUND_MS, ShareGap, Spread
from resource_manager.simulator.nodes import Node
from resource_manager.simulator.replay import GroupResult, Outcome, Plan
from resource_manager.simulator.traces.jobs import Workload

GROUPS_SHOWN = 12
"""Maximum number of groups in the tables for people. Groups with the most usage come first."""

Data = dict[str, Any]


def trace_data(
    workload: Workload, nodes: Sequence[Node], plan: Plan, outcomes: Sequence[Outcome]
) -> Data:
    """Returns the whole report as data. The data can be written as JSON.

    Args:
        workload: the jobs that were replayed, as `Workload.picked` returned them.
        nodes: the nodes of the simulated cluster.
        plan: the settings of the replay. The fairness order in the plan is not used, because every
            policy has its own order.
        outcomes: the results of the replay, one for each policy.
    """
    fairness = plan.settings.fairness
    half_life_ms = fairness.half_life_ms
    fitted = workload.fitted(nodes)
    recorded = [job.waited_ms for job in workload.jobs if job.waited_ms is not None]
    return {
        "trace": {
            "name": workload.name,
            "format": workload.format,
            "jobs": len(workload.jobs),
            "slots": sum(job.count for job in workload.jobs),
            "span_s": max((job.submit_ms for job in workload.jobs), default=0) / 1_000,
            "recorded_wait_s": _seconds(Spread.of(recorded)),
            "left_out": dict(workload.left_out),
            "notes": list(fitted.notes),
        },
        "nodes": {
            "count": len(nodes),
            "total": total_of(node.capacity for node in nodes),
        },
        "settings": {
            "group_by": plan.group_by or (workload.owner_keys or ("none",))[0],
            "weights": dict(plan.weights),
            "moldable": plan.moldable,
            "service": fairness.usage_measure,
            "half_life_s": None if half_life_ms is None else half_life_ms / 1_000,
            "lookahead_s": fairness.lookahead_ms / 1_000,
            "starvation_timeout_s": fairness.starvation_timeout_ms / 1_000,
            "reservations_max": fairness.reservations_max,
            "reserved_part_max": fairness.reserved_part_max,
            "slowdown_bound_s": SLOWDOWN_BOUND_MS / 1_000,
        },
        "policies": [_outcome_data(outcome) for outcome in outcomes],
    }


def _outcome_data(outcome: Outcome) -> Data:
    effort = outcome.effort
    return {
        "policy": outcome.policy,
        "jobs": outcome.jobs,
        "rejected": dict(outcome.rejected),
        "unserved": outcome.unserved,
        "wait_s": _seconds(outcome.wait),
        "bounded_slowdown": asdict(outcome.slowdown),
        "group_mean_wait_s": _seconds(Spread.of(group.wait.mean for group in outcome.groups)),
        "makespan_s": outcome.makespan_ms / 1_000,
        "utilisation": outcome.utilisation,
        "utilisation_while_waiting": outcome.utilisation_while_waiting,
        "waiting_s": outcome.waiting_time_ms / 1_000,
        "share_error": [_gap_data(gap) for gap in outcome.shares],
        "idle": {
            "looks": outcome.idle_checks,
            "beside_fitting_work": outcome.idle_moments,
            "findings": list(outcome.idle_findings),
        },
        "reservations": outcome.reservations,
        "groups": [_group_data(group) for group in outcome.groups],
        "decisions": {
            "count": effort.decisions,
            "placed": effort.placed,
            "cpu_s": effort.cpu_s,
            "longest_cpu_s": effort.longest_cpu_s,
        },
    }


def _seconds(spread: Spread) -> Data:
    data = asdict(spread)
    return {key: value if key == "count" else value / 1_000 for key, value in data.items()}


def _gap_data(gap: ShareGap) -> Data:
    return {
        "window_s": gap.window_ms / 1_000,
        "windows": gap.windows,
        "error": gap.error,
        "worst": gap.worst,
    }


def _group_data(group: GroupResult) -> Data:
    return {
        "name": group.name,
        "weight": group.weight,
        "jobs": group.jobs,
        "wait_s": _seconds(group.wait),
        "bounded_slowdown": asdict(group.slowdown),
        "service": group.account.received,
        "service_due": group.account.due,
    }


def trace_text(data: Data) -> str:
    """Returns the report as text for people.

    Args:
        data: the report, as `trace_data` returns it.
    """
    blocks = [_heading(data), _policies(data["policies"])]
    blocks += [_groups(policy) for policy in data["policies"] if len(policy["groups"]) > 1]
    blocks += [
        f"IDLE beside work that fits ({policy['policy']}): " + "; ".join(policy["idle"]["findings"])
        for policy in data["policies"]
        if policy["idle"]["findings"]
    ]
    return "\n\n".join(blocks)


def _heading(data: Data) -> str:
    trace, nodes, waits = data["trace"], data["nodes"], data["trace"]["recorded_wait_s"]
    head = (
        f"{trace['name']} ({trace['format']}): {trace['jobs']} jobs with {trace['slots']} slots,"
        f" arriving over {format_duration(trace['span_s'])},"
        f" on {nodes['count']} nodes with {_total_text(nodes['total'])}"
    )
    lines = [head]
    if waits["count"]:
        recorded = ", ".join(f"{name} {format_duration(waits[name])}" for name in _SPREAD)
        lines.append(f"waiting times on the original cluster, as the log records them: {recorded}")
    lines += [f"left out: {count} x {reason}" for reason, count in trace["left_out"].items()]
    lines += [f"note: {note}" for note in trace["notes"]]
    return "\n".join(lines)


def _total_text(total: Mapping[str, int]) -> str:
    parts = [f"{format_cpu(total.get(CPU_MILLI, 0))} cores"]
    if MEMORY_BYTES in total:
        parts.append(format_bytes(total[MEMORY_BYTES]))
    parts += [
        f"{amount} {name.removeprefix(EXTENDED_PREFIX)}"
        for name, amount in total.items()
        if name.startswith(EXTENDED_PREFIX)
    ]
    return ", ".join(parts)


def _policies(policies: Sequence[Data]) -> str:
    columns = [_column(policy) for policy in policies]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return table_text(["", *(policy["policy"] for policy in policies)], rows)


def _column(policy: Data) -> dict[str, str]:
    wait, slowdown, decisions = policy["wait_s"], policy["bounded_slowdown"], policy["decisions"]
    rejected = sum(policy["rejected"].values())
    column = {"jobs run": str(policy["jobs"])}
    if rejected or policy["unserved"]:
        column["rejected, never served"] = f"{rejected}, {policy['unserved']}"
    column |= {f"wait, {name}": format_duration(wait[name]) for name in _SPREAD}
    column |= {f"slowdown, {name}": f"{slowdown[name]:.4g}" for name in _SPREAD}
    column["mean wait of the median group"] = format_duration(policy["group_mean_wait_s"]["median"])
    column |= {
        "makespan": format_duration(policy["makespan_s"]),
        "utilisation": _percent(policy["utilisation"]),
        "utilization while jobs wait": _percent(policy["utilisation_while_waiting"]),
        "time in which jobs wait": format_duration(policy["waiting_s"]),
    }
    for gap in policy["share_error"]:
        hours = f"{gap['window_s'] / 3_600:g} h"
        column[f"share error, windows of {hours}"] = _percent(gap["error"])
    idle = policy["idle"]
    column["idle beside fitting work"] = f"{idle['beside_fitting_work']} of {idle['looks']} checks"
    column["reservations"] = str(policy["reservations"])
    usec_per_slot = decisions["cpu_s"] / decisions["placed"] * 1e6 if decisions["placed"] else 0.0
    column["decisions, slots placed"] = f"{decisions['count']}, {decisions['placed']}"
    column["cpu in decisions"] = f"{decisions['cpu_s']:.1f}s, {usec_per_slot:.0f} us per slot"
    column["longest decision"] = f"{decisions['longest_cpu_s'] * 1e3:.1f} ms"
    return column


_SPREAD = ("mean", "median", "p95", "p99", "most")


def _groups(policy: Data) -> str:
    # Sort groups with equal usage by name. So the same run always gives the same report.
    groups = sorted(policy["groups"], key=lambda group: (-group["service"], group["name"]))
    whole = sum(group["service"] for group in groups)
    rows = [
        [
            group["name"],
            f"{group['weight']:.10g}",
            str(group["jobs"]),
            _percent(group["service"] / whole if whole else 0),
            _percent(group["service_due"] / whole if whole else 0),
            format_duration(group["wait_s"]["mean"]),
            format_duration(group["wait_s"]["most"]),
            f"{group['bounded_slowdown']['mean']:.4g}",
        ]
        for group in groups[:GROUPS_SHOWN]
    ]
    headings = ["group", "weight", "jobs", "usage", "due", "wait", "longest wait", "slowdown"]
    text = f"{policy['policy']}, by group:\n\n{table_text(headings, rows)}"
    left = len(groups) - len(rows)
    return f"{text}\nand {left} more" if left else text


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"

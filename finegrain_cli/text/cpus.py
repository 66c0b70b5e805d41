"""Writes CPU policies of requests, cpus of slots and settings of hosts as text, for tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from finegrain.cpu_words import DEFAULT, PREFERRED, REQUIRED
from finegrain_cli.text.output import Column

Row = Mapping[str, Any]

SETTINGS = {
    "bind-policy": "bind",
    "numa-strategy": "numa_strategy",
    "alignment": "alignment",
    "reserved-cpus": "reserved_cpus",
    "reserved-strict": "reserved_strict",
    "default-bind": "default_bind",
    "default-exclusive": "default_exclusive",
}
"""The settings of a host. Each key is the name on the command line, and its value is the name in
code and JSON.
"""


def policy_text(policy: Row) -> str:
    """Returns a request's CPU policy, such as "LSR, bind FullPCPUs:required", or "-" if the request
    has no policy.
    """
    parts = [] if policy["qos"] == "LS" else [str(policy["qos"])]
    for name in ("bind", "exclusive", "numa"):
        if policy[name] != DEFAULT:
            strength = REQUIRED if policy[f"{name}_required"] else PREFERRED
            parts.append(f"{name} {policy[name]}:{strength}")
    if labels := policy.get("slot_labels"):
        parts.append("labels " + ",".join(f"{name}={value}" for name, value in labels.items()))
    for rule in policy.get("neighbors", ()):
        selected = ",".join(f"{name}={value}" for name, value in rule["labels"].items())
        strength = REQUIRED if rule["required"] else PREFERRED
        kind = "apart" if rule["apart"] else "near"
        parts.append(f"{kind} {selected}@{rule['level']}:{strength}")
    return ", ".join(parts) or "-"


def class_text(slot: Row) -> str:
    """Returns the QoS class of a slot."""
    return str((slot["assignment"] or {}).get("qos", "LS"))


def cpus_text(slot: Row) -> str:
    """Returns the dedicated cpus of a slot or, for a slot without dedicated cpus, its pool.
    Examples: "2-3", "shared", "shared of node 1".
    """
    assignment = slot["assignment"] or {}
    if slot["cpus"]:
        return str(slot["cpus"])
    pool = "best effort" if assignment.get("qos") == "BE" else "shared"
    nodes = sorted({each["node"] for each in assignment.get("pools", ())})
    if not nodes:
        return pool
    return f"{pool} of node {', '.join(str(each) for each in nodes)}"


def nodes_text(slot: Row) -> str:
    """Returns the NUMA nodes to which a slot is bound, or "-" if the slot is bound to no node."""
    shares = (slot["assignment"] or {}).get("numa", ())
    return ",".join(str(each["node"]) for each in shares) or "-"


def notes_text(slot: Row) -> str:
    """Returns the preferences of a slot that were not met, or "-" if all preferences were met."""
    return "; ".join((slot["assignment"] or {}).get("notes", ())) or "-"


def policy_rows(policy: Row) -> list[dict[str, str]]:
    """Returns one row for each setting of a host.

    A row has the effective value, the origin of this value, and the value that was set for this
    host.
    """
    effective, here = policy["effective"], policy["set"]
    strict = effective["strictly_reserved_cpus"]
    holds = {**effective, "reserved_strict": f"cpus {strict}" if strict else "no"}
    origins = {"reserved_strict": "-", **effective["origins"]}
    return [
        {
            "setting": label,
            "holds": str(holds[name] or "none"),
            "origin": str(origins.get(name, "built-in")),
            "set": _set_text(here[name]),
        }
        for label, name in SETTINGS.items()
    ]


def _set_text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value) or "none"


POLICY_COLUMNS = (
    Column("setting", lambda row: row["setting"]),
    Column("effective", lambda row: row["holds"]),
    Column("from", lambda row: row["origin"]),
    Column("set here", lambda row: row["set"]),
)

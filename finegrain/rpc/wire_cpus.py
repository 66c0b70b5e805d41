"""Converts CPU policies and assignments from and to messages (cpus.proto). Also checks them.

If a message does not set a field, the functions set its default. The functions reject words that
only a newer version knows. The resource manager checks which policies a request may combine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any

from finegrain.cpu_assignment import CpuAssignment, NodeShare, PoolName
from finegrain.cpu_policy import (
    PLAIN,
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostPolicy,
    NumaPolicy,
)
from finegrain.cpuset import MAX_ID, CpuSet
from finegrain.devices.device import DeviceShare
from finegrain.errors import InvalidArgument
from finegrain.ids import check_text
from finegrain.mapping.stored import STORED
from finegrain.neighbors import RULES_MAX, NeighborRule
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
    MEMORY_PARTS,
)
from finegrain.rpc.known import Known
from finegrain.rpc.mapping.writer import Writer, Writing
from finegrain.rpc.wire import (
    EXTENDED_NAME_PATTERN,
    KNOWN_MAX,
    check_amount,
    check_cpu_list,
    labels_from_proto,
)
from finegrain.rpc.wire_cpu_words import BIND, EXCLUSIVE, HOST_BIND, LEVEL, NUMA, QOS, STRATEGY
from finegrain.rpc.wire_devices import check_count, shares_from_proto
from finegrain.v1 import cpus_pb2 as pb
from finegrain.v1 import devices_pb2

NODES_MAX = 1_024  # maximum number of nodes of one assignment or host, as in the kernel
DIMENSIONS_MAX = 64
NODE_DIMENSIONS = (CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES, *MEMORY_PARTS)
NOTES_MAX = 32
NOTE_LENGTH_MAX = 1_000

DEFAULT_BINDS = (BindPolicy.NONE, BindPolicy.FULL_PCPUS, BindPolicy.SPREAD_BY_PCPUS)
"""Bind policies that a host can set as the default for requests without a bind policy."""

STRICT_BY_DEFAULT = frozenset({NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE})
"""These NUMA policies are required, unless the message sets another strength."""

_STRENGTHS: dict[int, bool] = {pb.STRENGTH_PREFERRED: False, pb.STRENGTH_REQUIRED: True}

POOL_NAME = Writing(PoolName, pb.PoolName, {"package_index": "package", "numa_node_id": "node"})
"""The mapping of a pool's name, which several messages contain."""

_write = Writer(
    (
        Writing(NodeShare, pb.NodeShare, {"numa_node_id": "node"}),
        POOL_NAME,
        Writing(DeviceShare, devices_pb2.DeviceShare),
    ),
    converters={CpuSet: str},
)

_policies: Known[CpuPolicy] = Known(KNOWN_MAX)
_assignments: Known[CpuAssignment] = Known(KNOWN_MAX)


def cpu_policy_from_proto(message: pb.CpuPolicy, field: str) -> CpuPolicy:
    """Reads the CPU policy of a request, and adds the default strengths.

    Raises:
        InvalidArgument: a word or strength is unknown.
    """
    data = message.SerializeToString()
    policy = _policies.get(data)
    if policy is None:
        policy = _checked_policy(message, field)
        _policies.keep(data, policy)
    return policy


def _checked_policy(message: pb.CpuPolicy, field: str) -> CpuPolicy:
    numa = NUMA.word(message.numa, f"{field}.numa")
    strict = numa in STRICT_BY_DEFAULT
    return CpuPolicy(
        qos=QOS.word(message.qos, f"{field}.qos"),
        bind=BIND.word(message.bind, f"{field}.bind"),
        bind_required=_required(message.bind_strength, False, f"{field}.bind_strength"),
        exclusive=EXCLUSIVE.word(message.exclusive, f"{field}.exclusive"),
        exclusive_required=_required(
            message.exclusive_strength, False, f"{field}.exclusive_strength"
        ),
        numa=numa,
        numa_required=_required(message.numa_strength, strict, f"{field}.numa_strength"),
        slot_labels=labels_from_proto(message.slot_labels, f"{field}.slot_labels"),
        neighbors=_rules(message, field),
    )


def _rules(message: pb.CpuPolicy, field: str) -> tuple[NeighborRule, ...]:
    check_count(f"{field}.neighbors", message.neighbors, RULES_MAX)
    rules = []
    for at, each in enumerate(message.neighbors):
        where = f"{field}.neighbors[{at}]"
        labels = labels_from_proto(each.labels, f"{where}.labels")
        if not labels:
            raise InvalidArgument(f"{where}.labels", "empty", "the labels of the slots it is about")
        level = LEVEL.word(each.level, f"{where}.level")
        required = _required(each.strength, True, f"{where}.strength")
        rules.append(NeighborRule(labels, each.apart, level, required))
    return tuple(rules)


@lru_cache(KNOWN_MAX)
def cpu_policy_to_proto(policy: CpuPolicy) -> pb.CpuPolicy | None:
    """Writes a policy with all strengths; returns None for the default policy.

    The returned message is shared: copy it before changing it.
    """
    if policy == PLAIN:
        return None
    return pb.CpuPolicy(
        qos=QOS.number(policy.qos),
        bind=BIND.number(policy.bind),
        bind_strength=_strength(policy.bind, policy.bind_required),
        exclusive=EXCLUSIVE.number(policy.exclusive),
        exclusive_strength=_strength(policy.exclusive, policy.exclusive_required),
        numa=NUMA.number(policy.numa),
        numa_strength=_strength(policy.numa, policy.numa_required),
        slot_labels=dict(policy.slot_labels),
        neighbors=map(rule_message, policy.neighbors),
    )


def rule_message(rule: NeighborRule) -> pb.NeighborRule:
    """Returns a rule about neighbors as a message."""
    return pb.NeighborRule(
        labels=dict(rule.labels),
        apart=rule.apart,
        level=LEVEL.number(rule.level),
        strength=pb.STRENGTH_REQUIRED if rule.required else pb.STRENGTH_PREFERRED,
    )


def assignment_from_proto(message: pb.CpuAssignment, field: str) -> CpuAssignment:
    """Reads the cpus, NUMA nodes, pools and devices of a slot. The returned value is shared.

    Raises:
        InvalidArgument: a list is malformed, a word is unknown, or a node, pool or device occurs
            twice.
    """
    data = message.SerializeToString()
    assignment = _assignments.get(data)
    if assignment is None:
        assignment = _checked_assignment(message, field)
        _assignments.keep(data, assignment)
    return assignment


def _checked_assignment(message: pb.CpuAssignment, field: str) -> CpuAssignment:
    check_count(f"{field}.numa", message.numa, NODES_MAX)
    check_count(f"{field}.pools", message.pools, NODES_MAX)
    shares = tuple(_node_share(each, f"{field}.numa[{at}]") for at, each in enumerate(message.numa))
    pools = tuple(
        PoolName(
            _number(each.package_index, f"{field}.pools[{at}].package_index"),
            _number(each.numa_node_id, f"{field}.pools[{at}].numa_node_id", least=-1),
        )
        for at, each in enumerate(message.pools)
    )
    _check_once(f"{field}.numa", [each.node for each in shares])
    _check_once(f"{field}.pools", pools)
    return CpuAssignment(
        qos=QOS.word(message.qos, f"{field}.qos"),
        cpus=cpus_from_text(message.cpus, f"{field}.cpus"),
        bind=BIND.optional_word(message.bind, f"{field}.bind") or BindPolicy.NONE,
        exclusive=EXCLUSIVE.optional_word(message.exclusive, f"{field}.exclusive")
        or ExclusivePolicy.NONE,
        numa=shares,
        memory_nodes=cpus_from_text(message.memory_nodes, f"{field}.memory_nodes"),
        pools=pools,
        notes=notes_from_proto(message.notes, f"{field}.notes"),
        devices=shares_from_proto(message.devices, f"{field}.devices"),
        parked_devices=shares_from_proto(message.parked_devices, f"{field}.parked_devices"),
    )


@lru_cache(KNOWN_MAX)
def assignment_to_proto(assignment: CpuAssignment) -> pb.CpuAssignment:
    """Writes an assignment. The returned message is shared: copy it before changing it."""
    return _write(pb.CpuAssignment, assignment)


def host_policy_from_proto(message: pb.HostPolicy, field: str) -> HostPolicy:
    """Reads one layer of a host's settings. A setting is None if the message does not contain it.

    Raises:
        InvalidArgument: a list is malformed, or a word is unknown or not allowed for hosts.
    """
    default_bind = BIND.optional_word(message.default_bind, f"{field}.default_bind")
    if default_bind is not None and default_bind not in DEFAULT_BINDS:
        expected = "one of " + ", ".join(DEFAULT_BINDS)
        raise InvalidArgument(f"{field}.default_bind", str(default_bind), expected)
    reserved = None
    if message.HasField("reserved_cpus"):
        reserved = cpus_from_text(message.reserved_cpus, f"{field}.reserved_cpus")
    return HostPolicy(
        bind=HOST_BIND.optional_word(message.bind, f"{field}.bind"),
        numa_strategy=STRATEGY.optional_word(message.numa_strategy, f"{field}.numa_strategy"),
        alignment=NUMA.optional_word(message.alignment, f"{field}.alignment"),
        reserved_cpus=reserved,
        reserved_strict=message.reserved_strict if message.HasField("reserved_strict") else None,
        default_bind=default_bind,
        default_exclusive=EXCLUSIVE.optional_word(
            message.default_exclusive, f"{field}.default_exclusive"
        ),
    )


def host_policy_to_proto(policy: HostPolicy) -> pb.HostPolicy:
    """Writes a host's settings; the inverse of `host_policy_from_proto`."""
    return _write(pb.HostPolicy, policy)


def effective_policy_to_proto(policy: EffectivePolicy) -> pb.EffectiveHostPolicy:
    """Writes the settings in effect on a host, with the origin of each setting."""
    strict = policy.strictly_reserved_cpus
    reserved = policy.reserved_cpus
    return pb.EffectiveHostPolicy(
        policy=host_policy_to_proto(
            HostPolicy(
                bind=policy.bind,
                numa_strategy=policy.numa_strategy,
                alignment=policy.alignment,
                reserved_cpus=reserved,
                # True only if all reserved cpus are strict; `strictly_reserved_cpus` contains the
                # strict cpus.
                reserved_strict=bool(reserved) and strict == reserved,
                default_bind=policy.default_bind,
                default_exclusive=policy.default_exclusive,
            )
        ),
        origins={name: str(origin) for name, origin in policy.origins},
        strictly_reserved_cpus=str(strict),
    )


def host_cpus_from_proto(message: pb.HostCpus, field: str) -> str:
    """Reads and checks the cpus that an executor registers. Returns them as compact JSON text.

    Keys are the protocol's field names. `policy` has the form of `finegrain/mapping/stored.py`.

    Raises:
        InvalidArgument: a list or name is malformed, a node occurs twice, or an amount is negative.
    """
    data: dict[str, object] = {}
    for name in ("slot_cpus", "reserved_cpus", "isolated_cpus"):
        if text := str(cpus_from_text(getattr(message, name), f"{field}.{name}")):
            data[name] = text
    if policy := STORED.to_json(host_policy_from_proto(message.policy, f"{field}.policy")):
        data["policy"] = policy
    check_count(f"{field}.numa", message.numa, NODES_MAX)
    zones = [_zone(each, f"{field}.numa[{at}]") for at, each in enumerate(message.numa)]
    _check_once(f"{field}.numa", [each["numa_node_id"] for each in zones])
    if zones:
        data["numa"] = zones
    if message.time_shared:
        data["time_shared"] = True
    return json.dumps(data, separators=(",", ":"))


def host_cpus_to_proto(text: str) -> pb.HostCpus:
    """Reads the text that `host_cpus_from_proto` returned. Ignores keys of newer versions."""
    data: dict[str, Any] = json.loads(text or "{}")
    message = pb.HostCpus(
        slot_cpus=data.get("slot_cpus", ""),
        reserved_cpus=data.get("reserved_cpus", ""),
        isolated_cpus=data.get("isolated_cpus", ""),
        numa=[
            pb.NumaCapacity(
                numa_node_id=each["numa_node_id"],
                memory_bytes=each.get("memory_bytes", 0),
                extended=each.get("extended", {}),
                default_memory=each.get("default_memory", False),
            )
            for each in data.get("numa", ())
        ],
        time_shared=data.get("time_shared", False),
    )
    if policy := data.get("policy"):
        message.policy.CopyFrom(host_policy_to_proto(STORED.from_json(HostPolicy, policy)))
    return message


def cpus_from_text(text: str, field: str) -> CpuSet:
    """Reads a list of cpus or nodes, and checks its length.

    Raises:
        InvalidArgument: the text is not a list of numbers, or is too long.
    """
    return CpuSet.parse(check_cpu_list(text, field), field)


def notes_from_proto(notes: Any, field: str) -> tuple[str, ...]:
    """Reads sentences for people.

    Raises:
        InvalidArgument: there are too many notes, or a note is too long or has control characters.
    """
    if len(notes) > NOTES_MAX:
        raise InvalidArgument(field, f"{len(notes)} notes", f"at most {NOTES_MAX}")
    return tuple(
        check_text(f"{field}[{at}]", each, longest=NOTE_LENGTH_MAX) for at, each in enumerate(notes)
    )


def _zone(message: pb.NumaCapacity, field: str) -> dict[str, Any]:
    zone: dict[str, Any] = {
        "numa_node_id": _number(message.numa_node_id, f"{field}.numa_node_id"),
        "memory_bytes": check_amount(f"{field}.memory_bytes", message.memory_bytes),
        "default_memory": message.default_memory,
    }
    check_count(f"{field}.extended", message.extended, DIMENSIONS_MAX)
    extended = {EXTENDED_PREFIX + name: amount for name, amount in message.extended.items()}
    if found := _amounts(extended, f"{field}.extended"):
        zone["extended"] = {name.removeprefix(EXTENDED_PREFIX): each for name, each in found}
    return zone


def _node_share(message: pb.NodeShare, field: str) -> NodeShare:
    node = _number(message.numa_node_id, f"{field}.numa_node_id")
    return NodeShare(node, _amounts(message.amounts, f"{field}.amounts"))


def _amounts(amounts: Mapping[str, int], field: str) -> tuple[tuple[str, int], ...]:
    if len(amounts) > DIMENSIONS_MAX:
        raise InvalidArgument(field, f"{len(amounts)} dimensions", f"at most {DIMENSIONS_MAX}")
    for name, amount in amounts.items():
        resource = name.removeprefix(EXTENDED_PREFIX)
        countable = resource != name and EXTENDED_NAME_PATTERN.fullmatch(resource)
        if not countable and name not in NODE_DIMENSIONS:
            expected = f"one of {', '.join(NODE_DIMENSIONS)}, or {EXTENDED_PREFIX} and a name"
            raise InvalidArgument(f"{field} of a dimension", name, expected)
        check_amount(f"{field}[{name}]", amount)
    return tuple(sorted((name, amount) for name, amount in amounts.items() if amount))


def _number(value: int, field: str, *, least: int = 0) -> int:
    if not least <= value <= MAX_ID:
        raise InvalidArgument(field, value, f"{least} to {MAX_ID}")
    return value


def _check_once(field: str, items: Any) -> None:
    if len(set(items)) != len(items):
        raise InvalidArgument(field, f"{len(items)} items", "each of them only once")


def _required(strength: int, unspecified: bool, field: str) -> bool:
    if strength == pb.STRENGTH_UNSPECIFIED:
        # The default strength depends on the policy, see `STRICT_BY_DEFAULT`.
        return unspecified
    if strength not in _STRENGTHS:
        raise InvalidArgument(field, strength, "a known Strength")
    return _STRENGTHS[strength]


def _strength(policy: StrEnum, required: bool) -> Any:
    if policy == BindPolicy.DEFAULT:  # every kind of policy uses the same word
        return pb.STRENGTH_UNSPECIFIED
    return pb.STRENGTH_REQUIRED if required else pb.STRENGTH_PREFERRED

"""Renders cpu output of stories, one line per fact."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.cpu_assignment import CpuAssignment, PoolName
from finegrain.cpu_policy import BindPolicy, EffectivePolicy, ExclusivePolicy, QosClass
from finegrain.cpuset import EMPTY, union
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, MEMORY_BYTES, MIB, Amounts
from resource_manager.engine.explain.topology import TopologyView
from resource_manager.engine.hosts.allowed_cpus import announced_by
from resource_manager.engine.model.entities import Slot
from tests.scenarios import devices


def assignment(one: CpuAssignment | None) -> str:
    """Returns the cpus, nodes and pools of a slot; empty for a slot without an assignment."""
    if one is None:
        return ""
    parts = [str(one.qos)]
    if one.cpus:
        parts.append(f"cpus {one.cpus}")
    if one.bind is not BindPolicy.NONE:
        parts.append(str(one.bind))
    if one.exclusive is not ExclusivePolicy.NONE:
        parts.append(str(one.exclusive))
    parts += [f"node {share.node} ({amounts(dict(share.amounts))})" for share in one.numa]
    if one.memory_nodes:
        parts.append(f"memory of {one.memory_nodes}")
    if one.pools:
        parts.append("in pool " + " and ".join(map(pool, one.pools)))
    parts += map(devices.share, one.devices)
    noted = "".join(f" [{note}]" for note in one.notes)
    return f" {', '.join(parts)}{noted}"


def amounts(some: Amounts) -> str:
    """Returns the amounts as text; leaves out absent amounts."""
    parts = [f"cpu={some[CPU_MILLI]}m"] if CPU_MILLI in some else []
    if BEST_EFFORT_CPU_MILLI in some:
        parts.append(f"be={some[BEST_EFFORT_CPU_MILLI]}m")
    if MEMORY_BYTES in some:
        parts.append(f"mem={some[MEMORY_BYTES] // MIB}Mi")
    known = (CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES)
    parts += [f"{name}={amount}" for name, amount in sorted(some.items()) if name not in known]
    return " ".join(parts) or "nothing"


def pool(name: PoolName) -> str:
    return f"{name.package}/{name.node}"


def settings(name: str, one: EffectivePolicy) -> Iterator[str]:
    """Yields the effective settings of a host, with their origin if not built in."""

    def said(field: str, value: object) -> str:
        origin = one.origin(field)
        return f"{value} ({origin})" if origin != "built-in" else str(value)

    text = (
        f"{name}: bind {said('bind', one.bind)},"
        f" strategy {said('numa_strategy', one.numa_strategy)},"
        f" alignment {said('alignment', one.alignment)},"
        f" default bind {said('default_bind', one.default_bind)},"
        f" default exclusive {said('default_exclusive', one.default_exclusive)}"
    )
    if one.shared_reserved_cpus:
        text += f", reserved {one.shared_reserved_cpus}"
    if one.strictly_reserved_cpus:
        text += f", strictly {one.strictly_reserved_cpus}"
    yield text


def host(view: TopologyView) -> Iterator[str]:
    """Yields the slots that have the cpus of each pool, and the free amounts of each NUMA node."""
    slots = [each.slot for each in view.slots]
    seen = view.executor.cpu_state
    announced = announced_by(view.executor.registration)
    yield f"{view.executor.executor_id}:"
    pooled = EMPTY
    for each in view.pools.members:
        parts = [f"LS {each.shared or 'none'}", f"BE {each.best_effort or 'none'}"]
        parts += [
            f"{slot.allocation_id} bound to it" for slot in slots if _only_in(slot, each.name)
        ]
        pooled |= each.shared | each.best_effort
        yield f"  pool {pool(each.name)}: {', '.join(parts)}"
    for slot in slots:
        own = slot.assignment.cpus if slot.assignment else EMPTY
        if own:
            yield f"  {slot.allocation_id}: {own} {slot.assignment and slot.assignment.qos}"
    owned = union(slot.assignment.cpus for slot in slots if slot.assignment)
    for name, cpus in (
        ("reserved", view.policy.reserved_cpus),
        ("offline", seen.offline_cpus),
        ("kubelet", seen.kubelet_cpus),
        ("unused", announced.slot_cpus - pooled - owned),
    ):
        if cpus:
            yield f"  {name}: {cpus}"
    for zone in view.zones:
        yield (
            f"  node {zone.node}: {amounts(zone.total)}; allocated {amounts(zone.allocated)};"
            f" available {amounts(zone.available)}"
        )
    for name, _, lost in view.lost_cpus:
        yield f"  {name} has lost {lost}"


def _only_in(slot: Slot, name: PoolName) -> bool:
    own = slot.assignment
    return own is not None and own.qos in (QosClass.LS, QosClass.BE) and name in own.pools

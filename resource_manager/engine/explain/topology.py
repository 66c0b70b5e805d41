"""Builds the view of the cpus and NUMA nodes of one executor, with the settings and with the
assignments of slots.

`finegrain/cpu_pools.py` computes the pools. The executor uses the same code to confine slots. The
amounts of NUMA nodes come from the cpu ledger, which placement uses, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from finegrain.cpu_assignment import PoolName
from finegrain.cpu_policy import EffectivePolicy
from finegrain.cpu_pools import Pooled, Pools, pools_of
from finegrain.cpuset import CpuSet
from finegrain.resources import (
    BEST_EFFORT_CPU_MILLI,
    CPU_MILLI,
    DEVICE_PREFIX,
    EXTENDED_PREFIX,
    MEMORY_BYTES,
)
from finegrain.values.usage import Zone
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.numa import MILLI
from resource_manager.engine.devices.ledger import DeviceLedger
from resource_manager.engine.explain.lists import SlotView, slot_view
from resource_manager.engine.hosts.allowed_cpus import announced_by
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.known import known_host
from resource_manager.engine.model.entities import Executor, Registration
from resource_manager.engine.state import State


@dataclass(frozen=True, slots=True)
class TopologyView:
    """The cpus and NUMA nodes of one executor.

    Attributes:
        zones: one entry for each NUMA node. It is empty if the host does not report its cores.
        lost_cpus: the dedicated cpus that slots cannot use any more, as tuples of allocation id,
            generation and cpus.
    """

    executor: Executor
    policy: EffectivePolicy
    zones: list[Zone]
    pools: Pools
    slots: list[SlotView]
    lost_cpus: list[tuple[str, int, CpuSet]]


def topology_view(state: State, executor_id: str) -> TopologyView:
    """Returns the cpus and NUMA nodes of one executor.

    Raises:
        NotFound: the executor does not exist.
    """
    host = known_host(state.hosts, executor_id)
    return TopologyView(
        executor=host.executor,
        policy=host.present.policy,
        zones=zones(host.cpus, host.executor.registration) if host.cpus is not None else [],
        pools=pools(host),
        # The slots are sorted, so that two views can be compared.
        slots=[slot_view(state, host.slots[key]) for key in sorted(host.slots)],
        lost_cpus=[(*key, cpus) for key, cpus in sorted(host.lost_cpus.items())],
    )


def pools(host: Host) -> Pools:
    """Returns the shared pools of a host, which consist of the cpus that are not dedicated to
    slots.
    """
    registration, seen = host.executor.registration, host.executor.cpu_state
    announced = announced_by(registration)
    pooled = Pooled.of(
        _cores(registration),
        announced.slot_cpus,
        host.present.policy,
        kept_back=announced.reserved_cpus,
        isolated=_isolated(registration),
        kubelet_pinned=seen.kubelet_cpus,
        offline=seen.offline_cpus,
    )
    assignments = (slot.assignment for slot in host.slots.values())
    return pools_of(pooled, ((each.qos, each.cpus) for each in assignments if each is not None))


def zones(ledger: CpuLedger, registration: Registration) -> list[Zone]:
    """Returns the capacity of each NUMA node, and its allocatable, allocated and available amounts,
    in order of the node ids.

    Args:
        ledger: the cpu ledger of the host.
        registration: the registration of the executor, which describes the whole machine.
    """
    memory = _memory_by_node(registration)
    found = []
    for at, node in enumerate(ledger.layout.nodes):
        extended = (EXTENDED_PREFIX + name for name, _ in node.extended)
        names = (CPU_MILLI, BEST_EFFORT_CPU_MILLI, MEMORY_BYTES, *extended)
        pinned_milli = (ledger.pinned & node.mask).bit_count() * MILLI
        used = {name: ledger.used(at, name) for name in names}
        total = {name: ledger.capacity(at, name) for name in names}
        machine = {
            CPU_MILLI: node.mask.bit_count() * MILLI,
            MEMORY_BYTES: memory.get(node.id, node.memory_bytes),
        }
        machine |= {EXTENDED_PREFIX + name: amount for name, amount in node.extended}
        devices = _devices_on(ledger.devices, node.id)
        found.append(
            Zone(
                node.id,
                _without_zeros(total | devices.total),
                # `ledger.used` counts only the cpu of shared pools, so dedicated cpus are added.
                _without_zeros(
                    used | {CPU_MILLI: used[CPU_MILLI] + pinned_milli} | devices.allocated
                ),
                _without_zeros(
                    {name: ledger.available(at, name) for name in names} | devices.available
                ),
                _without_zeros(machine | devices.capacity),
            )
        )
    return found


class _Devices(NamedTuple):
    """Sums over the devices of one NUMA node, by dimension."""

    capacity: dict[str, int]
    total: dict[str, int]
    allocated: dict[str, int]
    available: dict[str, int]


def _devices_on(ledger: DeviceLedger, node: int) -> _Devices:
    sums = _Devices({}, {}, {}, {})
    layout = ledger.layout
    for at, device in enumerate(layout.devices):
        if device.numa_node != node:
            continue
        whole = layout.totals[at]
        used = ledger.used.get((device.type, device.uuid), {})
        # A device that gets no new slots still counts with the shares of its present slots.
        usable = used if ledger.problem(at) else whole
        for total, amounts in zip(sums, (whole, usable, used, ledger.free(at)), strict=True):
            for name, amount in amounts.items():
                key = DEVICE_PREFIX + name
                total[key] = total.get(key, 0) + amount
    return sums


def _memory_by_node(registration: Registration) -> dict[int, int]:
    nodes = json.loads(registration.topology or "{}").get("numa_nodes", ())
    return {
        int(node.get("numa_node_id", 0)): int(node.get("memory_bytes", 0))
        for node in nodes
        if node.get("memory_bytes")
    }


def _cores(registration: Registration) -> Iterator[tuple[PoolName, CpuSet]]:
    for core in json.loads(registration.topology or "{}").get("cores", ()):
        name = PoolName(int(core.get("package_index", 0)), int(core.get("numa_node_id", 0)))
        yield name, CpuSet.parse(core.get("cpus", ""))


def _isolated(registration: Registration) -> CpuSet:
    return CpuSet.parse(json.loads(registration.host_cpus or "{}").get("isolated_cpus", ""))


def _without_zeros(amounts: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}

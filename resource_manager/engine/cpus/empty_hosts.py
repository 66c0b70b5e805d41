"""Computes how many NUMA nodes requests need on hosts without slots. Equal hosts share the cached
results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from finegrain.cpu_policy import EffectivePolicy
from finegrain.cpuset import CpuSet
from resource_manager.engine.cpus.hints import fewest_nodes, quantities
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.cpus.pinning import candidate_cpus, pick_on
from resource_manager.engine.cpus.request import CpuRequest
from resource_manager.engine.cpus.resolve import resolve
from resource_manager.engine.devices.choose import choose_devices
from resource_manager.engine.devices.layout import DeviceLayout
from resource_manager.engine.model.host_refusal import HostRefusal

ANSWERS_KNOWN_MAX = 16_384
"""The largest number of cached results. Each result is for one request on one kind of host."""

_HOSTS_KNOWN_MAX = 1_024


class HostKind(NamedTuple):
    """All properties in which hosts without slots can differ. Hosts with the same kind are
    equal.
    """

    layout: CpuLayout
    policy: EffectivePolicy
    best_effort_milli: int | None
    unavailable: tuple[int, int, tuple[tuple[int, int], ...]]
    devices: DeviceLayout
    time_shared: bool

    @classmethod
    def of(cls, ledger: CpuLedger) -> HostKind:
        """Returns the kind of a host."""
        return cls(
            ledger.reported_layout,
            ledger.policy,
            ledger.best_effort_milli,
            ledger.unavailable,
            ledger.devices.layout,
            ledger.time_shared,
        )


@lru_cache(_HOSTS_KNOWN_MAX)
def empty_ledger(kind: HostKind) -> CpuLedger:
    """Returns the cpu ledger of a host of this kind without slots. All hosts of the kind share it,
    so callers must not change it.
    """
    # Offline cpus and cpus of a kubelet are left out, because slots cannot have these cpus even on
    # an empty host. All devices are usable in this ledger, because a device that gets no new slots
    # now can get new slots later.
    ledger = CpuLedger(
        kind.layout,
        kind.policy,
        best_effort_milli=kind.best_effort_milli,
        devices=kind.devices,
        time_shared=kind.time_shared,
    )
    offline, kubelet, kubelet_memory = kind.unavailable
    ledger.set_unavailable(
        offline=CpuSet.from_bits(offline),
        kubelet=CpuSet.from_bits(kubelet),
        kubelet_memory=kubelet_memory,
    )
    return ledger


@lru_cache(ANSWERS_KNOWN_MAX)
def fewest_nodes_when_empty(kind: HostKind, request: CpuRequest) -> int | None:
    """Returns the number of NUMA nodes that a slot would need on the empty host. The result is None
    if all nodes together would not be enough.
    """
    ledger = empty_ledger(kind)
    resolved = resolve(request.policy, request.cpu_milli, kind.policy, ledger.layout)
    # No number of nodes helps if the policies contradict each other.
    if isinstance(resolved, HostRefusal):
        return None
    candidates: int | None = None
    if resolved.count:
        cpus = candidate_cpus(ledger, resolved)
        if isinstance(cpus, HostRefusal):
            return None
        candidates = cpus

    def works(nodes: Sequence[int]) -> bool:
        ids = {ledger.layout.nodes[at].id for at in nodes}
        if request.devices and isinstance(
            choose_devices(ledger.devices, request.devices, ids), HostRefusal
        ):
            return False
        # If all cores have equally many threads, nodes with enough cpus always work.
        if candidates is None or ledger.layout.uniform_cores:
            return True
        return pick_on(ledger, resolved, candidates, nodes) is not None

    return fewest_nodes(
        quantities(ledger, dict(request.amounts), resolved.strategy, candidates), works
    )

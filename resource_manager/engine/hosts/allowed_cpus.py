"""Which cpus of an executor slots can have, and what that leaves to be booked.

Settings of a host come from several layers, with a fixed order. Reserved cpus, those of a kubelet
and those that went offline are subtracted. Each cpu that is left can be booked with 1,000
thousandths. So slots with dedicated cpus and all others together never book more cpu than there is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from finegrain.cpu_policy import EffectivePolicy, HostPolicy, PolicyOrigin, settle
from finegrain.cpuset import EMPTY, CpuSet, union
from finegrain.mapping.stored import STORED
from finegrain.resources import BEST_EFFORT_CPU_MILLI, CPU_MILLI, Amounts
from resource_manager.engine.model.entities import (
    NOTHING_SET,
    Cordon,
    CpuState,
    HostSetting,
    Registration,
)

MILLI_PER_CPU = 1000

_KNOWN_MAX = 4_096
"""Cached announcements and combinations of layers; a cluster has few different ones."""


CLUSTER = ""
"""Used in place of an executor's id for the whole cluster."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What an executor announced of its cpus, as far as it matters here."""

    slot_cpus: CpuSet = EMPTY  # that its total counts
    reserved_cpus: CpuSet = EMPTY  # reserved by its configuration, besides those
    isolated_cpus: CpuSet = EMPTY  # in no shared pool, so that pools cannot offer them
    policy: HostPolicy = NOTHING_SET

    @property
    def best_effort_cpus(self) -> CpuSet:
        """The cpus that the announced best-effort total is for."""
        if self.policy.reserved_strict:
            return self.slot_cpus
        # Cpus that are reserved and shared run best-effort slots, too, so the announced total has
        # them.
        return self.slot_cpus | (self.reserved_cpus & (self.policy.reserved_cpus or EMPTY))


@dataclass(frozen=True, slots=True)
class HostCpus:
    """What is in force for the cpus of one host at present.

    Attributes:
        policy: its settings, from all layers.
        unavailable: cpus for slots that are offline, or that a kubelet has given away.
        taken: cpus for slots that cannot be dedicated to one: unavailable and reserved ones.
        total: what can be booked there.
    """

    policy: EffectivePolicy
    unavailable: CpuSet
    taken: CpuSet
    total: dict[str, int]


def host_cpus(
    registration: Registration, state: CpuState, operator: HostPolicy, cluster: HostPolicy
) -> HostCpus:
    """Returns what is in force for the cpus of a host.

    Args:
        registration: what the executor announced.
        state: what it sees of its cpus now.
        operator: what operators have set for this host.
        cluster: what they have set for the cluster.
    """
    announced = announced_by(registration)
    policy = _settled(operator, announced.policy, state.kubelet_policy, cluster)
    unavailable = (state.offline_cpus | state.kubelet_cpus) & announced.slot_cpus
    # A cpu may be reserved by the operator and unknown to this host.
    taken = unavailable | (policy.reserved_cpus & announced.slot_cpus)
    # Isolated cpus count for no amounts: only slots with dedicated cpus can have them.
    uncounted = taken | (announced.isolated_cpus & announced.slot_cpus)
    in_no_pool = union(
        (
            policy.strictly_reserved_cpus,
            announced.isolated_cpus,
            state.offline_cpus,
            state.kubelet_cpus,
        )
    )
    total = dict(registration.total)  # a copy: registrations are shared and must not change
    if uncounted:
        total = _total(total, announced.slot_cpus, uncounted)
    return HostCpus(policy, unavailable, taken, _with_best_effort(total, announced, in_no_pool))


def announced_by(registration: Registration) -> Announced:
    """Returns what an executor announced of its cpus; if it announced none, the cpus of its shared
    pool.
    """
    announced = _announced(registration.host_cpus)
    # Executors of older versions announce no cpus. Their shared pool is the best that is known.
    if announced.slot_cpus or not registration.shared_cpus:
        return announced
    return Announced(
        CpuSet.parse(registration.shared_cpus), announced.reserved_cpus, policy=announced.policy
    )


def unannounced(operator: HostPolicy, cluster: HostPolicy) -> EffectivePolicy:
    """Returns the settings that follow from operators' settings alone, for any host."""
    return _settled(operator, NOTHING_SET, NOTHING_SET, cluster)


@lru_cache(_KNOWN_MAX)
def _announced(text: str) -> Announced:
    announced: dict[str, Any] = json.loads(text)
    return Announced(
        CpuSet.parse(announced.get("slot_cpus", ""), "slot_cpus"),
        CpuSet.parse(announced.get("reserved_cpus", ""), "reserved_cpus"),
        CpuSet.parse(announced.get("isolated_cpus", ""), "isolated_cpus"),
        STORED.from_json(HostPolicy, announced.get("policy", {})),
    )


@lru_cache(_KNOWN_MAX)
def _settled(
    operator: HostPolicy, configured: HostPolicy, kubelet: HostPolicy, cluster: HostPolicy
) -> EffectivePolicy:
    return settle(
        (
            (PolicyOrigin.OPERATOR, operator),
            (PolicyOrigin.CONFIGURATION, configured),
            (PolicyOrigin.KUBELET, kubelet),
            (PolicyOrigin.CLUSTER, cluster),
        )
    )


def _total(announced: Amounts, cpus: CpuSet, taken: CpuSet) -> dict[str, int]:
    """Returns what is left of what was announced.

    If that was less than the cpus could give (a quota, or a configured share), taken cpus reduce
    the difference first. For example, 8 cpus announced as 6,000 with 3 taken leave 5,000.
    """
    total = dict(announced)
    # What the cpus could give beyond the announced total is lost first, at no cost to slots.
    spare = max(0, MILLI_PER_CPU * len(cpus) - total.get(CPU_MILLI, 0))
    lost = max(0, MILLI_PER_CPU * len(taken) - spare)
    total[CPU_MILLI] = max(0, total.get(CPU_MILLI, 0) - lost)
    # Zeros are left out, so that equal totals compare as equal.
    return {name: amount for name, amount in total.items() if amount}


def _with_best_effort(
    total: dict[str, int], announced: Announced, in_no_pool: CpuSet
) -> dict[str, int]:
    """Returns the total with the best-effort cpu that the pool can still run.

    It shrinks in proportion to the pool, since the executor's configuration decides how much the
    pool offers per cpu. Cpus that are reserved and shared stay in the pool, no matter which layer
    reserved them.
    """
    offered = announced.best_effort_cpus
    # Only cpus of the offer count: the others gave nothing to the announced total.
    lacks = offered & in_no_pool
    if lacks and BEST_EFFORT_CPU_MILLI in total:
        # Rounded down: a total that is too large could not be enforced.
        left = total[BEST_EFFORT_CPU_MILLI] * len(offered - lacks) // len(offered)
        total = total | {BEST_EFFORT_CPU_MILLI: left}
    return {name: amount for name, amount in total.items() if amount}


def cordons_for(settings: Mapping[str, HostSetting], executor_id: str) -> tuple[Cordon, ...]:
    """Returns the devices of an executor that operators have cordoned."""
    setting = settings.get(executor_id)
    return setting.cordons if setting is not None else ()


def set_for(settings: Mapping[str, HostSetting], executor_id: str) -> HostPolicy:
    """Returns what operators have set for an executor, or for the cluster."""
    setting = settings.get(executor_id)
    return setting.policy if setting is not None else NOTHING_SET

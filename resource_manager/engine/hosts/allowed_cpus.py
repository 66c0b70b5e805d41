"""What of an executor's cpus slots can have, and by whose settings.

Decides the order of the layers that settings of one host come from, which of the announced cpus no
slot may have to itself for now (reserved, a kubelet's, or not running any more), and what that
leaves to be booked: a thousandth of a core's thousand for each cpu that is left, so that slots with
cpus of their own and all others together never book more cpu than there is.

Pure: knows registrations, reports and settings; who has which cpu, and what becomes of slots, is
not its business.
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
from resource_manager.engine.model.entities import NOTHING_SET, CpuState, HostSetting, Registration

MILLI_PER_CPU = 1000

_KNOWN_MAX = 4_096
"""Announcements and combinations of layers that are remembered; a cluster has few different."""


CLUSTER = ""
"""Stands for the cluster where an executor's id stands."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What an executor announced of its cpus, as far as it is counted with."""

    slot_cpus: CpuSet = EMPTY  # that its total counts
    reserved_cpus: CpuSet = EMPTY  # kept back by its configuration, beside those
    isolated_cpus: CpuSet = EMPTY  # in no shared pool, so that nobody can book by them
    policy: HostPolicy = NOTHING_SET

    @property
    def best_effort_cpus(self) -> CpuSet:
        """The cpus that the announced best-effort total is for."""
        if self.policy.reserved_strict:
            return self.slot_cpus
        return self.slot_cpus | (self.reserved_cpus & (self.policy.reserved_cpus or EMPTY))


@dataclass(frozen=True, slots=True)
class HostCpus:
    """What holds for the cpus of one host at present.

    Attributes:
        policy: its settings, by all layers.
        unavailable: cpus of its slots' that do not run any more, or that a kubelet has given away.
        taken: cpus of its slots' that none may have to itself: these, and reserved ones.
        total: what can be booked there.
    """

    policy: EffectivePolicy
    unavailable: CpuSet
    taken: CpuSet
    total: dict[str, int]


def host_cpus(
    registration: Registration, state: CpuState, operator: HostPolicy, cluster: HostPolicy
) -> HostCpus:
    """What holds, by what the executor announced and sees now, and by what operators have set for
    it and for the cluster.
    """
    announced = announced_by(registration)
    policy = _settled(operator, announced.policy, state.kubelet_policy, cluster)
    unavailable = (state.offline_cpus | state.kubelet_cpus) & announced.slot_cpus
    taken = unavailable | (policy.reserved_cpus & announced.slot_cpus)
    uncounted = taken | (announced.isolated_cpus & announced.slot_cpus)
    in_no_pool = union(
        (
            policy.strictly_reserved_cpus,
            announced.isolated_cpus,
            state.offline_cpus,
            state.kubelet_cpus,
        )
    )
    total = dict(registration.total)
    if uncounted:
        total = _total(total, announced.slot_cpus, uncounted)
    return HostCpus(policy, unavailable, taken, _with_best_effort(total, announced, in_no_pool))


def announced_by(registration: Registration) -> Announced:
    """What an executor announced; one that says nothing of cpus has those of its shared pool."""
    announced = _announced(registration.host_cpus)
    if announced.slot_cpus or not registration.shared_cpus:
        return announced
    return Announced(
        CpuSet.parse(registration.shared_cpus), announced.reserved_cpus, policy=announced.policy
    )


def unannounced(operator: HostPolicy, cluster: HostPolicy) -> EffectivePolicy:
    """What holds by what operators have set alone, for whatever host."""
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

    Where that is less than the cpus could give (a quota, or a share that was configured), what is
    taken comes out of the difference first.
    """
    total = dict(announced)
    spare = max(0, MILLI_PER_CPU * len(cpus) - total.get(CPU_MILLI, 0))
    lost = max(0, MILLI_PER_CPU * len(taken) - spare)
    total[CPU_MILLI] = max(0, total.get(CPU_MILLI, 0) - lost)
    return {name: amount for name, amount in total.items() if amount}


def _with_best_effort(
    total: dict[str, int], announced: Announced, in_no_pool: CpuSet
) -> dict[str, int]:
    """Returns the total with the best-effort cpu that the pool can still run.

    It shrinks in proportion to the pool: how much of it is offered per cpu, the executor's
    configuration says. Cpus that are reserved and shared stay in the pool, no matter which layer
    reserved them.
    """
    offered = announced.best_effort_cpus
    lacks = offered & in_no_pool
    if lacks and BEST_EFFORT_CPU_MILLI in total:
        left = total[BEST_EFFORT_CPU_MILLI] * len(offered - lacks) // len(offered)
        total = total | {BEST_EFFORT_CPU_MILLI: left}
    return {name: amount for name, amount in total.items() if amount}


def set_for(settings: Mapping[str, HostSetting], executor_id: str) -> HostPolicy:
    """What operators have set for an executor, or for the cluster."""
    setting = settings.get(executor_id)
    return setting.policy if setting is not None else NOTHING_SET

"""Computes which cpus of an executor are available to slots, and how much cpu slots can book.

The settings of a host come from several layers in a fixed order: administrator, configuration,
kubelet, cluster. Reserved cpus, cpus of a kubelet and offline cpus are subtracted. Each remaining
cpu adds 1,000 (thousandths of a cpu) to the amount that slots can book. So all slots together, with
and without dedicated cpus, never get more cpu than the host has.

Example: an executor announces 8 cpus with a total of 8,000. The administrator reserves cpu 0, and
cpu 7 is offline. The other 6 cpus remain, so slots can book 6,000.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
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
from resource_manager.engine.model.scheduling_key import in_grains

MILLI_PER_CPU = 1000

_KNOWN_MAX = 4_096
"""The largest number of cached announcements, and of cached combinations of layers. A cluster has
few different announcements and combinations.
"""


CLUSTER = ""
"""Key of the settings for the whole cluster, in place of an executor's id."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The facts that this module needs from an executor's announcement about its cpus."""

    slot_cpus: CpuSet = EMPTY  # cpus that are part of the announced total
    # cpus that the executor's configuration reserves; `slot_cpus` does not contain them
    reserved_cpus: CpuSet = EMPTY
    isolated_cpus: CpuSet = EMPTY  # cpus that are in no shared pool
    policy: HostPolicy = NOTHING_SET

    @property
    def best_effort_cpus(self) -> CpuSet:
        """The cpus that are part of the announced best-effort total."""
        if self.policy.reserved_strict:
            return self.slot_cpus
        # Best-effort slots also run on reserved cpus that are not strictly reserved, so the
        # announced total counts these cpus.
        return self.slot_cpus | (self.reserved_cpus & (self.policy.reserved_cpus or EMPTY))


@dataclass(frozen=True, slots=True)
class HostCpus:
    """The settings of one host that apply now, and the cpus and amounts that follow from them.

    Attributes:
        policy: the settings of the host, merged from all layers.
        unavailable: announced cpus that are offline, or that a kubelet has given to its containers.
        taken: announced cpus that cannot be dedicated to slots, because they are unavailable or
            reserved.
        total: the amounts that slots can book on the host. Equal hosts share this dict.
        dimensions: `total` in the units of the index.
    """

    policy: EffectivePolicy
    unavailable: CpuSet
    taken: CpuSet
    total: dict[str, int]
    dimensions: dict[str, int]


def host_cpus(
    registration: Registration, state: CpuState, operator: HostPolicy, cluster: HostPolicy
) -> HostCpus:
    """Returns the settings, cpus and amounts of a host that apply now.

    Args:
        registration: the registration of the executor, which contains its announcement.
        state: the state of the cpus that the executor reported last.
        operator: the settings that administrators made for this host.
        cluster: the settings that administrators made for the whole cluster.
    """
    cpus = registration.host_cpus, registration.shared_cpus
    return _host_cpus(tuple(registration.total.items()), cpus, state, operator, cluster)


@lru_cache(_KNOWN_MAX)
def _host_cpus(
    announced_total: tuple[tuple[str, int], ...],
    cpus: tuple[str, str],
    state: CpuState,
    operator: HostPolicy,
    cluster: HostPolicy,
) -> HostCpus:
    """Returns the result of `host_cpus`. Equal hosts share one object, so its values must not be
    changed.
    """
    announced = _announced_by(*cpus)
    policy = _merged_policy(operator, announced.policy, state.kubelet_policy, cluster)
    unavailable = (state.offline_cpus | state.kubelet_cpus) & announced.slot_cpus
    # The intersection is needed, because administrators can reserve cpus that this host does not
    # have.
    taken = unavailable | (policy.reserved_cpus & announced.slot_cpus)
    # Isolated cpus do not count for the bookable amount, because slots without dedicated cpus
    # cannot use them.
    uncounted = taken | (announced.isolated_cpus & announced.slot_cpus)
    in_no_pool = union(
        (
            policy.strictly_reserved_cpus,
            announced.isolated_cpus,
            state.offline_cpus,
            state.kubelet_cpus,
        )
    )
    total = dict(announced_total)
    if uncounted:
        total = _total(total, announced.slot_cpus, uncounted)
    total = _with_best_effort(total, announced, in_no_pool)
    dimensions = {name: amount for name, amount in in_grains(total).items() if amount}
    return HostCpus(policy, unavailable, taken, total, dimensions)


def announced_by(registration: Registration) -> Announced:
    """Returns the announcement of an executor about its cpus. If the executor announced no cpus,
    the cpus of its shared pool count as announced.
    """
    return _announced_by(registration.host_cpus, registration.shared_cpus)


def _announced_by(host_cpus: str, shared_cpus: str) -> Announced:
    announced = _announced(host_cpus)
    # Executors of older versions announce no cpus, but they report their shared pool.
    if announced.slot_cpus or not shared_cpus:
        return announced
    return Announced(CpuSet.parse(shared_cpus), announced.reserved_cpus, policy=announced.policy)


def unannounced(operator: HostPolicy, cluster: HostPolicy) -> EffectivePolicy:
    """Returns the settings of a host that has announced no settings. The result depends only on the
    settings that administrators made, and on the defaults.
    """
    return _merged_policy(operator, NOTHING_SET, NOTHING_SET, cluster)


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
def _merged_policy(
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
    """Returns the announced amounts without the taken cpus.

    An executor can announce less cpu than its cpus have, because of a quota or a configured share.
    The difference is cpu that slots cannot book anyway. So the taken cpus first reduce this
    difference, and only the rest of them reduces the announced amount. For example, an executor
    announces 6,000 for 8 cpus, and 3 cpus are taken. The difference is 2,000, so only 1,000 of the
    3,000 are subtracted from the announced amount, and slots can book 5,000.
    """
    total = dict(announced)
    # `spare` is the amount of cpu that the executor has but does not announce. Taken cpus reduce
    # this amount first, because slots cannot book it.
    spare = max(0, MILLI_PER_CPU * len(cpus) - total.get(CPU_MILLI, 0))
    lost = max(0, MILLI_PER_CPU * len(taken) - spare)
    total[CPU_MILLI] = max(0, total.get(CPU_MILLI, 0) - lost)
    # Amounts of 0 are left out, so that equal totals are equal dicts.
    return {name: amount for name, amount in total.items() if amount}


def _with_best_effort(
    total: dict[str, int], announced: Announced, in_no_pool: CpuSet
) -> dict[str, int]:
    """Returns the total with its best-effort cpu reduced to the amount that the best-effort pool
    can still provide.

    The amount decreases in proportion to the size of the pool, because the executor's configuration
    defines how much best-effort cpu each cpu offers. A reserved cpu that is not strictly reserved
    stays in the pool, whichever layer reserved the cpu.
    """
    offered = announced.best_effort_cpus
    # Only cpus that are part of the announced total are subtracted.
    lacks = offered & in_no_pool
    if lacks and BEST_EFFORT_CPU_MILLI in total:
        # The amount is rounded down, because the host could not provide a larger total.
        left = total[BEST_EFFORT_CPU_MILLI] * len(offered - lacks) // len(offered)
        total = total | {BEST_EFFORT_CPU_MILLI: left}
    return {name: amount for name, amount in total.items() if amount}


def cordons_for(settings: Mapping[str, HostSetting], executor_id: str) -> tuple[Cordon, ...]:
    """Returns the cordons that administrators set on devices of an executor."""
    setting = settings.get(executor_id)
    return setting.cordons if setting is not None else ()


def policy_for(settings: Mapping[str, HostSetting], executor_id: str) -> HostPolicy:
    """Returns the settings that administrators made for an executor, or for the cluster
    (`CLUSTER`).
    """
    setting = settings.get(executor_id)
    return setting.policy if setting is not None else NOTHING_SET


def cluster_policy(settings: Mapping[str, HostSetting], configured: HostPolicy) -> HostPolicy:
    """Returns the settings of the cluster. A setting that administrators have made at runtime has
    priority over the configuration of the resource manager.
    """
    made = policy_for(settings, CLUSTER)
    if configured == NOTHING_SET:
        return made
    missing = {
        each.name: getattr(configured, each.name)
        for each in fields(made)
        if getattr(made, each.name) is None
    }
    return replace(made, **missing)

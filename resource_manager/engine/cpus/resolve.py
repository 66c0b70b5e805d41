"""Resolves a request's cpu policies against a host's settings.

- A policy of the request has priority over the host's defaults.
- A bind policy or alignment that the host demands is required for every slot.
- If the request and the host require different policies, the host refuses the slot.
- A policy that is only preferred is dropped if it conflicts with a setting of the host. The slot
  then gets a note.

Only the QoS class decides whether a slot has dedicated cpus. The settings of a host have no effect
on this decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from finegrain.cpu_policy import (
    BindPolicy,
    CpuPolicy,
    EffectivePolicy,
    ExclusivePolicy,
    HostBindPolicy,
    NumaPolicy,
    NumaStrategy,
    QosClass,
)
from resource_manager.engine.cpus.layout import CpuLayout
from resource_manager.engine.cpus.numa import MILLI
from resource_manager.engine.cpus.request import CpuBlocker
from resource_manager.engine.cpus.whole_cores import aligned
from resource_manager.engine.model.host_refusal import HostRefusal

# number of cached results; a cluster has few different policies, sizes and kinds of hosts
_KNOWN = 16_384


@dataclass(frozen=True, slots=True)
class Resolved:
    """The policies that apply to one slot on one host. No policy is Default."""

    qos: QosClass
    count: int  # number of dedicated cpus; 0 if the slot runs in a shared pool
    bind: BindPolicy
    bind_required: bool
    exclusive: ExclusivePolicy
    exclusive_required: bool
    numa: NumaPolicy
    numa_required: bool
    strategy: NumaStrategy
    # True if the request itself names a bind policy, and False if `bind` is a default
    bind_requested: bool = False
    notes: tuple[str, ...] = ()  # notes about preferred policies that the host's settings override

    @property
    def needs_whole_cores(self) -> bool:
        """True if the slot must get whole cores."""
        return self.bind_required and self.bind is BindPolicy.FULL_PCPUS


@lru_cache(_KNOWN)
def resolve(
    policy: CpuPolicy, cpu_milli: int, host: EffectivePolicy, layout: CpuLayout
) -> Resolved | HostRefusal:
    """Returns the policies that apply to a slot, or why it cannot be placed on this host.

    Args:
        policy: the CPU policy of the request.
        cpu_milli: the cpu that the slot books, in thousandths.
        host: the host's settings.
        layout: the host.

    Source: Koordinator's nodenumaresource (`plugin.go`, `util.go`), without priority classes and
    without pinning by host policy. The choice between preferred and required NUMA policies is an
    addition of this module.
    """
    # The service accepts pinned slots only with whole numbers of cpus, so this division has no
    # remainder.
    count = cpu_milli // MILLI if policy.qos.is_pinned else 0
    bind = _bind(policy, host, layout) if count else _pool_bind(policy)
    if isinstance(bind, HostRefusal):
        return bind
    exclusive = _exclusive(policy, host, layout) if count else _pool_exclusive(policy)
    if isinstance(exclusive, HostRefusal):
        return exclusive
    numa = _numa(policy, host)
    if isinstance(numa, HostRefusal):
        return numa
    resolved = Resolved(
        policy.qos,
        count,
        *bind[:2],
        *exclusive[:2],
        *numa[:2],
        strategy=host.numa_strategy,
        bind_requested=policy.bind is not BindPolicy.DEFAULT,
        notes=(*bind[2], *exclusive[2], *numa[2]),
    )
    return _misaligned(resolved, policy, layout) or resolved


_Bind = tuple[BindPolicy, bool, tuple[str, ...]]
_Exclusive = tuple[ExclusivePolicy, bool, tuple[str, ...]]
_Numa = tuple[NumaPolicy, bool, tuple[str, ...]]

_DEMANDED = {
    HostBindPolicy.FULL_PCPUS_ONLY: BindPolicy.FULL_PCPUS,
    HostBindPolicy.SPREAD_BY_PCPUS: BindPolicy.SPREAD_BY_PCPUS,
}


def _bind(policy: CpuPolicy, host: EffectivePolicy, layout: CpuLayout) -> _Bind | HostRefusal:
    """Returns the bind policy of a slot with dedicated cpus. A policy that the host demands has
    priority over the request's policy, and the request's policy has priority over the host's
    default.
    """
    requested = policy.bind
    wanted = host.default_bind if requested is BindPolicy.DEFAULT else requested
    required = policy.bind_required and wanted is not BindPolicy.NONE
    notes: tuple[str, ...] = ()
    if wanted is BindPolicy.CONSTRAINED_BURST:
        notes = (f"{wanted} was preferred: slots with dedicated cpus run in no shared pool",)
        # Dedicated cpus are not in a shared pool, so this policy has no effect.
        wanted, required = BindPolicy.NONE, False
    demanded = _DEMANDED.get(host.bind)
    if demanded is not None and demanded is not wanted:
        if required:
            return HostRefusal(
                CpuBlocker.BIND_POLICY_CONFLICT,
                f"the request requires {wanted}, but the host demands {host.bind}",
            )
        # A policy that the request did not name needs no note.
        if requested not in (BindPolicy.DEFAULT, BindPolicy.NONE) and not notes:
            notes = (f"{wanted} was preferred: the host demands {host.bind}",)
    # Without SMT, any cpus meet a demand for whole cores or for different cores.
    if demanded is not None and (layout.smt or demanded is wanted):
        return demanded, True, notes
    if wanted is BindPolicy.SPREAD_BY_PCPUS and not layout.smt:
        if required:
            return _without_threads(wanted)
        if requested is wanted:
            notes = (*notes, f"{wanted} was preferred: each core of the host is one cpu")
        wanted = BindPolicy.NONE
    return wanted, required, notes


def _pool_bind(policy: CpuPolicy) -> _Bind:
    """Returns the bind policy of a slot in a shared pool."""
    requested = policy.bind
    if requested is BindPolicy.CONSTRAINED_BURST and policy.qos is QosClass.LS:
        return requested, policy.bind_required, ()
    if requested in (BindPolicy.DEFAULT, BindPolicy.NONE):
        return BindPolicy.NONE, False, ()
    return BindPolicy.NONE, False, (_no_dedicated_cpus(requested, policy.qos),)


def ignored_in_pools(policy: CpuPolicy) -> tuple[str, ...]:
    """Returns notes about preferred policies that have no effect in a shared pool."""
    return (*_pool_bind(policy)[2], *_pool_exclusive(policy)[2])


def _exclusive(
    policy: CpuPolicy, host: EffectivePolicy, layout: CpuLayout
) -> _Exclusive | HostRefusal:
    requested = policy.exclusive
    wanted = host.default_exclusive if requested is ExclusivePolicy.DEFAULT else requested
    if wanted is ExclusivePolicy.DEFAULT:
        wanted = ExclusivePolicy.NONE
    required = policy.exclusive_required and wanted is not ExclusivePolicy.NONE
    if wanted is not ExclusivePolicy.PCPU_LEVEL or layout.smt:
        return wanted, required, ()
    if required:
        return _without_threads(wanted)
    noted = requested is wanted
    note = f"{wanted} was preferred: each core of the host is one cpu"
    return ExclusivePolicy.NONE, False, (note,) if noted else ()


def _pool_exclusive(policy: CpuPolicy) -> _Exclusive:
    requested = policy.exclusive
    if requested in (ExclusivePolicy.DEFAULT, ExclusivePolicy.NONE):
        return ExclusivePolicy.NONE, False, ()
    return ExclusivePolicy.NONE, False, (_no_dedicated_cpus(requested, policy.qos),)


def _numa(policy: CpuPolicy, host: EffectivePolicy) -> _Numa | HostRefusal:
    """Returns the NUMA policy. The host's alignment applies to its slots of all QoS classes. Only
    if the host aligns by BestEffort, a policy that the request requires has priority.
    """
    requested, aligned = policy.numa, host.alignment
    # BestEffort admits everything, so it demands nothing of a request.
    demanded = aligned.aligns and aligned is not NumaPolicy.BEST_EFFORT
    if not aligned.aligns or (policy.numa_required and not demanded):
        wanted = aligned if requested is NumaPolicy.DEFAULT else requested
        return wanted, policy.numa_required, ()
    if requested in (NumaPolicy.DEFAULT, aligned):
        return aligned, True, ()
    if policy.numa_required:
        return HostRefusal(
            CpuBlocker.NUMA_POLICY_MISMATCH,
            f"the request requires NUMA policy {requested}, but the host aligns by {aligned}",
        )
    return aligned, True, (f"NUMA policy {requested} was preferred: the host aligns by {aligned}",)


def _misaligned(resolved: Resolved, policy: CpuPolicy, layout: CpuLayout) -> HostRefusal | None:
    """Returns a refusal if whole cores are required, but no whole cores have exactly this number of
    threads.
    """
    if not resolved.needs_whole_cores or aligned(layout, resolved.count):
        return None
    by_request = policy.bind_required and policy.bind is not BindPolicy.DEFAULT
    by = "the request requires" if by_request else "the host demands"
    width = layout.per_core if layout.uniform_cores else f"up to {layout.per_core}"
    hint = f": request a multiple of {layout.per_core} cpus"
    return HostRefusal(
        CpuBlocker.SMT_ALIGNMENT,
        f"{by} whole cores, which have {width} threads each on this host, but no number of"
        f" whole cores has exactly {resolved.count} threads{hint if layout.uniform_cores else ''}",
        (("asked", resolved.count), ("threads per core", layout.per_core)),
    )


def _without_threads(policy: BindPolicy | ExclusivePolicy) -> HostRefusal:
    return HostRefusal(
        CpuBlocker.SMT_NEEDED,
        f"the request requires {policy}, but each core of the host is one cpu",
    )


def _no_dedicated_cpus(policy: BindPolicy | ExclusivePolicy, qos: QosClass) -> str:
    return f"{policy} was preferred: {qos} slots have no dedicated cpus"

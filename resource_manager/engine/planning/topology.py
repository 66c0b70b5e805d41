"""Counts how many topology-constrained requests fit on an executor in a plan, because amounts alone
do not show this number.

A plan has one extra dimension for each topology-constrained kind of requests: the number of
requests of this kind that fit on an executor. For a registered executor, the number is computed
from its cpus and NUMA nodes. For any other executor, the number is computed from the executor of
the same shape that registered last. If no executor of the shape has registered, only amounts are
compared.

Example: an executor has enough cpu for four requests of two whole cores each, but has enough free
whole cores for only three. So the executor has the amount 3 in the dimension of this kind, and each
request takes the amount 1.

Different kinds compete for the same cores. The plan considers this competition on registered
executors, and for the members of a gang that must be on one executor. On pending executors, the
plan ignores the competition. If requests do not fit together on a pending executor, they are
planned again after the executor has registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from finegrain.resources import Amounts
from finegrain.values.states import GangPlacement
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.model.entities import NOTHING_SET, Executor
from resource_manager.engine.model.scheduling_key import in_grains
from resource_manager.engine.placement.elastic import UNBOUNDED, Capacity
from resource_manager.engine.placement.tentative_cpus import TentativeCpus
from resource_manager.engine.planning.gangs import GangDemand
from resource_manager.engine.planning.packing import Demand

if TYPE_CHECKING:
    from finegrain.cpu_policy import HostPolicy
    from resource_manager.engine.hosts.cpu_allocator import ResourceRequest

_COUNTED = "counted/"
"""Prefix of the names of the extra dimensions."""

_TRIED_MAX = 64
"""If at least this many requests of a kind fit, only amounts are compared."""


def empty_like(host: Host, operator: HostPolicy = NOTHING_SET) -> Host:
    """Returns a copy of a host without slots, as a prediction of a future host of the same kind.

    Args:
        host: the host to copy.
        operator: the settings that an administrator has made for the predicted host.
    """
    executor = Executor(host.executor.registration, registration_number=0)
    executor.cpu_state = host.executor.cpu_state
    copy = Host.of(executor, operator, host.cluster_policy)
    # A new host has no slots and so no neighbors. A request that must be near present slots does
    # not fit on it.
    copy.labeled = host.labeled
    return copy


def counted(demand: Demand, kind: int) -> Demand:
    """Returns the demand with an additional need: 1 in the extra dimension of its kind."""
    one = {_COUNTED + str(kind): 1}
    return replace(demand, pooled={**demand.pooled, **one}, separate={**demand.separate, **one})


def amounts_of(need: Amounts) -> dict[str, int]:
    """Returns the amounts of a need, without the extra dimensions that `counted` adds."""
    return {name: amount for name, amount in need.items() if not name.startswith(_COUNTED)}


def with_counts(
    capacity: Capacity,
    host: Host | None,
    kinds: Mapping[int, ResourceRequest],
    together: Iterable[Mapping[int, int]] = (),
) -> Capacity:
    """Adds the extra dimensions to a capacity. For each kind, this is the number of requests for
    which the cpus and NUMA nodes are sufficient.

    Args:
        capacity: the capacity of the executor, in columns of the capacity index.
        host: the executor itself, or an executor of the same shape. It is None if neither of them
            is known.
        kinds: the request of each kind that has an extra dimension.
        together: groups of kinds that compete for the same cores, with the number of requests of
            each kind. A kind is in at most one group.
    """
    if not kinds:
        return capacity
    counts = {kind: _fit(host, request) for kind, request in kinds.items()}
    for group in together:
        several = {kind: count for kind, count in group.items() if kind in kinds}
        if host is not None and len(several) > 1:
            counts.update(_fit_together(host, several, kinds, capacity.amounts))
    named = {_COUNTED + str(kind): count for kind, count in counts.items()}
    return replace(capacity, amounts={**capacity.amounts, **named})


def together(gangs: Iterable[GangDemand]) -> list[Mapping[int, int]]:
    """Returns, by kind, the members of each gang that must be on one executor."""
    return [each.members for each in gangs if each.placement is GangPlacement.SAME_EXECUTOR]


def _fit(host: Host | None, request: ResourceRequest) -> int:
    if host is None or not host.needs_topology(request):
        # The cpus are unknown or do not matter, so only amounts are compared.
        return UNBOUNDED
    found = len(host.assign_many(request, _TRIED_MAX))
    # A higher number is not useful: if `_TRIED_MAX` requests fit, amounts are probably the limit.
    return found if found < _TRIED_MAX else UNBOUNDED


def _fit_together(
    host: Host, counts: Mapping[int, int], kinds: Mapping[int, ResourceRequest], amounts: Amounts
) -> dict[int, int]:
    """Returns how many requests of each kind fit. The kinds are tried in order, and each kind gets
    only the capacity that earlier kinds have left.
    """
    trials, left = TentativeCpus(), dict(amounts)
    found: dict[int, int] = {}
    for kind, count in counts.items():
        need = in_grains(host.booking_for(kinds[kind]))
        room = min((left.get(name, 0) // each for name, each in need.items()), default=count)
        fit = trials.fit(kinds[kind], host, min(count, room, _TRIED_MAX))
        # The next kind gets only the capacity that is left.
        trials.take(kinds[kind], host, fit)
        for name, each in need.items():
            left[name] = left.get(name, 0) - each * fit
        found[kind] = fit if fit < _TRIED_MAX else UNBOUNDED
    return found

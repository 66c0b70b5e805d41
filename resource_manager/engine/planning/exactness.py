"""Those whom amounts alone do not say to fit, in a plan of executors to ask for.

An executor that has not come is planned with by its amounts. What its cpus and NUMA nodes are, only
the last one of its shape tells that came; as far as that is known, no more are planned on one than
it could serve, and a shape is not asked for in vain again and again. Executors that are there are
asked. For a plan this is one more dimension for each kind of wish: of each kind so many fit.

Kinds are not counted against each other on executors that have not come: what does not fit together
after all is planned anew when they are there. On those that are, and wherever a gang wants to be on
one executor, its members are counted as they fit beside each other: nothing else would ever tell
that they do not.
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
from resource_manager.engine.placement.gang_exact import Trials
from resource_manager.engine.planning.gang_planning import GangWish
from resource_manager.engine.planning.packing import Wish

if TYPE_CHECKING:
    from finegrain.cpu_policy import HostPolicy
    from resource_manager.engine.hosts.cpu_allocator import ResourceRequest

EXACT = "exact/"
"""Prefix of the dimension of one kind of wish."""

TRIED_MAX = 64
"""Of so many that fit it is not looked further: amounts decide."""


def empty_like(host: Host, operator: HostPolicy = NOTHING_SET) -> Host:
    """What the host would be without slots and, unless they are given, without settings of its
    own: as others like it will be when they come.
    """
    executor = Executor(host.executor.registration, registration_number=0)
    executor.cpu_state = host.executor.cpu_state
    return Host.of(executor, operator, host.cluster_policy)


def counted(wish: Wish, kind: int) -> Wish:
    """A wish that is counted by itself."""
    one = {EXACT + str(kind): 1}
    return replace(wish, pooled={**wish.pooled, **one}, separate={**wish.separate, **one})


def amounts_of(need: Amounts) -> dict[str, int]:
    """What is asked for in columns of the capacity index, without what is counted by itself."""
    return {name: amount for name, amount in need.items() if not name.startswith(EXACT)}


def offering(
    capacity: Capacity,
    host: Host | None,
    kinds: Mapping[int, ResourceRequest],
    together: Iterable[Mapping[int, int]] = (),
) -> Capacity:
    """A capacity with so many of each kind as the host's cpus and NUMA nodes suit now; None: nobody
    knows. `together`: kinds that are counted beside each other, with how many there are of each; no
    kind is in two of them.
    """
    if not kinds:
        return capacity
    offered = {kind: _fit(host, asked) for kind, asked in kinds.items()}
    for counts in together:
        several = {kind: count for kind, count in counts.items() if kind in kinds}
        if host is not None and len(several) > 1:
            offered.update(_fit_together(host, several, kinds, capacity.amounts))
    named = {EXACT + str(kind): count for kind, count in offered.items()}
    return replace(capacity, amounts={**capacity.amounts, **named})


def together(gangs: Iterable[GangWish]) -> list[Mapping[int, int]]:
    """The members of gangs that have to be on one executor: they are counted beside each other
    wherever that is to be.
    """
    return [each.members for each in gangs if each.placement is GangPlacement.SAME_EXECUTOR]


def _fit(host: Host | None, asked: ResourceRequest) -> int:
    if host is None or not host.needs_topology(asked):
        return UNBOUNDED
    found = len(host.assign_many(asked, TRIED_MAX))
    return found if found < TRIED_MAX else UNBOUNDED


def _fit_together(
    host: Host, counts: Mapping[int, int], kinds: Mapping[int, ResourceRequest], amounts: Amounts
) -> dict[int, int]:
    """How many of each there is room for, each kind taking what those before it leave."""
    trials, left = Trials(), dict(amounts)
    found: dict[int, int] = {}
    for kind, count in counts.items():
        need = in_grains(host.booking_for(kinds[kind]))
        room = min((left.get(name, 0) // each for name, each in need.items()), default=count)
        most = min(count, room, TRIED_MAX)
        fit = trials.fit(kinds[kind], host, most)
        trials.take(kinds[kind], host, fit)
        for name, each in need.items():
            left[name] = left.get(name, 0) - each * fit
        found[kind] = fit if fit < TRIED_MAX else UNBOUNDED
    return found

"""Those whom amounts alone do not say to fit, in a plan of executors to ask for.

An executor that has not come is planned with by its amounts. What its cpus and NUMA nodes are, only
the last one of its shape tells that came; as far as that is known, no more are planned on one than
it could serve, and a shape is not asked for in vain again and again. Executors that are there are
asked. For a plan this is one more dimension for each kind of wish: of each kind so many fit.

Kinds of different members are not counted against each other: what does not fit together after all
is planned anew when the executor is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from finegrain.resources import Amounts
from resource_manager.engine.entities import NOTHING_SET, Executor
from resource_manager.engine.host import Host
from resource_manager.engine.provision.exact import UNBOUNDED
from resource_manager.engine.provision.packing import Capacity, Wish

if TYPE_CHECKING:
    from finegrain.cpu_policy import HostPolicy
    from resource_manager.engine.cpu_giver import Asked

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


def offering(capacity: Capacity, host: Host | None, kinds: Mapping[int, Asked]) -> Capacity:
    """A capacity with so many of each kind as the host's cpus and NUMA nodes suit now; None: nobody
    knows.
    """
    if not kinds:
        return capacity
    offered = {EXACT + str(kind): _fit(host, asked) for kind, asked in kinds.items()}
    return replace(capacity, amounts={**capacity.amounts, **offered})


def _fit(host: Host | None, asked: Asked) -> int:
    if host is None or not host.exactly(asked):
        return UNBOUNDED
    found = len(host.assign_many(asked, TRIED_MAX))
    return found if found < TRIED_MAX else UNBOUNDED

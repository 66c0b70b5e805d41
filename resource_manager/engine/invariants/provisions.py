"""Checks provisions and the last plan for new executors. `all.py` runs these checks."""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.resources import Amounts
from finegrain.values.states import ExecutorState, ProvidedExecutorState
from resource_manager.engine.model.entities import Provision
from resource_manager.engine.model.scheduling_key import DEFAULT_SLOTS, SLOTS
from resource_manager.engine.placement.columns import needs_of
from resource_manager.engine.placement.elastic import PENDING, Capacity, Content, Elastic
from resource_manager.engine.placement.hosts import Hosts


def provision_problems(
    provisions: dict[str, Provision], hosts: Hosts, elastic: Elastic, executor_id: str
) -> Iterator[str]:
    """Yields problems of a provision."""
    provision = provisions.get(executor_id)
    if provision is None:
        return
    if executor_id != provision.executor_id:
        yield f"provision {provision.executor_id} is stored under {executor_id}"
    yield from _provision(hosts, elastic, provision)


def plan_problems(
    provisions: dict[str, Provision], elastic: Elastic, limits: Amounts
) -> Iterator[str]:
    """Yields problems of the sums over all provisions, and of the last plan."""
    for name, amount in elastic.ordered_total.items():
        if amount > limits.get(name, amount):
            yield f"{amount} of {name} were ordered, but at most {limits[name]} are allowed"
    yield from _plan(provisions, elastic)


def _provision(hosts: Hosts, elastic: Elastic, provision: Provision) -> Iterator[str]:
    """Compares a provision with its executor."""
    title = f"provision {provision.executor_id}"
    host = hosts.get(provision.executor_id)
    if provision.number > elastic.number:
        yield f"{title} has number {provision.number}, but the last number was {elastic.number}"
    if provision.state in PENDING and host is not None:
        yield f"{title} is {provision.state}, but its executor has registered"
    # A STOPPING executor can end at any time, so no slot must be placed on it.
    if (
        provision.state is ProvidedExecutorState.STOPPING
        and host is not None
        and host.executor.state is not ExecutorState.LOST
        and not host.executor.draining
    ):
        yield f"{title} is STOPPING, but its executor may get slots"


def _plan(provisions: dict[str, Provision], elastic: Elastic) -> Iterator[str]:
    for name, content in elastic.plan.on.items():
        provision = provisions.get(name)
        if provision is None or provision.state not in PENDING:
            yield f"requests are planned on {name}, which is no pending executor"
            continue
        if not content:
            yield f"nothing is planned on {name}, but it is in the plan"
        for dimension, amount in _needed(elastic.capacities[provision.shape], content).items():
            promised = elastic.capacities[provision.shape].amounts.get(dimension, 0)
            if amount > promised:
                yield f"{amount} of {dimension} is planned on {name}, its shape has {promised}"


def _needed(capacity: Capacity, content: Content) -> dict[str, int]:
    """Returns the sum of all planned requests on one executor, without members of gangs."""
    sums: dict[str, int] = {}
    for scheduling_class, count in content.classes.items():
        need = needs_of(scheduling_class).amounts[capacity.separate]
        # A default slot books the default profile of the executor shape, and one slot.
        if DEFAULT_SLOTS in need:
            need = {**capacity.default, SLOTS: 1}
        for dimension, amount in need.items():
            sums[dimension] = sums.get(dimension, 0) + amount * count
    return sums

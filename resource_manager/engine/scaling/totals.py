"""What there is altogether, what is to come, and what may still be asked for."""

from __future__ import annotations

from finegrain.resources import Amounts, add, total_of
from resource_manager.engine.context import EventContext
from resource_manager.engine.model.entities import ExecutorState, Provision, ProvisionState
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.engine.placement.elastic import PENDING, Elastic, of_shape
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.state import State


def present(state: State) -> dict[str, int]:
    """What all executors have that are not lost."""
    elastic = state.elastic
    if elastic.present is None or elastic.present[0] != state.hosts.version:
        here = total_of(
            host.executor.registration.total
            for host in state.hosts.values()
            if host.executor.state is not ExecutorState.LOST
        )
        elastic.present = (state.hosts.version, here)
    return elastic.present[1]


def counted(state: State) -> dict[str, int]:
    """Together with all that was asked for and is not known to be gone."""
    return add(
        present(state),
        _to_come(state.hosts, state.provisions, state.elastic, (*PENDING, ProvisionState.STOPPING)),
    )


def staying(state: State) -> dict[str, int]:
    """What there is and will be, without what is being given back."""
    leaving = total_of(
        host.executor.registration.total
        for provision in state.provisions.values()
        if provision.state is ProvisionState.STOPPING
        and (host := state.hosts.get(provision.executor_id)) is not None
        and host.executor.state is not ExecutorState.LOST
    )
    there = add(present(state), _to_come(state.hosts, state.provisions, state.elastic, PENDING))
    return {name: amount - leaving.get(name, 0) for name, amount in there.items()}


def room_below_maximum(state: State) -> dict[str, int]:
    """What may still be asked for, by dimension that has a limit."""
    there = counted(state)
    return {
        name: max(0, most - there.get(name, 0))
        for name, most in state.settings.provisioning.total_max.items()
    }


def may_ask(context: EventContext) -> list[ExecutorShape]:
    """Shapes that may be asked for now: not in back-off, not too many, not above the maximum."""
    state, elastic = context.state, context.state.elastic
    room = room_below_maximum(state)
    return [
        shape
        for name, shape in elastic.shapes.items()
        if elastic.backoffs[name].until_ms <= context.now_ms
        and (not shape.count_max or of_shape(state.provisions, name) < shape.count_max)
        and all(shape.total.get(each, 0) <= left for each, left in room.items())
    ]


def _to_come(
    hosts: Hosts,
    provisions: dict[str, Provision],
    elastic: Elastic,
    states: tuple[ProvisionState, ...],
) -> Amounts:
    shapes = elastic.shapes
    return total_of(
        shapes[provision.shape].total
        for provision in provisions.values()
        if provision.state in states
        and provision.executor_id not in hosts
        and provision.shape in shapes
    )

"""Nothing is rejected that an executor could host, or that allows to wait.

Compares amounts and labels with what executors announced; whether cpus and NUMA nodes suit, and
whether gangs fit together, the engine's own tests hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from finegrain.errors import Reason
from finegrain.resources import booking, fits, has_separate_pools
from finegrain.values.states import ExecutorState, RequestState
from resource_manager.engine.model.effects import Effect, PublishJobEvent
from resource_manager.engine.model.entities import RequestSpec
from resource_manager.engine.state import State
from tests.simulation.follower import names_of


def rejected(state: State, effects: Iterable[Effect]) -> Iterator[str]:
    """What is wrong with the rejections among the effects of a decision."""
    for effect in effects:
        if not isinstance(effect, PublishJobEvent):
            continue
        event = effect.event
        if event.state is not RequestState.REJECTED or event.reason != Reason.INFEASIBLE_NEVER:
            continue
        states = {host.executor.state for host in state.hosts.values()}
        if ExecutorState.ACTIVE not in states or ExecutorState.UNCONFIRMED in states:
            yield f"{event.allocation_id} is rejected while executors are {sorted(states)}"
        for name in names_of(event.allocation_id, event.count):
            request = state.requests.named(name)
            if request is not None:
                yield from _wrong(state, request.spec)


def _wrong(state: State, spec: RequestSpec) -> Iterator[str]:
    if spec.gang_id:
        return  # another member may be to blame
    if spec.allow_pending:
        yield f"{spec.allocation_id} is rejected, and allows to wait"
    if spec.cpu_policy.is_exact or spec.cpu_policy.best_effort or state.hosts.indexes.aligning:
        return
    for host in state.hosts.values():
        if spec.profile is None or not set(spec.required_labels) <= host.labels.items():
            continue
        separate = has_separate_pools(host.total)
        if fits(booking(spec.profile, separate_pools=separate), host.total):
            yield f"{spec.allocation_id} is rejected, and {host.host_id} could host it"

"""How the cluster grows and shrinks, as a message. Reads views, decides nothing."""

from __future__ import annotations

from finegrain.rpc.wire import amounts_to_proto, duration_ms_to_proto, timestamp_ms_to_proto
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.provisions import ProvidedView, ProvidersView, ShapeView
from resource_manager.engine.model.entities import ProvisionState

_STATES: dict[ProvisionState, cluster_pb2.ProvidedExecutorState.ValueType] = {
    state: cluster_pb2.ProvidedExecutorState.Value(f"PROVIDED_EXECUTOR_STATE_{state.value}")
    for state in ProvisionState
}


def providers(view: ProvidersView) -> cluster_pb2.ListProvidersResponse:
    """Shapes, executors that were asked for, limits, and who is planned nowhere."""
    message = cluster_pb2.ListProvidersResponse(
        shapes=[_shape(each) for each in view.shapes],
        executors=[_executor(each) for each in view.executors],
        minimum=amounts_to_proto(view.minimum),
        maximum=amounts_to_proto(view.maximum),
        present=amounts_to_proto(view.present),
        unplanned=view.unplanned,
    )
    if view.idle_timeout_ms:
        message.idle_timeout.CopyFrom(duration_ms_to_proto(view.idle_timeout_ms))
    return message


def _shape(view: ShapeView) -> cluster_pb2.ExecutorShape:
    shape = view.shape
    message = cluster_pb2.ExecutorShape(
        name=shape.name,
        provider=shape.provider,
        total=amounts_to_proto(shape.total),
        labels=dict(shape.labels),
        cost=shape.cost,
        count_max=shape.count_max,
        executors=view.executors,
        failures=view.failures,
        last_failure=view.last_failure,
    )
    if view.backoff_until_time_ms is not None:
        message.backoff_until_time.CopyFrom(timestamp_ms_to_proto(view.backoff_until_time_ms))
    return message


def _executor(view: ProvidedView) -> cluster_pb2.ProvidedExecutor:
    provision = view.provision
    message = cluster_pb2.ProvidedExecutor(
        executor_id=provision.executor_id,
        shape=provision.shape,
        state=_STATES[provision.state],
        cause=provision.cause,
        message=provision.message,
        ask_time=timestamp_ms_to_proto(provision.ask_time_ms),
        planned=view.planned,
        planned_requests=view.planned_requests,
        handle=provision.handle,
    )
    if view.deadline_time_ms is not None:
        message.deadline_time.CopyFrom(timestamp_ms_to_proto(view.deadline_time_ms))
    return message

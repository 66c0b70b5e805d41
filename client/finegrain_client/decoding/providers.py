"""Turns what the RM says about providers into the values of `types/providers.py`."""

from __future__ import annotations

from finegrain.v1 import cluster_pb2
from finegrain_client.decoding.status import amounts, moment, seconds, state
from finegrain_client.types import providers as types


def providers(message: cluster_pb2.ListProvidersResponse) -> types.Providers:
    """How the cluster grows and shrinks."""
    return types.Providers(
        shapes=tuple(_shape(each) for each in message.shapes),
        executors=tuple(_executor(each) for each in message.executors),
        minimum=amounts(message.minimum),
        maximum=amounts(message.maximum),
        present=amounts(message.present),
        idle_timeout_s=seconds(message, "idle_timeout"),
        unplanned=tuple(message.unplanned),
    )


def _shape(message: cluster_pb2.ExecutorShape) -> types.ExecutorShape:
    return types.ExecutorShape(
        name=message.name,
        provider=message.provider,
        total=amounts(message.total),
        labels=dict(message.labels),
        cost=message.cost,
        count_max=message.count_max,
        executors=dict(message.executors),
        backoff_until_time=moment(message, "backoff_until_time"),
        failures=message.failures,
        last_failure=message.last_failure,
    )


def _executor(message: cluster_pb2.ProvidedExecutor) -> types.ProvidedExecutor:
    return types.ProvidedExecutor(
        executor_id=message.executor_id,
        shape=message.shape,
        state=state(types.ProvidedExecutorState, cluster_pb2.ProvidedExecutorState, message.state),
        cause=message.cause,
        message=message.message,
        ask_time=moment(message, "ask_time"),
        deadline_time=moment(message, "deadline_time"),
        planned=tuple(message.planned),
        planned_requests=message.planned_requests,
        handle=message.handle,
    )

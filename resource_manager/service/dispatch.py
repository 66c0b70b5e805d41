"""Carries out the effects of a durable batch.

It sends commands to executors and orders to providers, and publishes events to watchers.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from finegrain.logs import get_logger
from finegrain.values.states import RequestState
from resource_manager.engine.model.effects import (
    Effect,
    ProbeExecutor,
    PublishClusterEvent,
    PublishJobEvent,
    SendAllocate,
    SendFree,
    SendResize,
    StartExecutor,
    StopExecutor,
)
from resource_manager.engine.model.entities import ClusterEvent, JobEvent
from resource_manager.service.executor_link import ExecutorLinks
from resource_manager.service.metrics import ResourceManagerMetrics
from resource_manager.service.provisioning import Carries
from resource_manager.service.watch import WatchHub

_log = get_logger("finegrain.rm.events")
_stdlib_log = logging.getLogger("finegrain.rm.events")

_OUTCOMES = {
    RequestState.PENDING: "requeued",
    RequestState.GRANTED: "granted",
    RequestState.CANCELLED: "cancelled",
    RequestState.REJECTED: "rejected",
    RequestState.RELEASED: "released",
    RequestState.LOST: "lost",
}


def _outcome(event: JobEvent) -> str | None:
    """Returns the label of a job event for the metric; None: the event is not counted.

    An event GRANTED without a reason is a grant. With a reason, the event reports a resize, which
    is not counted.
    """
    if event.state is RequestState.GRANTED and event.reason:
        return None
    return _OUTCOMES.get(event.state)


class Dispatcher:
    """The listener of the runner: receives the effects of each batch."""

    def __init__(
        self,
        links: ExecutorLinks,
        hub: WatchHub,
        metrics: ResourceManagerMetrics,
        provisioning: Carries,
    ) -> None:
        self._links = links
        self._provisioning = provisioning
        self._hub = hub
        self._metrics = metrics

    def on_effects(self, effects: Sequence[Effect]) -> None:
        """Carries out the effects in order. Watchers are notified once, at the end."""
        outcomes: Counter[str] = Counter()
        cluster_news = False
        logs_requests = _stdlib_log.isEnabledFor(logging.DEBUG)
        for effect in effects:
            match effect:
                # Events come first, because a batch can have thousands of them.
                case PublishJobEvent():
                    if outcome := _outcome(effect.event):
                        outcomes[outcome] += 1
                    self._hub.publish(effect.event)
                case PublishClusterEvent():
                    cluster_news = True
                    # Events about single requests end no job and forget no executor.
                    if logs_requests or not effect.event.allocation_id:
                        self._publish_cluster(effect.event)
                case SendAllocate() | SendFree() | SendResize():
                    self._links.send(effect)
                case ProbeExecutor():
                    self._links.probe(effect)
                case StartExecutor() | StopExecutor():
                    self._provisioning.carry_out(effect)
                case _:
                    assert_never(effect)
        self._hub.flush(cluster_news=cluster_news)
        for outcome, count in outcomes.items():
            self._metrics.requests.labels(outcome).inc(count)

    def on_reload(self, rm_epoch: int) -> None:
        """Cancels commands in flight, and makes streams read from the store again."""
        # The answers of these commands must not be applied: the commands belong to the dropped
        # state.
        self._links.drop_all()
        self._hub.resync()

    def _publish_cluster(self, event: ClusterEvent) -> None:
        self._hub.publish_cluster(event)
        if event.kind == "executor_forgotten":
            self._links.forget(event.executor_id)
        # Events about single requests are logged only at level DEBUG.
        write = _log.debug if event.allocation_id else _log.info
        ids = {
            "executor_id": event.executor_id,
            "job_id": event.job_id,
            "allocation_id": event.allocation_id,
            "reason": event.reason,
            "detail": event.message,
        }
        write(event.kind, sequence=event.sequence, **{k: v for k, v in ids.items() if v})

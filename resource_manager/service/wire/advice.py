"""Decodes AdviseThreads calls: into how many threads should the work of a job be divided?"""

from __future__ import annotations

from collections.abc import Callable

from finegrain.errors import InvalidArgument
from finegrain.ids import check_id
from finegrain.rpc.wire import duration_ms_from_proto
from finegrain.v1 import cluster_pb2
from resource_manager.engine.explain.fairness import advise_threads
from resource_manager.engine.fairness.advice import QUANTILE, TARGET_MS
from resource_manager.engine.state import State
from resource_manager.service.wire.encoding import write

TARGET_MS_MAX = 366 * 24 * 3600 * 1000


def advice_wanted(
    request: cluster_pb2.AdviseThreadsRequest, now_ms: int
) -> Callable[[State], cluster_pb2.AdviseThreadsResponse]:
    """Returns the function that computes the advice from the engine's state.

    Args:
        request: the call.
        now_ms: the current time, monotonic.

    Raises:
        InvalidArgument: the id is malformed, the target is 0 or too long, or the quantile is not
            between 0 and 1.
    """
    job_id = check_id("job_id", request.job_id)
    target_ms, quantile = TARGET_MS, request.quantile or QUANTILE
    if request.HasField("target"):
        target_ms = duration_ms_from_proto(
            request.target, "target", smallest_ms=1, largest_ms=TARGET_MS_MAX
        )
    if not 0 < quantile < 1:
        raise InvalidArgument("quantile", quantile, "above 0 and below 1, such as 0.95")
    return lambda state: write(
        cluster_pb2.AdviseThreadsResponse,
        advise_threads(state, job_id, target_ms, quantile, now_ms),
    )

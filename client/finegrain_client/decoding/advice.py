"""Turns what the RM recommends into the values of `types/advice.py`."""

from __future__ import annotations

from finegrain.v1 import cluster_pb2
from finegrain_client.decoding.status import seconds
from finegrain_client.types import advice as types


def thread_advice(job_id: str, message: cluster_pb2.AdviseThreadsResponse) -> types.ThreadAdvice:
    """Into how many threads to split a job's work."""
    return types.ThreadAdvice(
        job_id=job_id,
        threads_recommended=message.threads_recommended,
        threads_observed=message.threads_observed,
        threads_running=message.threads_running,
        threads_waiting=message.threads_waiting,
        median_s=seconds(message, "median") or 0.0,
        at_quantile_s=seconds(message, "at_quantile") or 0.0,
        longest_s=seconds(message, "longest") or 0.0,
        share_within_target=message.share_within_target,
        target_s=seconds(message, "target") or 0.0,
        quantile=message.quantile,
        remarks=tuple(message.remarks),
    )

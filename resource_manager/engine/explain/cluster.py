"""Computes the sums of the cluster for administrators and for metrics.

The sums over all executors and scheduling classes can take so long that the engine could handle no
events for too long. So these functions are generators that pause (`Paused`). During a pause, the
engine handles other events.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.resources import Amounts, add_all, total_of_shared
from finegrain.values.states import ExecutorState
from resource_manager.engine.explain.paused import PART, Paused
from resource_manager.engine.explain.waiting_reasons import pending_by_reason
from resource_manager.engine.state import State


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Counts for the whole cluster, and the sums of all executors that are not lost."""

    total: dict[str, int]
    reserved: dict[str, int]
    allocated: dict[str, int]
    available: dict[str, int]
    executors: dict[str, int]  # by "active", "unconfirmed", "lost", "draining", "unreachable"
    pending_requests: dict[str, int]  # number of queued requests, by primary reason
    slots: int
    jobs: int  # number of jobs that have not ended


def cluster_view(state: State) -> Paused[ClusterView]:
    """Returns the sums of the cluster. Executors are read one after the other, so the values of two
    executors can be from different times.
    """
    totals: list[Amounts] = []
    reserved: dict[str, int] = {}
    allocated: dict[str, int] = {}
    available: dict[str, int] = {}
    states = dict.fromkeys(ExecutorState, 0)
    draining = unreachable = 0
    # Iterate over a copy, because executors can register or be deleted during a pause.
    hosts = list(state.hosts.values())
    for start in range(0, len(hosts), PART):
        if start:
            yield
        part = hosts[start : start + PART]
        for host in part:
            states[host.executor.state] += 1
            draining += host.executor.draining
            unreachable += host.reach.unreachable
        known = [host for host in part if host.executor.state is not ExecutorState.LOST]
        totals += [host.total for host in known]
        add_all(reserved, [host.executor.registration.reserved for host in known])
        add_all(allocated, [host.booked for host in known])
        add_all(available, [host.free() for host in known if host.eligible])
    pending = yield from pending_by_reason(state)
    counts = {each.value.lower(): count for each, count in states.items()}
    counts |= {"draining": draining, "unreachable": unreachable}
    return ClusterView(
        total=total_of_shared(totals),
        reserved=_without_zeros(reserved),
        allocated=_without_zeros(allocated),
        available=_without_zeros(available),
        executors=counts,
        pending_requests=pending,
        slots=len(state.slots),
        jobs=state.live_jobs,
    )


def _without_zeros(amounts: dict[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in amounts.items() if amount}

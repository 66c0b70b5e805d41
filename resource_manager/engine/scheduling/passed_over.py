"""Whether somebody who did not fit was passed over at all, or comes later anyhow.

Whoever has received more for his weight than he and those have together that were served beside him
since then, and want more, is not passed over. Those only: somebody who waits for what he can never
have must not make everybody else look well served, and whoever has all that he asked for takes
nothing from others.

Knows the tree of flows; what somebody needs, and where that might be, is not its business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, islice

from resource_manager.engine.context import EventContext
from resource_manager.engine.fairness.choice import order_key_of
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.starvation import Mark
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass
from resource_manager.engine.state import State

_ROUNDED = 1e-9


RIVALS_LOOKED_AT_MAX = 256
"""Jobs that wait with something smaller, of which one may have received more."""


@dataclass(frozen=True, slots=True)
class _Served:
    """The flows below a group that were served and want more: who was served last comes first,
    each with what all until him have together.
    """

    times: list[int]  # the negative of when, so that they ascend
    tallies: list[float]
    weights: list[float]


class Turns:
    """Answers for one moment; many answers cost one look at each group's flows, until somebody is
    placed.
    """

    def __init__(self, state: State) -> None:
        self._tree = state.flows
        self._starvation = state.starvation
        self._placements = state.starvation.placements
        self._in_turn = state.settings.fairness.order == "fair"
        self._served: dict[Flow, _Served] = {}

    def is_passed_over(self, job_id: str, since_ms: int) -> bool:
        """True if a job, and each group above it, has received no more than its share beside those
        who were served since then.
        """
        tree = self._tree
        if self._placements != self._starvation.placements:
            self._placements = self._starvation.placements
            self._served.clear()
        job = tree.jobs.get(job_id)
        if not self._in_turn or job is None:
            return True
        for flow in (job, *job.ancestors()):
            if flow.parent is None or flow.parent.children is None:
                continue
            served = self._below(flow.parent)
            count = bisect_left(served.times, -since_ms + 1)
            own = tree.key(flow)
            tally, weight = served.tallies[count], served.weights[count]
            if not _is_among(flow, since_ms):
                tally, weight = tally + own * flow.weight, weight + flow.weight
            if own > tally / weight * (1 + _ROUNDED):
                return False
        return True

    def _below(self, parent: Flow) -> _Served:
        known = self._served.get(parent)
        if known is None:
            children = parent.children.by_id.values() if parent.children is not None else ()
            served = sorted(
                (-flow.served_ms, self._tree.key(flow) * flow.weight, flow.weight)
                for flow in children
                if flow.waiting and flow.served_ms is not None
            )
            known = self._served[parent] = _Served(
                [time for time, _, _ in served],
                list(accumulate((tally for _, tally, _ in served), initial=0.0)),
                list(accumulate((weight for _, _, weight in served), initial=0.0)),
            )
        return known


def _is_among(flow: Flow, since_ms: int) -> bool:
    return bool(flow.waiting) and flow.served_ms is not None and flow.served_ms >= since_ms


def needs_help(context: EventContext, job_queue: JobQueue) -> bool:
    """True if nothing of a line that is passed over was placed for long, or its job is behind."""
    state = context.state
    if job_queue.served_ms is None:
        return True
    served = Mark(job_queue.served_ms, job_queue.served_placements, 0)
    return state.starvation.has_starved(served, context.now_ms) or _is_behind(
        state.settings, state.queue, state.flows, job_queue
    )


def since_served(job_queue: JobQueue, mark: Mark) -> Mark:
    """From when it counts that a line is passed over, whose shape is since a mark."""
    if job_queue.served_ms is None or job_queue.served_ms <= mark.since_ms:
        return mark
    return Mark(job_queue.served_ms, job_queue.served_placements, mark.last_arrival)


def _is_behind(
    settings: EngineSettings, queue: WaitingQueue, flows: FlowTree, job_queue: JobQueue
) -> bool:
    """True if a job comes before another one that waits with something smaller, and has slots."""
    if settings.fairness.order != "fair":
        return False
    own = order_key_of(flows, flows.jobs[job_queue.job_id])
    rivals = islice(
        _waiting_with_less(queue, flows, job_queue.scheduling_class), RIVALS_LOOKED_AT_MAX
    )
    return any(flow.running and order_key_of(flows, flow) > own for flow in rivals)


def _waiting_with_less(
    queue: WaitingQueue, flows: FlowTree, scheduling_class: SchedulingClass
) -> Iterator[Flow]:
    """Jobs that wait with something that takes less of anything."""
    for other in queue.classes():
        less = other.pooled_need
        if any(less.get(name, 0) < amount for name, amount in scheduling_class.pooled_need.items()):
            for job_id in other.job_queues:
                yield flows.jobs[job_id]

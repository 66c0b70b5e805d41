"""Does a job whose requests are placed now and then need help to get its share?

What waits alike is *tight* while nothing more of it fits. A job of which nothing was placed for
long starves. One of which something was placed may still be *behind*: it comes before another that
waits with something smaller, so that whatever becomes free is too small for it and goes to one that
has received more. Left alone it would never get more than what its own slots give back. Whoever
loses to nobody smaller needs no help: what becomes free is large enough for him when it is his
turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from resource_manager.engine.context import EventContext
from resource_manager.engine.fairness.choice import turn_of
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.starvation import Mark
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.queue.scheduling_classes import JobQueue, SchedulingClass

RIVALS_LOOKED_AT_MAX = 256
"""Jobs that wait with something smaller, of which one may have received more."""


def needs_help(context: EventContext, line: JobQueue) -> bool:
    """True if nothing of a line that is passed over was placed for long, or its job is behind."""
    state = context.state
    if line.served_ms is None:
        return True
    served = Mark(line.served_ms, line.served_placements, 0)
    return state.starving.is_long(served, context.now_ms) or _is_behind(
        state.settings, state.queue, state.flows, line
    )


def since_served(line: JobQueue, mark: Mark) -> Mark:
    """From when it counts that a line is passed over, whose shape is since a mark."""
    if line.served_ms is None or line.served_ms <= mark.since_ms:
        return mark
    return Mark(line.served_ms, line.served_placements, mark.last_arrival)


def _is_behind(
    settings: EngineSettings, queue: WaitingQueue, flows: FlowTree, line: JobQueue
) -> bool:
    """True if a job comes before another one that waits with something smaller, and has slots."""
    if settings.fairness.order != "fair":
        return False
    own = turn_of(flows, flows.jobs[line.job_id])
    rivals = islice(_waiting_with_less(queue, flows, line.shape), RIVALS_LOOKED_AT_MAX)
    return any(flow.running and turn_of(flows, flow) > own for flow in rivals)


def _waiting_with_less(
    queue: WaitingQueue, flows: FlowTree, shape: SchedulingClass
) -> Iterator[Flow]:
    """Jobs that wait with something that takes less of anything."""
    for other in queue.shapes():
        less = other.pooled_need
        if any(less.get(name, 0) < amount for name, amount in shape.pooled_need.items()):
            for job_id in other.lines:
                yield flows.jobs[job_id]

"""What flows have received, kept over restarts: between the books and `fairness/checkpoints.py`.

Decides the moments: every now and then for whatever has changed; at once for a flow that begins to
wait and was raised for it, or that begins to accrue, because nobody could tell later that it was
raised, or when it began; and when a job ends, with the groups that it was in. Refuses to know how
much may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from resource_manager.engine.fairness.checkpoints import Running, restore_tallies
from resource_manager.engine.fairness.flows import JOB, Flow
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Instant, Job, SlotState, Tally
from resource_manager.engine.model.timers import Timer

if TYPE_CHECKING:
    from resource_manager.engine.context import EventContext
    from resource_manager.engine.state import State


def restore(state: State, tallies: Iterable[Tally], at: Instant) -> None:
    """Gives flows what they had received. To be called when everybody stands in line, so that
    nobody is raised for it.
    """
    state.tallies_begun_anew = restore_tallies(
        state.flows, tallies, _running(state.slots), state.settings.fairness, at.time_ms
    )
    state.flows.urgent.clear()
    state.flows.behind = {flow.id: flow for flow in state.flows.changed.values() if flow.rate}
    state.timers.arm(Timer.TALLY, "", at.monotonic_ms)  # what came to it while nobody led


def tally_rang(context: EventContext) -> None:
    """Keeps what has changed."""
    due, again_ms = context.state.checkpoints.due(context.now_ms, context.at.time_ms)
    for tally in due:
        _keep(context.state.jobs, context.state.changes, tally)
    context.state.timers.arm(Timer.TALLY, "", again_ms)


def keep_urgent(context: EventContext) -> None:
    """Keeps the tallies of those who were raised, or began to accrue, since the last batch."""
    flows = context.state.flows
    for flow in flows.urgent.values():
        _keep_flow(context, flow)
    flows.urgent.clear()


def keep_ended(context: EventContext, job_id: str) -> None:
    """Keeps what a job that ends has received, and its groups."""
    flow: Flow | None = context.state.flows.jobs.get(job_id)
    while flow is not None:
        _keep_flow(context, flow)
        flow = flow.parent


def _keep_flow(context: EventContext, flow: Flow) -> None:
    _keep(
        context.state.jobs,
        context.state.changes,
        context.state.checkpoints.written(flow, context.at.time_ms),
    )


def _keep(jobs: dict[str, Job], changes: ChangeTracker, tally: Tally) -> None:
    job = jobs.get(tally.flow_id.removeprefix(JOB)) if tally.flow_id[:4] == JOB else None
    if job is not None and job.durations is not None:
        tally = replace(tally, durations=job.durations.to_text())
    changes.tally(tally)


def _running(slots: Slots) -> Iterator[Running]:
    """Slots that accrue."""
    for slot in slots.values():
        if slot.state is not SlotState.FREEING:
            yield Running(slot.job_id, slot.cost)

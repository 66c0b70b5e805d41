"""What flows have received, kept over restarts: between the books and `fairness/checkpoints.py`.

Decides the moments: every now and then for whatever has changed; at once for a flow that begins to
wait and was raised for it, or that begins to accrue, because nobody could tell later that it was
raised, or when it began; and when a job ends, with the groups that it was in. Refuses to know how
much may be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from finegrain.values.states import SlotState
from resource_manager.engine.fairness.checkpoints import Checkpoints, Running, restore_tallies
from resource_manager.engine.fairness.flows import JOB, Flow, FlowTree
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Instant, Job, Tally
from resource_manager.engine.model.settings import EngineSettings
from resource_manager.engine.model.timers import Timer, Timers


@dataclass(slots=True, eq=False)
class UsageCheckpoints:
    """Writes down now and then what jobs and groups have used."""

    journal: Journal
    changes: ChangeTracker
    checkpoints: Checkpoints
    flows: FlowTree
    jobs: dict[str, Job]
    settings: EngineSettings
    slots: Slots
    timers: Timers
    begun_anew: int = 0  # tallies that were counted in another measure

    def restore(self, tallies: Iterable[Tally], at: Instant) -> None:
        """Gives flows what they had received. To be called when everybody stands in line, so that
        nobody is raised for it.
        """
        self.begun_anew = restore_tallies(
            self.flows, tallies, _running(self.slots), self.settings.fairness, at.time_ms
        )
        self.flows.urgent.clear()
        self.flows.behind = {flow.id: flow for flow in self.flows.changed.values() if flow.rate}
        self.timers.arm(Timer.TALLY, "", at.monotonic_ms)  # what came to it while nobody led

    def tally_rang(
        self,
    ) -> None:
        """Keeps what has changed."""
        due, again_ms = self.checkpoints.due(self.journal.now_ms, self.journal.at.time_ms)
        for tally in due:
            self._keep(tally)
        self.timers.arm(Timer.TALLY, "", again_ms)

    def keep_urgent(
        self,
    ) -> None:
        """Keeps the tallies of those who were raised, or began to accrue, since the last batch."""
        flows = self.flows
        for flow in flows.urgent.values():
            self._keep_flow(flow)
        flows.urgent.clear()

    def keep_ended(self, job_id: str) -> None:
        """Keeps what a job that ends has received, and its groups."""
        flow: Flow | None = self.flows.jobs.get(job_id)
        while flow is not None:
            self._keep_flow(flow)
            flow = flow.parent

    def _keep_flow(self, flow: Flow) -> None:
        self._keep(
            self.checkpoints.written(flow, self.journal.at.time_ms),
        )

    def _keep(self, tally: Tally) -> None:
        job = self.jobs.get(tally.flow_id.removeprefix(JOB)) if tally.flow_id[:4] == JOB else None
        if job is not None and job.durations is not None:
            tally = replace(tally, durations=job.durations.to_text())
        self.changes.tally(tally)


def _running(slots: Slots) -> Iterator[Running]:
    """Slots that accrue."""
    for slot in slots.values():
        if slot.state is not SlotState.FREEING:
            yield Running(slot.job_id, slot.cost)

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
from resource_manager.engine.fairness.checkpoints import Checkpoints, Running, restore_usage
from resource_manager.engine.fairness.flows import JOB, Flow, FlowTree
from resource_manager.engine.hosts.slots import Slots
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Instant, Job, UsageRecord
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
    restarted: int = 0  # tallies that were counted in another measure

    def restore(self, usage_records: Iterable[UsageRecord], at: Instant) -> None:
        """Gives flows what they had received. To be called when everybody stands in line, so that
        nobody is raised for it.
        """
        self.restarted = restore_usage(
            self.flows, usage_records, _running(self.slots), self.settings.fairness, at.time_ms
        )
        self.flows.urgent.clear()
        self.flows.accrued_while_down = {
            flow.id: flow for flow in self.flows.changed.values() if flow.rate
        }
        self.timers.arm(Timer.USAGE, "", at.monotonic_ms)  # what came to it while nobody led

    def usage_timer_fired(
        self,
    ) -> None:
        """Keeps what has changed."""
        due, again_ms = self.checkpoints.due(self.journal.now_ms, self.journal.at.time_ms)
        for record in due:
            self._keep(record)
        self.timers.arm(Timer.USAGE, "", again_ms)

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

    def _keep(self, record: UsageRecord) -> None:
        job = self.jobs.get(record.flow_id.removeprefix(JOB)) if record.flow_id[:4] == JOB else None
        if job is not None and job.durations is not None:
            record = replace(record, durations=job.durations.to_text())
        self.changes.usage(record)


def _running(slots: Slots) -> Iterator[Running]:
    """Slots that accrue."""
    for slot in slots.values():
        if slot.state is not SlotState.FREEING:
            yield Running(slot.job_id, slot.cost)

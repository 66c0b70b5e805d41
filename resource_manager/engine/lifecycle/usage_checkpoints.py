"""Stores the usage of jobs and groups, so that it survives a restart.

Changed usage is stored now and then. It is stored at once in three cases: a flow's virtual time was
raised as it became active; a flow starts to accrue; a job ends, with its groups. After a
restart, nothing else would show that a flow was raised, or since when it accrues.
`fairness/checkpoints.py` limits how much usage a crash may lose.
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
    """Stores the usage of jobs and groups."""

    journal: Journal
    changes: ChangeTracker
    checkpoints: Checkpoints
    flows: FlowTree
    jobs: dict[str, Job]
    settings: EngineSettings
    slots: Slots
    timers: Timers
    restarted: int = 0  # flows whose stored usage was in another unit

    def restore(self, usage_records: Iterable[UsageRecord], at: Instant) -> None:
        """Loads the stored usage into the fairness tree.

        Must be called when all requests are queued: a flow that becomes active later would be
        raised.

        Args:
            usage_records: as they were stored.
            at: the present moment.
        """
        self.restarted = restore_usage(
            self.flows, usage_records, _running(self.slots), self.settings.fairness, at.time_ms
        )
        # What the restore raised or started comes from stored rows; the timer below stores the
        # rest.
        self.flows.urgent.clear()
        self.flows.accrued_while_down = {
            flow.id: flow for flow in self.flows.changed.values() if flow.rate
        }
        # stores the usage that accrued while no resource manager was leading
        self.timers.arm(Timer.USAGE, "", at.monotonic_ms)

    def usage_timer_fired(
        self,
    ) -> None:
        """Stores the usage that has changed enough to be due."""
        due, again_ms = self.checkpoints.due(self.journal.now_ms, self.journal.at.time_ms)
        for record in due:
            self._keep(record)
        self.timers.arm(Timer.USAGE, "", again_ms)

    def keep_urgent(
        self,
    ) -> None:
        """Stores the usage of flows that were raised, or started to accrue, since the last
        batch.
        """
        flows = self.flows
        for flow in flows.urgent.values():
            self._keep_flow(flow)
        # Stored with this batch: a flow is raised only once, and a crash must not undo that.
        flows.urgent.clear()

    def keep_ended(self, job_id: str) -> None:
        """Stores the usage of a job that ends, and of its groups."""
        flow: Flow | None = self.flows.jobs.get(job_id)
        # Also its groups: their usage includes that of the job, whose flow is removed.
        while flow is not None:
            self._keep_flow(flow)
            flow = flow.parent

    def _keep_flow(self, flow: Flow) -> None:
        self._keep(
            self.checkpoints.written(flow, self.journal.at.time_ms),
        )

    def _keep(self, record: UsageRecord) -> None:
        # Only flows of jobs have durations.
        job = self.jobs.get(record.flow_id.removeprefix(JOB)) if record.flow_id[:4] == JOB else None
        if job is not None and job.durations is not None:
            record = replace(record, durations=job.durations.to_text())
        self.changes.usage(record)


def _running(slots: Slots) -> Iterator[Running]:
    """Yields the slots that accrue usage."""
    for slot in slots.values():
        if slot.state is not SlotState.FREEING:
            yield Running(slot.job_id, slot.cost)

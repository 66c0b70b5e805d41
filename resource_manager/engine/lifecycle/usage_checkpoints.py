"""Stores the usage of jobs and groups, so that it survives a restart.

Changed usage is stored in intervals; `fairness/checkpoints.py` decides when. It is stored with the
next batch in three cases: a flow was raised as it became active; a flow starts to accrue; a job
ends (its usage and that of its groups). After a restart, nothing else would show that a flow was
raised, or when it began to accrue.
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
    restarted: int = 0  # stored flows that start again at 0: their usage was in another measure

    def restore(self, usage_records: Iterable[UsageRecord], at: Instant) -> None:
        """Loads the stored usage into the fairness tree.

        Must be called after all requests are queued, because queueing raises flows.

        Args:
            usage_records: the stored rows.
            at: now.
        """
        self.restarted = restore_usage(
            self.flows, usage_records, _running(self.slots), self.settings.fairness, at.time_ms
        )
        # These flows are urgent only because the restore set them from stored rows. So nothing must
        # be stored at once.
        self.flows.urgent.clear()
        self.flows.accrued_while_down = {
            flow.id: flow for flow in self.flows.changed.values() if flow.rate
        }
        # The timer stores usage that accrued while no resource manager was running.
        self.timers.arm(Timer.USAGE, "", at.monotonic_ms)

    def usage_timer_fired(
        self,
    ) -> None:
        """Stores the usage of flows that are due, and arms the timer again."""
        due, again_ms = self.checkpoints.due(self.journal.now_ms, self.journal.at.time_ms)
        for record in due:
            self._keep(record)
        self.timers.arm(Timer.USAGE, "", again_ms)

    def keep_urgent(
        self,
    ) -> None:
        """Stores the usage of flows that were raised, began to accrue or got another weight since
        the last batch.
        """
        flows = self.flows
        for flow in flows.urgent.values():
            self._keep_flow(flow)
        # They are now part of this batch, so a crash cannot undo a raise.
        flows.urgent.clear()

    def keep_ended(self, job_id: str) -> None:
        """Stores the usage of a job that ends, and of its groups."""
        flow: Flow | None = self.flows.jobs.get(job_id)
        # The groups are stored, too, because their usage includes that of the job.
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

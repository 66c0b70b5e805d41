"""Stores the usage of jobs and groups, and restores it after a restart.

The row of a flow is written when the flow begins to accrue usage, and then about every
`usage_interval_ms` while the flow accrues. After a crash, the slots that are still running are
charged from the time of the row on. So after a restart, the error of the usage is at most about one
interval. The usage is too low if slots ended between the last row and the crash, and too high if
slots started in this time. If a job replaces ended slots by new slots, the two errors cancel out.

Example: a slot with a cost of 1.0 per second runs, and the interval is 10 s. A row at second 100
has the usage 40. The process crashes at 107, and the next process starts at 112. The restored usage
is 40 + 12 = 52 (without decay).

Rows are written in passes. A pass writes the rows of all flows that had changed when the pass
began, some rows at a time. With very many flows, a pass takes longer than the interval. In three
cases, rows are written immediately, with the current batch of events: a flow is raised because it
begins to wait, a flow starts to accrue, or a job ends. If a job ends, the rows of the job and of
its groups are written. After a restart, only the rows of the first two cases show that a flow was
raised, or when it began to accrue.

The time between a row and the restart is measured with the wall clock, because the old and the new
process have no other common clock. If the wall clock was set back, this time counts as 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import log

from resource_manager.engine.fairness.flows import JOB, Flow, FlowTree
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Instant, Job, UsageRecord
from resource_manager.engine.model.settings import EngineSettings, Fairness
from resource_manager.engine.model.timers import Timer, Timers

STORED_AT_ONCE = 1_000
"""At most this many flows are written in one batch."""

PAUSE_MS = 200
"""Pause between two batches of one pass."""


class Checkpoints:
    """Decides which flows are written next."""

    def __init__(self, tree: FlowTree, fairness: Fairness) -> None:
        self._tree = tree
        self._measure = fairness.usage_measure
        self._interval_ms = fairness.usage_interval_ms
        self._next_flows: deque[Flow] = deque()
        self._next_pass_ms = 0

    def due(self, now_ms: int, time_ms: int) -> tuple[list[UsageRecord], int]:
        """Returns the rows to write now, and the monotonic time at which to call again.

        Args:
            now_ms: monotonic time; the clock of the tree must have been advanced to this time.
            time_ms: the current wall clock time.
        """
        # The next pass begins only after all rows of this pass are written.
        if not self._next_flows and now_ms >= self._next_pass_ms:
            self._next_pass_ms = now_ms + self._interval_ms
            self._next_flows.extend(self._tree.changed.values())
        found: list[UsageRecord] = []
        while self._next_flows and len(found) < STORED_AT_ONCE:
            flow = self._next_flows.popleft()
            # Skip a flow that was written or removed after the pass began.
            if flow.changed and self._tree.changed.get(flow.id) is flow:
                found.append(self.written(flow, time_ms))
        if self._next_flows:
            return found, now_ms + PAUSE_MS
        # If a pass took longer than the interval, the next pass begins at once.
        return found, max(now_ms + 1, self._next_pass_ms)

    def written(self, flow: Flow, time_ms: int) -> UsageRecord:
        """Returns a flow's current row, and marks the flow as stored. A flow that still accrues
        stays marked as changed.
        """
        self._tree.changed.pop(flow.id, None)
        self._tree.accrued_while_down.pop(flow.id, None)
        flow.changed = bool(flow.rate)
        if flow.changed:
            self._tree.changed[flow.id] = flow
        record = self._tree.usage(flow)
        return UsageRecord(flow.id, self._measure, record.service, record.raised, time_ms)


def restore_usage(
    tree: FlowTree, usage_records: Iterable[UsageRecord], fairness: Fairness, time_ms: int
) -> int:
    """Restores the usage of all flows. The restored usage is the stored usage, decayed until now,
    plus the usage that running slots have accrued since the usage was stored.

    Args:
        tree: a new tree with all flows and running slots.
        usage_records: the stored rows. Rows of unknown flows are skipped.
        fairness: the configured measure of usage, and its half-life.
        time_ms: the current wall clock time.

    Returns:
        The number of rows that were dropped because their usage is in another measure.
    """
    flows = {flow.id: flow for flow in (*tree.groups.values(), *tree.jobs.values(), tree.root)}
    # Select the usable rows, and find the time from which on the slots of each flow must be
    # charged.
    known, begins_ms = {}, {}
    others = 0
    for record in usage_records:
        if record.flow_id not in flows:
            continue
        if record.measure == fairness.usage_measure:
            known[record.flow_id] = record
            begins_ms[record.flow_id] = record.time_ms
        else:
            # The usage is in another measure and cannot be converted, so slots are charged only
            # from now on.
            others += 1
            begins_ms[record.flow_id] = time_ms
    # Decay the stored usage, and add the usage since then.
    for flow_id, flow in flows.items():
        row = known.get(flow_id)
        # Running slots are charged since the row of the flow was written.
        since_ms = time_ms - begins_ms.get(flow_id, time_ms)
        service, raised = flow.rate * _counted_s(since_ms, fairness), 0.0
        if row is not None:
            left = _left_of(time_ms - row.time_ms, fairness)
            service, raised = service + row.service * left, row.raised * left
        tree.set_usage(flow, service, raised)
        # If the flow does not accrue usage, its row is still correct. A row with a time in the
        # future (the wall clock was set back) must be written again.
        if row is not None and not flow.rate and row.time_ms <= time_ms:
            flow.changed = False
            tree.changed.pop(flow_id, None)
    # The usage of all flows must be set before this loop, because the loop compares the children of
    # each group.
    for flow in (tree.root, *tree.groups.values()):
        _remember_last_served(flow)
    return others


def _left_of(past_ms: int, fairness: Fairness) -> float:
    """Returns the decay factor of usage that is `past_ms` old. After one half-life, it is 0.5."""
    if fairness.half_life_ms is None:
        return 1.0
    return float(2.0 ** (-max(0, past_ms) / fairness.half_life_ms))


def _counted_s(past_ms: int, fairness: Fairness) -> float:
    """Returns the decayed seconds that a slot is charged for the last `past_ms`.

    The result is the integral of the decay factor 2^-(age / half-life) over this time. Example:
    with a half-life of 900 s, a slot that ran for the last 900 s is charged 649 s.
    """
    if fairness.half_life_ms is None:
        return max(0, past_ms) / 1_000
    return (1.0 - _left_of(past_ms, fairness)) * fairness.half_life_ms / 1_000 / log(2)


def _remember_last_served(group: Flow) -> None:
    """Sets the level to which a flow is raised if it begins to wait while no sibling is active.

    The correct level is the usage per weight of the sibling that was served last, but this level is
    not stored. So the lowest usage per weight of the siblings with running slots is used instead.
    """
    if group.children is None:
        return
    levels = [
        (flow.service + flow.raised) / flow.weight
        for flow in group.children.by_id.values()
        if flow.rate
    ]
    group.children.last_served = min(levels, default=0.0)


@dataclass(slots=True, eq=False)
class UsageCheckpoints:
    """Stores the usage of jobs and groups."""

    journal: Journal
    changes: ChangeTracker
    checkpoints: Checkpoints
    flows: FlowTree
    jobs: dict[str, Job]
    settings: EngineSettings
    timers: Timers
    # number of stored flows whose usage restarted at 0, because it was stored in another measure
    restarted: int = 0

    def restore(self, usage_records: Iterable[UsageRecord], at: Instant) -> None:
        """Loads the stored usage into the fairness tree.

        Must be called after all requests were queued, because queueing raises flows.

        Args:
            usage_records: the stored rows.
            at: the current time.
        """
        self.restarted = restore_usage(
            self.flows, usage_records, self.settings.fairness, at.time_ms
        )
        # `restore_usage` has marked these flows as urgent, but their usage is from stored rows.
        self.flows.urgent.clear()
        self.flows.accrued_while_down = {
            flow.id: flow for flow in self.flows.changed.values() if flow.rate
        }
        # The timer fires at once, to store the usage that accrued while no resource manager was
        # running.
        self.timers.arm(Timer.USAGE, "", at.monotonic_ms)

    def usage_timer_fired(self) -> None:
        """Stores the usage of flows that are due, and arms the timer again."""
        due, again_ms = self.checkpoints.due(self.journal.now_ms, self.journal.at.time_ms)
        for record in due:
            self._keep(record)
        self.timers.arm(Timer.USAGE, "", again_ms)

    def keep_urgent(self) -> None:
        """Stores the usage of all flows that were raised, began to accrue or got another weight
        since the last batch.
        """
        flows = self.flows
        for flow in flows.urgent.values():
            self._keep(self.checkpoints.written(flow, self.journal.at.time_ms))
        # The rows are part of this batch, so a crash cannot undo the raise of a flow.
        flows.urgent.clear()

    def keep_ended(self, job_id: str) -> None:
        """Stores the usage of a job that ends, and of its groups."""
        flow: Flow | None = self.flows.jobs.get(job_id)
        # The groups are stored, too, because their usage includes the usage of the job.
        while flow is not None:
            self._keep(self.checkpoints.written(flow, self.journal.at.time_ms))
            flow = flow.parent

    def _keep(self, record: UsageRecord) -> None:
        # Only flows of jobs have durations.
        job = self.jobs.get(record.flow_id.removeprefix(JOB)) if record.flow_id[:4] == JOB else None
        if job is not None and job.durations is not None:
            record = replace(record, durations=job.durations.to_text())
        self.changes.usage(record)

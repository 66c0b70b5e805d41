"""Tallies that last: which are written when, and what a restart makes of them.

Decides how far off a tally may be: it is written when it begins to grow, and again at least every
`usage_interval_ms` as long as it does. After a crash whatever runs then is charged from the time of
the row on. So what slots received is lost that were gone by then, and too much is charged for those
that came later: one interval of accrual at most, either way, and where slots follow one another the
two make up for each other. Rows are written in rounds: whatever has changed by the beginning of one
is written within it, a few at a time; very many flows make a round longer than the interval.

Time that passed between a row and the restart is wall time, the only one that both know; a clock
that was set back makes it 0. Refuses to know rows, slots and how flows are compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log

from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.model.entities import UsageRecord
from resource_manager.engine.model.settings import Fairness

STORED_AT_ONCE = 1_000
"""Tallies that are written with one batch."""

PAUSE_MS = 200
"""Between two such batches of one round."""


class Checkpoints:
    """Which tallies are to be written next."""

    def __init__(self, tree: FlowTree, fairness: Fairness) -> None:
        self._tree = tree
        self._measure = fairness.usage_measure
        self._interval_ms = fairness.usage_interval_ms
        self._next_flows: deque[Flow] = deque()
        self._next_pass_ms = 0

    def due(self, now_ms: int, time_ms: int) -> tuple[list[UsageRecord], int]:
        """The tallies to be written now, and when (monotonic) to ask again.

        Args:
            now_ms: monotonic; the tree's clock must have come this far.
            time_ms: now, by the wall clock.
        """
        if not self._next_flows and now_ms >= self._next_pass_ms:
            self._next_pass_ms = now_ms + self._interval_ms
            self._next_flows.extend(self._tree.changed.values())
        found: list[UsageRecord] = []
        while self._next_flows and len(found) < STORED_AT_ONCE:
            flow = self._next_flows.popleft()
            if flow.changed and self._tree.changed.get(flow.id) is flow:
                found.append(self.written(flow, time_ms))
        if self._next_flows:
            return found, now_ms + PAUSE_MS
        return found, max(now_ms + 1, self._next_pass_ms)

    def written(self, flow: Flow, time_ms: int) -> UsageRecord:
        """The tally of a flow as a row that is written now. What still grows is written again."""
        self._tree.changed.pop(flow.id, None)
        self._tree.accrued_while_down.pop(flow.id, None)
        flow.changed = bool(flow.rate)
        if flow.changed:
            self._tree.changed[flow.id] = flow
        record = self._tree.usage(flow)
        return UsageRecord(flow.id, self._measure, record.service, record.raised, time_ms)


@dataclass(frozen=True, slots=True)
class Running:
    """A slot that accrues: whose it is, and what it costs per second."""

    job_id: str
    cost: float


def restore_usage(
    tree: FlowTree,
    usage_records: Iterable[UsageRecord],
    running: Iterable[Running],
    fairness: Fairness,
    time_ms: int,
) -> int:
    """Gives the flows of a new tree what they had received, decayed, and what their slots have
    received since; answers with how many tallies were of another measure and count for nothing.

    Args:
        tree: with all flows, and what runs.
        usage_records: as stored. Those of flows that are no more are passed over.
        running: all slots that accrue.
        fairness: the measure that service is counted in now, and its half-life.
        time_ms: now, by the wall clock.
    """
    flows = {flow.id: flow for flow in (*tree.groups.values(), *tree.jobs.values(), tree.root)}
    known, begins_ms = {}, {}
    others = 0
    for record in usage_records:
        if record.flow_id not in flows:
            continue
        if record.measure == fairness.usage_measure:
            known[record.flow_id] = record
            begins_ms[record.flow_id] = record.time_ms
        else:
            others += 1
            begins_ms[record.flow_id] = time_ms
    since = _since_rows(tree, begins_ms, running, fairness, time_ms)
    for flow_id, flow in flows.items():
        row = known.get(flow_id)
        service, raised = since.get(flow_id, 0.0), 0.0
        if row is not None:
            left = _left_of(time_ms - row.time_ms, fairness)
            service, raised = service + row.service * left, row.raised * left
        tree.set_usage(flow, service, raised)
        if row is not None and not flow.rate and row.time_ms <= time_ms:  # stored as it is
            flow.changed = False
            tree.changed.pop(flow_id, None)
    for flow in (tree.root, *tree.groups.values()):
        _remember_last_served(flow)
    return others


def _since_rows(
    tree: FlowTree,
    begins_ms: Mapping[str, int],
    running: Iterable[Running],
    fairness: Fairness,
    time_ms: int,
) -> dict[str, float]:
    """What slots have received that no row contains, by flow, decayed: from when it `begins_ms`."""
    found: dict[str, float] = {}
    for slot in running:
        flow: Flow | None = tree.jobs.get(slot.job_id)
        while flow is not None:
            if (begin_ms := begins_ms.get(flow.id)) is not None:
                seconds = _counted_s(time_ms - begin_ms, fairness)
                found[flow.id] = found.get(flow.id, 0.0) + slot.cost * seconds
            flow = flow.parent
    return found


def _left_of(past_ms: int, fairness: Fairness) -> float:
    """The part that is left of what was received so long ago."""
    if fairness.half_life_ms is None:
        return 1.0
    return float(2.0 ** (-max(0, past_ms) / fairness.half_life_ms))


def _counted_s(past_ms: int, fairness: Fairness) -> float:
    """The seconds that still count of so long a time up to now."""
    if fairness.half_life_ms is None:
        return max(0, past_ms) / 1_000
    return (1.0 - _left_of(past_ms, fairness)) * fairness.half_life_ms / 1_000 / log(2)


def _remember_last_served(group: Flow) -> None:
    """Who begins to wait beside siblings that run, and do not wait, starts no lower than the least
    served of those."""
    if group.children is None:
        return
    levels = [
        (flow.service + flow.raised) / flow.weight
        for flow in group.children.by_id.values()
        if flow.rate
    ]
    group.children.last_served = min(levels, default=0.0)

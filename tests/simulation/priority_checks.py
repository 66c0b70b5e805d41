"""Checks that the priorities of requests and jobs order equal requests, whatever fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakKeyDictionary

from finegrain.values.states import SlotState
from resource_manager.engine.model.effects import Effect, PublishClusterEvent
from resource_manager.engine.model.entities import Request, SlotKey
from resource_manager.engine.model.scheduling_key import scheduling_key
from resource_manager.engine.queue.scheduling_classes import JobQueue
from resource_manager.engine.state import State
from tests.simulation.fair_checks import MANY_SHAPES, Limits
from tests.simulation.revocation_checks import only_by_revocation


class PriorityChecks:
    """Records the slots after the last batch, and the priorities that were ever seen.

    Attributes:
        overtakings: number of requests that were placed while an equal request with a lower
            priority waited.
    """

    def __init__(self) -> None:
        self.overtakings = 0
        self._slots: WeakKeyDictionary[State, set[SlotKey]] = WeakKeyDictionary()
        self._of_request: dict[str, int] = {}
        self._of_job: dict[str, int] = {}

    def restored(self, state: State) -> Iterator[str]:
        """Compares the priorities that a manager has read with earlier ones; yields problems."""
        self._slots[state] = set(state.slots)
        for request in state.requests.values():
            known = self._of_request.get(request.allocation_id, request.spec.priority)
            if known != request.spec.priority:
                yield f"{request.allocation_id} has priority {request.spec.priority}, not {known}"
        for job in state.jobs.values():
            known = self._of_job.get(job.job_id, job.priority)
            if known != job.priority:
                yield f"job {job.job_id} has priority {job.priority}, not {known}"

    def decided(self, state: State, effects: Iterable[Effect]) -> Iterator[str]:
        """Checks a batch; yields problems."""
        self._of_request.update(
            (each.allocation_id, each.spec.priority) for each in state.requests.values()
        )
        self._of_job.update((job.job_id, job.priority) for job in state.jobs.values())
        before = self._slots.get(state, set())
        self._slots[state] = set(state.slots)
        settings, kinds = state.settings, {"reservation_made", "reservation_ended"}
        reserved = state.reservations.by_number or any(
            isinstance(each, PublishClusterEvent) and each.event.kind in kinds for each in effects
        )
        # Owners of reservations come first, and a cycle that was cut off has not seen all requests.
        cut_off = state.queue.in_pass or settings.classes_tried_max < MANY_SHAPES
        if settings.fairness.order != "fair" or reserved or cut_off:
            return
        limits = Limits(state)
        lines = [line for line in state.queue.job_queues() if _may_go(state, line, limits)]
        for key in state.slots.keys() - before:
            slot, request = state.slots[key], state.requests.get(key[0])
            planned = slot.executor_id in state.provisions
            if request is None or planned or slot.state is not SlotState.PENDING:
                continue
            if request.spec.gang_id:
                continue
            for line in lines:
                yield from self._compared(state, request, line)

    def _compared(self, state: State, request: Request, line: JobQueue) -> Iterator[str]:
        """Compares a request that was placed with an equal request that waits."""
        first = state.requests.at(line.numbers.first)
        job, other = state.jobs[request.job_id], state.jobs[line.job_id]
        if line.scheduling_class.key != scheduling_key(request.spec) or job.group != other.group:
            return
        if only_by_revocation(state, request, first.spec):
            return
        mine, theirs = job.priority, other.priority
        if job is other:
            mine, theirs = request.spec.priority, first.spec.priority
        self.overtakings += mine > theirs
        if mine < theirs:
            yield (
                f"{request.allocation_id} with priority {mine} was placed before"
                f" {first.allocation_id} with priority {theirs}"
            )


def _may_go(state: State, line: JobQueue, limits: Limits) -> bool:
    head = state.requests.at(line.numbers.first).allocation_id
    need = state.quotas.need_of(line.scheduling_class)
    return (
        line.job_id not in state.endings
        and head not in state.slots.superseded
        and not limits.stop(line.job_id, [need])
    )

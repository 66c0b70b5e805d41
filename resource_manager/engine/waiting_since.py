"""Since when jobs wait: of each, the request that has waited longest. Changes nothing."""

from __future__ import annotations

from resource_manager.engine.state import State


def waiting_since(state: State) -> dict[str, int]:
    """By job that waits, when its oldest request was asked for (wall clock, milliseconds)."""
    first: dict[str, int] = {}
    for line in state.queue.lines():
        number, job_id = line.numbers.first, line.job_id
        if number < first.get(job_id, number + 1):
            first[job_id] = number
    for waiting in state.gangs.waiting.values():
        number, job_id = waiting.gang.arrival_number, waiting.gang.job_id
        if number < first.get(job_id, number + 1):
            first[job_id] = number
    return {job_id: _asked_ms(state, number) for job_id, number in first.items()}


def _asked_ms(state: State, number: int) -> int:
    part = state.ranges.at(number)
    return part.row.create_time_ms if part is not None else state.by_arrival[number].create_time_ms

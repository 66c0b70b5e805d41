"""Builds the view of a reservation. The view shows the owner, the executors, the amounts, the start
time, and the amounts that are not free yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from finegrain.resources import Amounts
from resource_manager.engine.lifecycle.run_times import RunTimes
from resource_manager.engine.model.entities import Instant, Request, Slot
from resource_manager.engine.model.texts import amounts_text
from resource_manager.engine.placement.feasibility import blocking_reservations
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.state import State

EXECUTORS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class ReservedExecutorView:
    """The capacity that one executor reserves (`held`), and the part of this capacity that is not
    free yet (`missing`).
    """

    executor_id: str
    held: Amounts
    missing: Amounts
    missing_slots: int


@dataclass(frozen=True, slots=True)
class ReservationView:
    """One reservation. This class mirrors the message of the same name in the protocol. Times are
    wall clock times.
    """

    allocation_id: str
    job_id: str
    gang_id: str
    executors: tuple[ReservedExecutorView, ...]
    since_time_ms: int
    passed_over_since_time_ms: int
    summary: str
    start_time_ms: int | None  # when the owner will probably be placed; None if this is not known


def reservation_views(state: State) -> list[ReservationView]:
    """Returns all reservations, the oldest reservation first."""
    reservations = state.reservations.by_number.values()
    return [_view(state.run_times, state.hosts, state.started, each) for each in reservations]


def reservation_of(state: State, request: Request, slot: Slot | None) -> ReservationView | None:
    """Returns the reservation for a queued request, for its gang, or for the growth of its slot.

    Args:
        state: the engine's state.
        request: the request that the caller explains.
        slot: the slot of the request. If there is a slot, the owner can only be the waiting resize
            of the slot. If it is None, the owner can only be the request or its gang.
    """
    gang = state.gangs.of(request)
    number = request.arrival_number if gang is None else gang.arrival_number
    if slot is not None:
        # No owner has the arrival number 0. So for a slot without a waiting resize, no reservation
        # is found.
        number = slot.wanted.arrival_number if slot.wanted is not None else 0
    each = state.reservations.by_number.get(number)
    return _view(state.run_times, state.hosts, state.started, each) if each is not None else None


def held_for_others(state: State, scheduling_class: SchedulingClass) -> list[ReservationView]:
    """Returns the reservations of other owners on hosts where a request of the class would fit
    without these reservations.
    """
    return [
        _view(state.run_times, state.hosts, state.started, each)
        for each in blocking_reservations(state.hosts, state.reservations, scheduling_class)
    ]


def _view(times: RunTimes, hosts: Hosts, started: Instant, each: Reservation) -> ReservationView:
    owner = each.owner
    executors = tuple(
        ReservedExecutorView(
            name, kept.amounts, *kept.missing(hosts[name].free(), hosts[name].slots_left())
        )
        for name, kept in each.hosts.items()
        # An executor that was deleted after the last cycle is left out. The next cycle will end the
        # reservation.
        if name in hosts
    )
    here = {name: kept for name, kept in each.hosts.items() if name in hosts}
    start_ms = times.start_ms(hosts, here)
    if start_ms is not None:
        start_ms += times.journal.at.time_ms - times.now_ms
    passed_ms = started.time_ms + each.starved_since.ms - started.monotonic_ms
    return ReservationView(
        allocation_id=owner.allocation_id,
        job_id=owner.job_id,
        gang_id=owner.gang_id,
        executors=executors,
        since_time_ms=each.since_time_ms,
        passed_over_since_time_ms=passed_ms,
        summary=_summary(each, times.jobs[owner.job_id].name, executors, passed_ms)
        + (f"; it will probably start at {_clock(start_ms)}" if start_ms is not None else ""),
        start_time_ms=start_ms,
    )


def _summary(
    each: Reservation, job_name: str, executors: tuple[ReservedExecutorView, ...], passed_ms: int
) -> str:
    since = f"since {_clock(each.since_time_ms)}, starved since {_clock(passed_ms)}"
    if each.planned:
        since = f"since {_clock(each.since_time_ms)}, because it is the first in order"
    title = f"{each.owner.title} of job {job_name}"
    lacking = [one for one in executors if one.missing or one.missing_slots]
    if len(executors) == 1:
        one = executors[0]
        held = f"{title} has {amounts_text(one.held)} reserved on {one.executor_id} {since}"
        return f"{held}; not free yet: {_lacks(one)}" if lacking else held
    held = f"{title} has capacity reserved on {len(executors)} executors {since}"
    if not lacking:
        return held
    some = ", ".join(one.executor_id for one in lacking[:EXECUTORS_NAMED_MAX])
    more = len(lacking) - EXECUTORS_NAMED_MAX
    rest = f" and {more} more" if more > 0 else ""
    return f"{held}; not all of this capacity is free yet on {some}{rest}"


def _lacks(one: ReservedExecutorView) -> str:
    texts = [amounts_text(one.missing)] if one.missing else []
    if one.missing_slots:
        texts.append(f"{one.missing_slots} of its slots")
    return " and ".join(texts)


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

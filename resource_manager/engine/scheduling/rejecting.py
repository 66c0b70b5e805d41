"""Rejects pending requests that are infeasible.

A request that arrives before any executor is known must wait. The request is rejected later if two
conditions are met: all executors have been known for `infeasible_after`, and no known executor and
no executor that a provider could start can host the request. A rejected request ends with the
reason and message that a new request would get. `queue/rejection_clock.py` decides which requests
are checked, and when.
"""

from __future__ import annotations

from collections.abc import Iterator

from finegrain.values.outcomes import ItemOutcome
from finegrain.values.states import ExecutorState
from resource_manager.engine.lifecycle.range_ends import Why
from resource_manager.engine.model.entities import Request
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.placement.feasibility import INFEASIBLE, feasibility
from resource_manager.engine.placement.hosts import Hosts
from resource_manager.engine.queue.ranges import Part, RangeLedger
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.queue.scheduling_classes import SchedulingClass
from resource_manager.engine.state import State

STEPS_MAX = 1_000
"""The limit for scheduling classes, gangs and requests that are processed in one event. The next
event continues with the rest.
"""

_Run = tuple[Part, int, int] | Request
"""Either one request, or queued members of a range that were never placed, as (part, first index,
last index plus 1).
"""


def infeasible_timer_fired(state: State) -> None:
    """Rejects infeasible requests, if the rejection clock has run long enough and all executors
    have registered.
    """
    clock = state.rejection_clock
    due_ms = clock.due_ms
    if due_ms is None or not _all_known(state.hosts):
        return  # the clock restarts when a missing executor registers or is lost
    if state.journal.now_ms < due_ms:
        # The clock has restarted since this timer was set, so set the timer again.
        state.timers.arm(Timer.INFEASIBLE, "", due_ms)
        return
    if clock.everything:
        # List the classes and gangs only now, because they can change while the clock runs.
        clock.everything = False
        clock.scheduling_classes = {
            scheduling_class: 0
            for scheduling_class in state.queue.classes()
            if _may_reject(scheduling_class)
        }
        clock.gangs = {
            gang_id: None for gang_id, each in state.gangs.waiting.items() if each.may_reject
        }
    if not clock.scheduling_classes and not clock.gangs:
        return
    # The indexes show which classes are feasible, so they must be up to date.
    state.hosts.refresh(state.queue)
    # Check classes first, then gangs. The limit of steps holds for classes and gangs together.
    left = STEPS_MAX
    while clock.scheduling_classes and left > 0 and not state.journal.is_full:
        left -= _check_class(state, next(iter(clock.scheduling_classes)), left)
    while clock.gangs and left > 0 and not state.journal.is_full:
        left -= _check_gang(state, next(iter(clock.gangs)))
    if clock.scheduling_classes or clock.gangs:
        state.timers.put_off(Timer.INFEASIBLE, "")


def _all_known(hosts: Hosts) -> bool:
    """Returns whether at least one executor is registered and no executor is unknown. An executor
    in the store is known if it is lost, or if it has registered with this process of the resource
    manager.

    The clock restarts when an executor registers, and when an executor that has not registered yet
    is lost. So if the result is True now, it has been True since the clock restarted.
    """
    states = {host.executor.state for host in hosts.values()}
    return ExecutorState.ACTIVE in states and ExecutorState.UNCONFIRMED not in states


def _may_reject(scheduling_class: SchedulingClass) -> bool:
    return any(job_queue.may_reject for job_queue in scheduling_class.job_queues.values())


def _check_class(state: State, scheduling_class: SchedulingClass, most: int) -> int:
    """Rejects requests of a scheduling class if the class is infeasible.

    Args:
        state: the state of the engine.
        scheduling_class: the class.
        most: the largest number of steps. The next event continues with the remaining requests.

    Returns:
        The number of steps taken, at least 1.
    """
    clock = state.rejection_clock
    # The class is added again below if not all its requests are processed now.
    after = clock.scheduling_classes.pop(scheduling_class)
    if (
        not _may_reject(scheduling_class)
        or feasibility(state.hosts, state.elastic, scheduling_class) not in INFEASIBLE
    ):
        return 1
    steps, runs = 1, []
    # Collect all runs before the first run is rejected, because a rejection changes the queue.
    for run, following in _runs(state.requests, state.ranges, scheduling_class, after):
        runs.append(run)
        steps += 1
        if steps >= most:
            # The next event continues with the request after this run.
            clock.scheduling_classes[scheduling_class] = following
            break
    else:
        for job_queue in scheduling_class.job_queues.values():
            job_queue.may_reject = False  # all remaining requests have `allow_pending`
    outcome: ItemOutcome | None = None
    for run in runs:
        # All members of a run are equal, so a check of the first member is enough.
        request = run if isinstance(run, Request) else run[0].member(run[1])
        if request.spec.allow_pending:
            continue
        # All requests of the class get the same reason.
        outcome = outcome or state.waiting_reasons.rejection(request.spec)
        if outcome is None:
            continue
        if isinstance(run, Request):
            state.moves.reject(run, outcome.reason, outcome.message)
        else:
            state.range_moves.reject_waiting(*run, Why(outcome.reason, outcome.message))
    return steps


def _runs(
    requests: Requests, ranges: RangeLedger, scheduling_class: SchedulingClass, after: int
) -> Iterator[tuple[_Run, int]]:
    """Yields the queued requests of a class in order of arrival. Consecutive members of a range
    that were never placed are yielded as one item. Each item comes with the arrival number at which
    to continue.

    Args:
        requests: all requests.
        ranges: all ranges.
        scheduling_class: the class.
        after: the lowest arrival number to yield.
    """
    for start, end in scheduling_class.runs():
        number = max(start, after)
        while number < end:
            part = ranges.at(number)
            if part is None or part.index_of(number) not in part.waiting:
                yield requests.at(number), number + 1
                number += 1
                continue
            first = part.index_of(number)
            # An interval of the queue can be longer than this run: the interval possibly continues
            # after the end of the part, or after a member that was placed.
            last = min(part.end, first + end - number)
            _, last = next(part.waiting.runs_within(first, last))
            number += last - first
            yield (part, first, last), number


def _check_gang(state: State, gang_id: str) -> int:
    """Rejects a gang if the gang or one of its members is infeasible. Returns the number of
    steps.
    """
    del state.rejection_clock.gangs[gang_id]
    waiting = state.gangs.waiting.get(gang_id)
    outcomes = state.waiting_reasons.infeasible_members(waiting) if waiting is not None else []
    if waiting is not None and outcomes:
        state.gang_moves.reject_gang(
            waiting, {each.id: (each.reason, each.message) for each in outcomes}
        )
    return 1 + len(outcomes)

"""Planted bugs. The suite's seeds must find each of these bugs. Otherwise the simulation proves
little.

Each function plants one bug. It patches an engine. If the engine does not decide the matter, it
patches the simulated shell; see `test_planted.py`. This file has bugs in placement, ordering and
reports. `planted_faults.py` has bugs that show only after crashes, failover and restores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from finegrain.errors import Reason
from finegrain.values.states import RequestState
from resource_manager.engine import step
from resource_manager.engine.executors import registration as executors
from resource_manager.engine.executors import reports
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.gangs import GangMoves
from resource_manager.engine.lifecycle.moves import RequestMoves, key_of
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.entities import Job, Request, Slot
from resource_manager.engine.model.events import CommandUndelivered
from resource_manager.engine.queue.queue import WaitingQueue
from resource_manager.engine.requests import submission
from resource_manager.engine.scheduling import commands
from resource_manager.engine.state import State
from task_executor.engine.command_fence import CommandFence
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot as TableSlot
from task_executor.engine.slots import SlotKey

Patch = pytest.MonkeyPatch


def late_report_frees_a_pending_slot(patch: Patch) -> None:
    """The engine treats every slot that a report lacks as missing."""
    patch.setattr(Host, "contains", lambda _host, _slot: True)


def capacity_not_booked_while_outcome_unknown(patch: Patch) -> None:
    """The engine assumes that a command without an answer was not executed."""

    def undelivered(state: State, event: CommandUndelivered) -> None:
        host = state.hosts.get(event.executor_id)
        if host is None or host.in_flight is None or not host.in_flight.allocates:
            return commands.command_undelivered(state, event)
        slots = [host.slots[key] for key in host.in_flight.keys if key in host.slots]
        host.in_flight = None
        state.outbox[host.host_id] = None
        for slot in slots:
            state.moves.lose(slot, Reason.UNREACHABLE, "")
            state.moves.vanish(slot)
        return None

    patch.setattr(step, "command_undelivered", undelivered)


def generation_ignored_in_release(patch: Patch) -> None:
    """The release of an older slot frees the present slot."""
    real = submission._give_up
    patch.setattr(
        submission,
        "_give_up",
        lambda state, by, item, grace: real(state, by, (item[0], 0, item[2]), grace),
    )


def refused_request_goes_to_the_end_of_the_line(patch: Patch) -> None:
    """The request gets a new place in the queue."""
    real = RequestMoves.requeue

    def requeue(
        moves: RequestMoves, request: Request, slot: Slot, reason: str, message: str
    ) -> None:
        moves.requests.by_arrival.pop(request.arrival_number)
        request.arrival_number = moves.numbers.next_arrival()
        moves.requests.by_arrival.add(request)
        real(moves, request, slot, reason, message)

    patch.setattr(RequestMoves, "requeue", requeue)


def slots_of_an_ended_job_are_kept(patch: Patch) -> None:
    """The job's requests end, but its slots are not freed."""

    real = GangMoves.give_up

    def give_up(moves: GangMoves, request: Request, **said: Any) -> None:
        slot = moves.slots.of(request)
        real(moves, request, **said)
        if slot is not None and request.job_id in moves.endings:
            moves.hosts.of(slot).to_free.pop(key_of(slot), None)

    patch.setattr(GangMoves, "give_up", give_up)


def requests_are_durable_only_when_placed(patch: Patch) -> None:
    """A crash loses acknowledged requests that wait."""
    real = ChangeTracker.request

    def request(tracker: ChangeTracker, row: Request) -> None:
        if row.state is not RequestState.PENDING:
            real(tracker, row)

    patch.setattr(ChangeTracker, "request", request)


def event_numbers_are_not_durable(patch: Patch) -> None:
    """After a restart, a job's log uses numbers again."""
    real = ChangeTracker.job

    def job(tracker: ChangeTracker, row: Job) -> None:
        if row.last_sequence == 0:
            real(tracker, row)

    patch.setattr(ChangeTracker, "job", job)


def nobody_wakes_when_a_host_grows(patch: Patch) -> None:
    """Requests wait beside free capacity."""
    patch.setattr(WaitingQueue, "unblock", lambda _queue, _labels: None)


def capacity_is_free_before_the_processes_are_gone(patch: Patch) -> None:
    """An executor gives slots capacity that ending tasks still use."""
    real = SlotTable.begin_free

    def begin_free(table: SlotTable, key: SlotKey, *, end_reason: str = "") -> TableSlot | None:
        slot = real(table, key, end_reason=end_reason)
        if slot is not None:
            table._remove(slot)
        return slot

    patch.setattr(SlotTable, "begin_free", begin_free)


def command_outlives_its_registration(patch: Patch) -> None:
    """The answer to a slow command of the last registration counts for the next registration."""
    patch.setattr(CommandFence, "_is_current", lambda _fence, _numbers: True)


def overtaken_registration_is_taken_in(patch: Patch) -> None:
    """A late copy of a registration deletes slots that exist."""
    real = executors._adopt

    def adopt(state: State, host: Host | None, registration: Any) -> Host:
        host = real(state, host, registration)
        host.executor.report_number = 0
        return host

    patch.setattr(executors, "_refuse_overtaken", lambda *_: None)
    patch.setattr(executors, "_adopt", adopt)


def unowned_slots_are_never_told(patch: Patch) -> None:
    """A slot without an owner stays on its host forever."""
    real = reports.adopt_report

    def adopt_report(state: State, host: Host, report: Any, **said: Any) -> Any:
        result = real(state, host, report, **said)
        return reports.AdoptedReport(result.adopted, result.base_missing)

    patch.setattr(reports, "adopt_report", adopt_report)
    patch.setattr(executors, "adopt_report", adopt_report)


def nobody_dials_an_unreachable_executor_again(patch: Patch) -> None:
    """An executor that was unreachable once is never used again."""
    patch.setattr(step, "probe_timer_fired", lambda _turn, _executor_id: None)


RULES: tuple[Callable[[Patch], None], ...] = (
    late_report_frees_a_pending_slot,
    capacity_not_booked_while_outcome_unknown,
    generation_ignored_in_release,
    refused_request_goes_to_the_end_of_the_line,
    slots_of_an_ended_job_are_kept,
    requests_are_durable_only_when_placed,
    event_numbers_are_not_durable,
    nobody_wakes_when_a_host_grows,
    capacity_is_free_before_the_processes_are_gone,
    command_outlives_its_registration,
    overtaken_registration_is_taken_in,
    unowned_slots_are_never_told,
    nobody_dials_an_unreachable_executor_again,
)

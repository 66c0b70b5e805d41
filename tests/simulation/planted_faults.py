"""Planted bugs in the handling of crashes, failover, lost messages and restores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from resource_manager.engine import restoring, step
from resource_manager.engine.executors import registration, reports
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle import usage_checkpoints
from resource_manager.engine.lifecycle.moves import RequestMoves
from resource_manager.engine.model.entities import Executor as BookedExecutor
from resource_manager.engine.model.entities import Job, JobState, Request, Slot
from resource_manager.engine.model.events import CommandUndelivered
from resource_manager.engine.model.timers import Timer
from resource_manager.engine.scheduling import commands
from resource_manager.engine.state import State
from task_executor.engine.command_fence import CommandFence, CommandNumbers
from task_executor.service.checkpoint import SavedState
from tests.simulation.database import Database
from tests.simulation.executor import Executor
from tests.simulation.host_commands import CommandedHost
from tests.simulation.manager import Manager
from tests.simulation.rows import Rows
from tests.simulation.slot_host import Saved, SlotHost

Patch = pytest.MonkeyPatch


# -- several resource managers -----------------------------------------------------------------


def writes_are_not_fenced(patch: Patch) -> None:
    """A former leader can still write."""
    patch.setattr(Database, "_is_fenced", lambda _database, _transaction: True)


def nobody_asks_whether_the_lease_lasts(patch: Patch) -> None:
    """A replaced manager sends answers and commands until one of its writes fails."""
    patch.setattr(Manager, "_is_sure", lambda _manager: True)


def lower_epoch_is_obeyed(patch: Patch) -> None:
    """An executor that knows the new leader still executes commands of the old leader."""
    real = CommandFence.admit

    def admit(fence: CommandFence[Any], numbers: CommandNumbers) -> Any:
        if numbers.rm_epoch < fence.rm_epoch:
            numbers = CommandNumbers(
                fence.rm_epoch, fence.registration_number, fence.command_number + 1, numbers.digest
            )
        return real(fence, numbers)

    patch.setattr(CommandFence, "admit", admit)


def epoch_is_not_in_the_checkpoint(patch: Patch) -> None:
    """After a restart, a front executes commands of every epoch."""
    real = SlotHost._snapshot

    def snapshot(host: SlotHost) -> SavedState:
        saved = real(host)
        return SavedState(
            saved.executor_id,
            saved.instance_id,
            0,
            saved.boot_id,
            saved.slots,
            saved.ended,
            saved.starts,
        )

    patch.setattr(SlotHost, "_snapshot", snapshot)


def restored_books_begin_at_their_old_epoch(patch: Patch) -> None:
    """A restore does not raise the epoch above the epochs that executors have seen."""
    patch.setattr(Database, "_restored_epoch", lambda database, _above: database.rm_epoch // 2)


def restored_books_use_numbers_again(patch: Patch) -> None:
    """After a restore, placements and events get numbers that have already been used."""
    patch.setattr(Rows, "leave_lost_history", lambda _rows: None)


# -- crashes of managers -----------------------------------------------------------------------


def books_are_kept_after_a_failed_commit(patch: Patch) -> None:
    """The manager does not read the durable state again."""
    real = Manager._read_books

    def read_books(manager: Manager) -> None:
        if manager.state.hosts and manager.leading:
            manager.state.rm_epoch = manager.epoch
        else:
            real(manager)

    patch.setattr(Manager, "_read_books", read_books)


def last_event_number_is_used_again_after_a_start(patch: Patch) -> None:
    """Two events of one job have the same number."""
    real = restoring._restore_job

    def restore_job(state: State, job: Job) -> None:
        job.last_sequence = max(job.trimmed_sequence, job.last_sequence - 1)
        real(state, job)

    patch.setattr(restoring, "_restore_job", restore_job)


def silence_counts_while_the_manager_is_away(patch: Patch) -> None:
    """Executors are lost soon after a start."""
    real = restoring._restore_executor

    def restore_executor(state: State, executor: BookedExecutor) -> None:
        real(state, executor)
        left_ms = state.settings.lost_timeout_ms // 4
        executor.report_at_ms -= state.settings.lost_timeout_ms - left_ms
        due_ms = state.started.monotonic_ms + left_ms
        state.timers.arm(Timer.SILENCE, executor.executor_id, due_ms)

    patch.setattr(restoring, "_restore_executor", restore_executor)


def leases_go_on_while_the_manager_is_away(patch: Patch) -> None:
    """Leases expire soon after a start, although job masters had no chance to renew them."""
    real = restoring._restore_job

    def restore_job(state: State, job: Job) -> None:
        real(state, job)
        if job.lease_ms is not None and job.state is not JobState.ENDED:
            job.lease_until_ms = state.started.monotonic_ms + 1
            state.timers.arm(Timer.LEASE, job.job_id, job.lease_until_ms)

    patch.setattr(restoring, "_restore_job", restore_job)


# -- messages ----------------------------------------------------------------------------------


def retry_gets_a_new_command_number(patch: Patch) -> None:
    """The manager sends a command without an answer again, under a new number."""

    def undelivered(state: State, event: CommandUndelivered) -> None:
        host = state.hosts.get(event.executor_id)
        if host is None or host.in_flight is None:
            return commands.command_undelivered(state, event)
        queue = host.to_allocate if host.in_flight.allocates else host.to_free
        queue.update(dict.fromkeys(key for key in host.in_flight.keys if key in host.slots))
        host.in_flight = None
        state.outbox[host.host_id] = None
        return None

    patch.setattr(step, "command_undelivered", undelivered)


def old_reports_are_taken_in(patch: Patch) -> None:
    """A late report undoes later changes."""
    real = reports.adopt_report

    def adopt_report(state: State, host: Host, report: Any, **said: Any) -> Any:
        if not report.unchanged:
            host.executor.report_number = 0
        return real(state, host, report, **said)

    patch.setattr(reports, "adopt_report", adopt_report)
    patch.setattr(commands, "adopt_report", adopt_report)
    patch.setattr(registration, "adopt_report", adopt_report)


def commands_of_older_registrations_are_obeyed(patch: Patch) -> None:
    """An executor executes a late command of an earlier registration."""
    real = CommandFence.admit

    def admit(fence: CommandFence[Any], numbers: CommandNumbers) -> Any:
        return real(
            fence,
            CommandNumbers(
                numbers.rm_epoch, fence.registration_number, numbers.command_number, numbers.digest
            ),
        )

    patch.setattr(CommandFence, "admit", admit)


# -- crashes of executors ----------------------------------------------------------------------


def answer_goes_out_before_the_checkpoint(patch: Patch) -> None:
    """After a crash, a front does not know slots that it has confirmed."""
    real = SlotHost._save

    def save(host: SlotHost, then: Saved = lambda _ok: None) -> None:
        real(host)
        host.after(0, lambda: then(True))

    patch.setattr(SlotHost, "_save", save)


def remains_are_left_on_the_host(patch: Patch) -> None:
    """After a crash, slots without a record are not removed from the host."""
    real = Executor._recover

    def recover(executor: Executor) -> None:
        with pytest.MonkeyPatch.context() as nobody:
            nobody.setattr(CommandedHost, "_clean", lambda _host, _key: None)
            real(executor)

    patch.setattr(Executor, "_recover", recover)


def orphans_are_kept(patch: Patch) -> None:
    """An executor without contact to a resource manager never frees its slots."""
    patch.setattr(Executor, "_free_orphans", lambda _executor: None)


def request_that_lost_its_slot_goes_to_the_end_of_the_line(patch: Patch) -> None:
    """The request waits behind later requests."""
    real = RequestMoves.requeue

    def requeue(
        moves: RequestMoves, request: Request, slot: Slot, reason: str, message: str
    ) -> None:
        moves.requests.by_arrival.pop(request.arrival_number)
        request.arrival_number = moves.numbers.next_arrival()
        moves.requests.by_arrival.add(request)
        real(moves, request, slot, reason, message)

    patch.setattr(RequestMoves, "requeue", requeue)


def what_flows_have_received_is_forgotten_at_a_start(patch: Patch) -> None:
    """After a restart, the usage of all flows begins at 0."""
    patch.setattr(usage_checkpoints, "restore_usage", lambda *_: 0)


FAULTS_MISHANDLED: tuple[Callable[[Patch], None], ...] = (
    writes_are_not_fenced,
    nobody_asks_whether_the_lease_lasts,
    lower_epoch_is_obeyed,
    epoch_is_not_in_the_checkpoint,
    restored_books_begin_at_their_old_epoch,
    restored_books_use_numbers_again,
    books_are_kept_after_a_failed_commit,
    last_event_number_is_used_again_after_a_start,
    silence_counts_while_the_manager_is_away,
    leases_go_on_while_the_manager_is_away,
    retry_gets_a_new_command_number,
    old_reports_are_taken_in,
    commands_of_older_registrations_are_obeyed,
    answer_goes_out_before_the_checkpoint,
    remains_are_left_on_the_host,
    orphans_are_kept,
    request_that_lost_its_slot_goes_to_the_end_of_the_line,
    what_flows_have_received_is_forgotten_at_a_start,
)

"""Updates the state of the resource manager from the numbered reports of executors.

A full report lists all slots of one executor. The answer to a command can be in short: it stands
for the last adopted report, changed as the command has ordered. Reports and commands can cross on
the network: the resource manager sends a command, and then receives a report that the executor made
before it received the command.

The rules:
1. A report counts only if its number is higher than the number of the last adopted report. Clocks
   are never compared.
2. A slot in the report exists on the executor. If the slot was pending, it is now confirmed.
3. If the report does not contain a slot, the slot counts as missing only under two conditions. The
   report contains the command that ordered the slot, and the executor has answered this command. (A
   report contains a command if the executor received the command before the executor made the
   report.) Otherwise the executor has possibly not carved the slot yet. So a report never removes a
   slot that was placed after the report was sent.
4. A missing slot that was being freed is deleted. Any other missing slot is lost, and its job
   master gets an event.
5. A slot in the report is unowned if this host's ledger has no slot with its id and generation. The
   answer to each report orders the executor to free the unowned slots, until a report no longer
   contains these slots. (A report that is part of a command's answer is not answered.)
6. If an executor is lost, its requests are queued again. If the executor returns with a slot before
   the slot's request is placed again, the slot is reclaimed: it serves the request again.

Example: slot A runs on the executor. The resource manager sends command 7, which allocates slot B.

  message that arrives                   adopted  contains   what follows
  report 21 with A, sent before the      21       command 6  B is not missing (rule 3)
      executor received command 7
  report 23 with A and B; it overtakes   23       command 7  B is confirmed (rule 2)
      the answer to command 7
  the answer to 7, with report 22        23       command 7  report 22 is ignored (rule 1);
                                                             command 7 is answered
  report 24 with B                       24       command 7  A is missing, so it is lost (rule 4)

If the executor refuses B, report 23 shows only A. B stays pending until the answer to 7 arrives
with the reason for the refusal.
"""

from __future__ import annotations

from dataclasses import dataclass

from finegrain.errors import FailedPrecondition, Reason
from finegrain.mapping.copies import copier
from finegrain.values.states import ExecutorState, RequestState, SlotState
from resource_manager.engine.executors.cpu_states import (
    adopt_cpu_state,
    policy_to_send,
    settle_host,
)
from resource_manager.engine.executors.device_states import DeviceReporter
from resource_manager.engine.executors.reachability import (
    delivery_overdue,
    find_unreachable,
    frees_for_report,
)
from resource_manager.engine.executors.refusals import remember_refusal
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.hosts.notes import Command
from resource_manager.engine.lifecycle.gangs import GangMoves
from resource_manager.engine.lifecycle.journal import Journal
from resource_manager.engine.lifecycle.moves import RequestMoves, key_of
from resource_manager.engine.model.entities import Slot, SlotKey
from resource_manager.engine.model.events import ReportAnswer, SlotsReported
from resource_manager.engine.model.reported import EndedSlot, Report, ReportedSlot
from resource_manager.engine.queue.requests import Requests
from resource_manager.engine.state import State

_FIRST_REPORT = {
    "state": SlotState.ALLOCATED,
    "cpus": "",
    "resize_number": 0,
    "reuse_number": 0,
}
"""The fields of a slot that the executor has allocated as ordered, in the first report."""

_as_first_reported = copier(ReportedSlot, Slot, f"isolation {' '.join(_FIRST_REPORT)}")


@dataclass(frozen=True, slots=True)
class AdoptedReport:
    """The result of `adopt_report`.

    Attributes:
        adopted: True if the report was adopted. False if the report was not newer, or its base was
            missing.
        base_missing: True if the report says "unchanged since report N", but N is not the last
            adopted report.
        unowned: slots in the report that no request owns.
    """

    adopted: bool
    base_missing: bool = False
    unowned: tuple[SlotKey, ...] = ()


def slots_reported(state: State, event: SlotsReported) -> ReportAnswer:
    """Adopts a report. The answer can order the executor to register again, or to send a full
    report.

    Raises:
        EpochSeen: the executor has seen a newer resource manager than this one.
    """
    refuse_seen_epoch(state, event.executor_id, event.report.rm_epoch)
    # The executor learns the epoch of this process from this answer; see `refuse_seen_epoch`.
    state.answered_executors.add(event.executor_id)
    host = state.hosts.get(event.executor_id)
    if (
        host is None
        or host.executor.state is not ExecutorState.ACTIVE
        or host.executor.registration.instance_id != event.instance_id
        or host.executor.registration_number != event.registration_number
    ):
        # The report belongs to an older registration. If the executor has registered again in the
        # meantime, it ignores this answer. Otherwise it must register again, because without a
        # registration, all its reports are ignored.
        return ReportAnswer(register_again=True)
    executor = host.executor
    result = adopt_report(state, host, event.report)
    # The reports of the executor arrive, but commands do not reach it. The report itself is valid,
    # so it was adopted before this check.
    if delivery_overdue(state.journal, state.settings, host):
        find_unreachable(state.journal, state.transitions, state.usage, host)
        return ReportAnswer(register_again=True)
    host_policy, host_policy_number = policy_to_send(state.host_settings, host)
    return ReportAnswer(
        send_full_report=result.base_missing,
        unowned=(*result.unowned, *frees_for_report(host)),
        acknowledged_report_number=executor.report_number,
        host_policy=host_policy,
        host_policy_number=host_policy_number,
        reused_slots=tuple((*key, host.slots[key].reuse_number) for key in host.reused),
    )


def adopt_report(
    state: State,
    host: Host,
    report: Report,
    *,
    answered: Command | None = None,
    returning: bool = False,
) -> AdoptedReport:
    """Updates the host from a report, if the report is newer than the last adopted report.

    Args:
        state: the state.
        host: the executor that sent the report.
        report: the report.
        answered: the command that the report answers; None if the report answers no command.
        returning: True if the executor was lost until now.
    """
    executor = host.executor
    # A newer report has overtaken this report on the network. An older report must not undo the
    # effects of a newer report.
    if report.report_number <= executor.report_number:
        return AdoptedReport(adopted=False)
    # The report says only that nothing has changed since its base report, or only the command. But
    # the report that was adopted last is not this base report, or there is no such command. So the
    # caller requests a full report.
    has_base = report.base_report_number == executor.report_number
    if (report.unchanged and not has_base) or (
        report.as_ordered and not (has_base and answered is not None and not answered.resizes)
    ):
        return AdoptedReport(adopted=False, base_missing=True)
    # The report is adopted from here on.
    executor.report_number = report.report_number
    executor.report_at_ms = state.journal.now_ms
    executor.report_time_ms = state.journal.at.time_ms
    # Slots that ended without an order are handled first. Otherwise they would count as missing in
    # `settle`.
    broken = [
        slot
        for ended in report.ended
        if (slot := _ended(state.moves, state.gang_moves, host, ended)) is not None
    ]
    # A command number of another epoch is from another resource manager, so it cannot be compared.
    contained = report.command_number if report.rm_epoch == state.rm_epoch else 0
    contained = max(contained, answered.number if answered is not None else 0)
    news = contained > host.contained_command
    host.contained_command = max(contained, host.contained_command)
    # No slot changed. But if the report contains a newer command, slots of that command can now
    # count as missing.
    if report.unchanged:
        if news:
            settle(state, host)
        return AdoptedReport(adopted=True, unowned=host.unowned)
    # From here on, the report describes slots. Each described slot is compared, then missing slots
    # are removed.
    if report.as_ordered and answered is not None:
        reported = _changed_as_ordered(host, answered, report)
    else:
        reported = {(slot.allocation_id, slot.generation): slot for slot in report.slots}
        host.reported = {key: slot.state for key, slot in reported.items()}
    executor.reported_available = dict(report.available)
    # The report contains these slots, so their capacity must not be subtracted a second time.
    host.count_unreported()
    for key, seen in reported.items():
        slot = host.slots.get(key)
        if slot is not None:
            _seen(state, host, slot, seen, returning=returning)
    # The loop above has handled all slots in the report. Slots that are not in the report are
    # possibly missing.
    settle(state, host)
    adopt_cpu_state(state, host, report.cpu_state)
    before = executor.device_conditions
    if report.device_conditions != before:
        executor.device_conditions = report.device_conditions
        settle_host(state, host)
    reporter = DeviceReporter(
        state.journal,
        state.requests,
        state.gang_moves,
        state.moves,
    )
    reporter.report(host, before)
    # The host's free capacity can be indexed only now, because now the bookings match the report.
    state.hosts.touch(host)
    if host.refusals and host.end_refusals(state.journal.now_ms):
        state.hosts.indexes.log_growth(host, state.queue)
    if host.resize_backoffs:
        state.resizes.end_backoffs(host)
    # `remember_refusal` comes after `end_refusals`. Otherwise, this report would at once end the
    # refusals that the report causes.
    for slot in broken:
        remember_refusal(state, host, slot)
    # Slots that the executor reports as FREEING are left out. The executor already frees these
    # slots, so they need no order.
    host.unowned = tuple(
        key
        for key, seen in host.reported.items()
        if key not in host.slots and seen is not SlotState.FREEING
    )
    return AdoptedReport(adopted=True, unowned=host.unowned)


def settle(state: State, host: Host) -> None:
    """Removes the slots that are missing from the last adopted report (rules 3 and 4)."""
    if host.reported.keys() >= host.slots.keys():
        return
    # All missing slots are collected before the first change, because the loss of one slot of a
    # gang can change other slots of the gang. `contains` is false for slots that the report cannot
    # show yet (rule 3).
    missing = [
        slot for key, slot in host.slots.items() if key not in host.reported and host.contains(slot)
    ]
    for slot in missing:
        if slot.state is not SlotState.FREEING:
            message = f"executor {host.host_id} no longer has the slot"
            state.gang_moves.lose(slot, Reason.SLOT_MISSING, message)
        # The slot was already FREEING, or was lost in the lines above. In both cases, the slot does
        # not exist on the executor any more, so it is deleted.
        state.moves.vanish(slot)


def _changed_as_ordered(
    host: Host, command: Command, report: Report
) -> dict[SlotKey, ReportedSlot]:
    """Changes the slots of the last report as a command has ordered. Returns the slots that the
    command has allocated, as a full report would describe them.
    """
    if command.frees:
        for key in command.keys:
            host.reported.pop(key, None)
        return {}
    host.reported.update(dict.fromkeys(command.keys, SlotState.ALLOCATED))
    return {
        key: _as_first_reported(slot, isolation=report.slot_isolation, **_FIRST_REPORT)
        for key in command.keys
        if (slot := host.slots.get(key)) is not None
    }


def _seen(state: State, host: Host, slot: Slot, seen: ReportedSlot, *, returning: bool) -> None:
    """Updates one slot from its entry in a report."""
    ends = seen.state is SlotState.FREEING
    # The report proves that the slot exists, even if the answer to its order is still on the way.
    if slot.state is SlotState.PENDING and not ends:
        state.gang_moves.confirm(slot, isolation=seen.isolation, cpus=seen.cpus)
    if seen.resize_number:
        state.resizes.adopt_reported_size(slot, seen)
    if slot.reuse_number > seen.reuse_number:
        host.reused[key_of(slot)] = None
    elif host.reused:
        host.reused.pop(key_of(slot), None)
    if ends:
        return  # a later report will not contain the slot, or will list the slot as ended
    if slot.state is SlotState.FREEING:
        # A slot can be reclaimed only if its executor was lost. Any other slot must be freed.
        if returning and _is_waited_for(state.journal, state.requests, host, slot):
            state.moves.reclaim(slot, isolation=seen.isolation, cpus=seen.cpus)
        else:
            _retry_free(state.outbox, host, slot)
    elif seen.isolation is not None and seen.isolation != slot.isolation:
        slot.isolation = seen.isolation
        state.changes.slot_moved(slot)


def _is_waited_for(journal: Journal, requests: Requests, host: Host, slot: Slot) -> bool:
    request = requests.get(slot.allocation_id)
    deadline_ms = host.executor.drain_deadline_at_ms
    return (
        request is not None
        and request.state is RequestState.PENDING
        and request.generation == slot.generation
        and not request.spec.gang_id  # all members of a gang would have to be reclaimed together
        # After the drain deadline, the drain frees all slots of the executor. So no slot is
        # reclaimed.
        and not (deadline_ms is not None and deadline_ms <= journal.now_ms)
    )


def _retry_free(outbox: dict[str, None], host: Host, slot: Slot) -> None:
    """Orders the executor once more to free a slot. The report shows that the executor is not
    freeing the slot.
    """
    key = key_of(slot)
    command = host.in_flight
    # If the command in flight already has this slot, its answer decides about the slot.
    if command is None or key not in command.keys:
        host.to_free[key] = None
        outbox[host.host_id] = None


def _ended(moves: RequestMoves, gang_moves: GangMoves, host: Host, ended: EndedSlot) -> Slot | None:
    """Handles a slot that ended on its executor without an order.

    The executor repeats the entry in its reports until one of them is acknowledged.

    Returns:
        The slot if it failed on the executor, and None otherwise.
    """
    slot = host.slots.get((ended.allocation_id, ended.generation))
    if slot is None:  # an earlier report with the same entry was already handled
        return None
    if ended.reason == Reason.OFFER_NOT_ACCEPTED:
        gang_moves.decline(slot)
        return None
    if ended.reason == Reason.TIME_LIMIT and moves.end_at_limit(slot):
        return None
    if slot.state is not SlotState.FREEING:
        message = f"the slot ended on executor {host.host_id}: {ended.reason}"
        gang_moves.lose(slot, ended.reason, message)
    moves.vanish(slot)
    # A failed slot counts as a refusal of the host. Other reasons do not concern the host.
    return slot if ended.reason == Reason.SLOT_BROKEN else None


class EpochSeen(FailedPrecondition):
    """An executor knows a newer resource manager than this one.

    After this error, the service sends no more commands, does not store the batch of events, and
    stops.

    Args:
        executor_id: the executor that has reported the newer epoch.
        seen: the epoch that the executor has reported.
        own: the epoch of this resource manager.
    """

    default_reason = Reason.STALE_EPOCH

    def __init__(self, executor_id: str, seen: int, own: int) -> None:
        super().__init__(
            f"executor {executor_id} has seen rm_epoch {seen}, but this database has {own}: this"
            " resource manager is not the newest one, so it sends no commands",
            details={"executor_id": executor_id, "seen": seen, "own": own},
        )
        self.executor_id, self.seen, self.own = executor_id, seen, own


def refuse_seen_epoch(state: State, executor_id: str, rm_epoch: int) -> None:
    """Checks that no newer resource manager has contacted the executor.

    Args:
        state: the engine's state.
        executor_id: the executor.
        rm_epoch: the highest epoch that the executor has seen. It is 0 if the executor has seen no
            epoch.

    Raises:
        EpochSeen: the executor has seen a higher epoch, or the same epoch from another process.
    """
    own = state.rm_epoch
    # An executor learns the epoch of this process only from the answers of this process. If the
    # executor has received no such answer but knows the epoch, another process uses the same epoch.
    known = own if executor_id in state.answered_executors else own - 1
    if rm_epoch > known:
        raise EpochSeen(executor_id, rm_epoch, own)

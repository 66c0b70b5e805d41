"""Planted bugs in resizes, gangs, and executors of providers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from finegrain.resources import Amounts
from finegrain.values.states import GangPlacement, ProvidedExecutorState
from resource_manager.engine import restoring, step
from resource_manager.engine.hosts.host import Host
from resource_manager.engine.lifecycle.gangs import GangMoves
from resource_manager.engine.lifecycle.provisions import ProvisionMoves
from resource_manager.engine.lifecycle.resizes import ResizeMoves
from resource_manager.engine.model.changes import ChangeTracker
from resource_manager.engine.model.effects import StopExecutor
from resource_manager.engine.model.entities import GangSpec, Provision, Request, Slot
from resource_manager.engine.model.events import Event, ProvisionEnded, ProvisionStopFailed
from resource_manager.engine.model.reported import ReportedSlot
from resource_manager.engine.model.settings import ExecutorShape
from resource_manager.engine.planning import planning
from resource_manager.engine.planning.planning import Backlog, Plan
from resource_manager.engine.planning.steps import Steps
from resource_manager.engine.queue.gangs import GangKind, GangLedger
from resource_manager.engine.queue.non_batchable import NonBatchables
from resource_manager.engine.scaling import arrival, backlog, passes, provider_answers
from resource_manager.engine.scheduling import cycle
from resource_manager.engine.state import State
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot as TableSlot
from task_executor.engine.slots import SlotKey
from tests.simulation.resizing_host import Resized, ResizingHost

Patch = pytest.MonkeyPatch


# -- resizes -----------------------------------------------------------------------------------


def growth_is_booked_when_it_is_confirmed(patch: Patch) -> None:
    """Other slots can get the same capacity before the growth is confirmed."""

    def booking(host: Host, slot: Slot) -> Amounts:
        return host.booking_of(slot.profile)

    patch.setattr(Host, "_booking_of_slot", booking)


def what_shrinks_is_free_when_it_is_ordered(patch: Patch) -> None:
    """Other slots can get capacity that the kernel still allows the shrinking slot."""

    def booking(host: Host, slot: Slot) -> Amounts:
        return host.booking_of(slot.ordered.profile if slot.ordered else slot.profile)

    patch.setattr(Host, "_booking_of_slot", booking)


def any_report_confirms_a_change(patch: Patch) -> None:
    """A change counts as confirmed by every report, even by one that the executor sent before it
    received the change.
    """
    real = ResizeMoves.adopt_reported_size

    def adopt_reported_size(moves: ResizeMoves, slot: Slot, seen: ReportedSlot) -> None:
        if (ordered := slot.ordered) is not None:
            seen = replace(
                seen,
                profile=ordered.profile,
                cpu_limit_milli=ordered.cpu_limit_milli,
                resize_number=ordered.number,
            )
        real(moves, slot, seen)

    patch.setattr(ResizeMoves, "adopt_reported_size", adopt_reported_size)


def next_change_replaces_one_whose_outcome_is_unknown(patch: Patch) -> None:
    """Two changes of a slot are in progress, and the growth of the first is no longer booked."""
    real = ResizeMoves.advance

    def go_on(moves: ResizeMoves, slot: Slot) -> None:
        if slot.wanted is not None and slot.ordered is not None:
            moves.hosts.of(slot).set_size(slot, slot.profile, slot.assignment, None)
        real(moves, slot)

    patch.setattr(ResizeMoves, "advance", go_on)


def change_that_waits_is_forgotten_at_a_restart(patch: Patch) -> None:
    """The change was acknowledged, but is never executed."""
    real = restoring._restore_slot

    def restore_slot(state: State, slot: Slot) -> None:
        slot.wanted = None
        real(state, slot)

    patch.setattr(restoring, "_restore_slot", restore_slot)


def change_that_waits_for_use_is_never_tried_again(patch: Patch) -> None:
    """The change waits without end, even if the slot uses less memory."""
    patch.setattr(ResizeMoves, "resize_timer_fired", lambda _moves, _name: None)


def job_master_is_not_told_of_its_new_size(patch: Patch) -> None:
    """The job master continues with the old size."""
    patch.setattr(ResizeMoves, "_report", lambda _moves, _slot, _number: None)


def intent_is_not_rolled_forward(patch: Patch) -> None:
    """After a restart, a front does not know a size that its host may already enforce."""
    real = SlotTable.adopt

    def adopt(table: SlotTable, slot: TableSlot) -> None:
        real(table, replace(slot, becoming=None))

    patch.setattr(SlotTable, "adopt", adopt)
    patch.setattr(ResizingHost, "_align_sizes", lambda _host: None)


def size_is_told_before_it_is_enforced(patch: Patch) -> None:
    """The executor reports the size before the kernel enforces it."""
    real = ResizingHost._enforce_size

    def enforce(host: ResizingHost, key: SlotKey, then: Resized) -> None:
        slot = host.table.get(key)
        if slot is None or slot.becoming is None:
            return real(host, key, then)
        return host._enforced_size(key, slot.becoming, None, then)

    patch.setattr(ResizingHost, "_enforce_size", enforce)
    patch.setattr(ResizingHost, "_align_sizes", lambda _host: None)


# -- gangs -------------------------------------------------------------------------------------


def gang_is_granted_one_by_one(patch: Patch) -> None:
    """Each member is granted when its executor has confirmed it. The other members do not
    matter.
    """

    def confirm(moves: GangMoves, slot: Slot, **seen: Any) -> None:
        moves.moves.confirm(slot, **seen)

    patch.setattr(GangMoves, "confirm", confirm)


def refusal_of_one_member_leaves_the_others_what_they_have(patch: Patch) -> None:
    """Half a gang is held."""
    patch.setattr(GangMoves, "requeue", lambda moves, *what: moves.moves.requeue(*what))


def loss_of_one_member_leaves_the_others_what_they_have(patch: Patch) -> None:
    """Half a gang is held."""
    patch.setattr(GangMoves, "lose", lambda moves, *what: moves.moves.lose(*what))


def gang_goes_anywhere(patch: Patch) -> None:
    """The engine ignores the placement policy of the gang."""
    real = GangLedger._kind_of

    def kind_of(books: GangLedger, spec: GangSpec, members: list[Request]) -> GangKind:
        return real(books, replace(spec, placement=GangPlacement.ANYWHERE, label=""), members)

    patch.setattr(GangLedger, "_kind_of", kind_of)


def gang_in_vain_is_never_tried_again(patch: Patch) -> None:
    """Gangs and growth stay blocked when an executor has more free capacity."""
    patch.setattr(NonBatchables, "grew", lambda _singles, _host, _labels: None)


def gang_never_times_out(patch: Patch) -> None:
    """The engine ignores the timeout of the gang."""
    patch.setattr(GangMoves, "gang_timer_fired", lambda _moves, _gang_id: 0)


# -- executors of providers --------------------------------------------------------------------


def what_is_asked_for_is_not_durable_first(patch: Patch) -> None:
    """After a crash, the manager does not know which executors it has started."""
    real = ChangeTracker.provision

    def provision(tracker: ChangeTracker, row: Provision) -> None:
        if row.state is not ProvidedExecutorState.ASKED:
            real(tracker, row)

    patch.setattr(ChangeTracker, "provision", provision)


def stops_are_forgotten_at_a_restart(patch: Patch) -> None:
    """After a restart, the provider gets no call to finish the stop."""
    patch.setattr(ProvisionMoves, "resume", lambda _moves: None)


def executor_is_struck_before_its_provider_said_that_it_is_gone(patch: Patch) -> None:
    """The call to stop an executor counts as its end."""
    real = step._handle

    def handle(state: State, event: Event) -> object:
        answer = real(state, event)
        for effect in list(state.journal.effects):
            if isinstance(effect, StopExecutor):
                ended = ProvisionEnded(state.journal.at, effect.executor_id)
                provider_answers.provision_ended(state, ended)
        return answer

    patch.setattr(step, "_handle", handle)


def stop_that_failed_is_taken_for_done(patch: Patch) -> None:
    """A part of the executor still runs."""

    def stop_failed(state: State, event: ProvisionStopFailed) -> None:
        provider_answers.provision_ended(state, ProvisionEnded(event.at, event.executor_id))

    patch.setattr(step, "provision_stop_failed", stop_failed)


def what_was_asked_for_is_not_planned_on(patch: Patch) -> None:
    """The engine requests executors for the same requests again and again."""

    def plan_in_steps(given: Backlog) -> Steps[Plan]:
        return planning.plan_in_steps(replace(given, pending={}, kept={}))

    patch.setattr(backlog, "plan_in_steps", plan_in_steps)


def maximum_is_about_those_who_are_there(patch: Patch) -> None:
    """Requested executors do not count against the maximum."""
    patch.setattr(ProvisionMoves, "counted", ProvisionMoves.present)


def latecomers_are_nobodys(patch: Patch) -> None:
    """An executor that registers after the resource manager gave it up is never stopped."""
    patch.setattr(arrival, "_adopt", lambda _turn, _host, _shape: None)


def idle_executors_are_kept(patch: Patch) -> None:
    """The cluster never shrinks."""
    patch.setattr(passes, "_give_back_idle", lambda _turn: None)


def who_was_planned_waits_like_everybody(patch: Patch) -> None:
    """Other requests get a new executor before the requests that were planned on it."""

    def hand_over(state: State) -> None:
        state.elastic.plan.on.clear()
        state.elastic.arrived.clear()

    patch.setattr(cycle, "hand_over", hand_over)


def shape_is_asked_for_beyond_its_count(patch: Patch) -> None:
    """The engine requests one executor for each waiting request."""
    real = ProvisionMoves.requestable_shapes

    def requestable_shapes(moves: ProvisionMoves) -> list[ExecutorShape]:
        return [replace(shape, count_max=0) for shape in real(moves)]

    patch.setattr(ProvisionMoves, "requestable_shapes", requestable_shapes)


ELASTIC: tuple[Callable[[Patch], None], ...] = (
    growth_is_booked_when_it_is_confirmed,
    what_shrinks_is_free_when_it_is_ordered,
    any_report_confirms_a_change,
    next_change_replaces_one_whose_outcome_is_unknown,
    change_that_waits_is_forgotten_at_a_restart,
    change_that_waits_for_use_is_never_tried_again,
    job_master_is_not_told_of_its_new_size,
    intent_is_not_rolled_forward,
    size_is_told_before_it_is_enforced,
    gang_is_granted_one_by_one,
    refusal_of_one_member_leaves_the_others_what_they_have,
    loss_of_one_member_leaves_the_others_what_they_have,
    gang_goes_anywhere,
    gang_in_vain_is_never_tried_again,
    gang_never_times_out,
    what_is_asked_for_is_not_durable_first,
    stops_are_forgotten_at_a_restart,
    executor_is_struck_before_its_provider_said_that_it_is_gone,
    stop_that_failed_is_taken_for_done,
    what_was_asked_for_is_not_planned_on,
    maximum_is_about_those_who_are_there,
    latecomers_are_nobodys,
    idle_executors_are_kept,
    who_was_planned_waits_like_everybody,
    shape_is_asked_for_beyond_its_count,
)

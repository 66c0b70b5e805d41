"""Planted bugs in groups, quotas, reservations and reuse of slots.

They have an effect only if administrators and job masters use these features (`FAIR_SHARES`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from finegrain.resources import Amounts
from finegrain.values.states import SlotState
from resource_manager.engine import restoring
from resource_manager.engine.fairness import flows
from resource_manager.engine.fairness import groups as group_books
from resource_manager.engine.fairness.flows import Flow, FlowTree
from resource_manager.engine.fairness.quotas import UNBOUNDED, counted
from resource_manager.engine.lifecycle.quota_checks import QuotaChecks
from resource_manager.engine.model.effects import Effect
from resource_manager.engine.model.entities import Group, Request, Slot
from resource_manager.engine.model.events import Event, GroupSet, SlotsReuseRequested
from resource_manager.engine.placement.reserved import Reservation
from resource_manager.engine.scheduling import reservations, slot_reuse
from resource_manager.engine.scheduling.next_in_order import NextInOrder
from resource_manager.engine.state import State
from tests.simulation.manager import Batch, Item, Manager

Patch = pytest.MonkeyPatch


# -- answers -----------------------------------------------------------------------------------


def _answered_early(patch: Patch, kind: type[Event]) -> None:
    """Sends answers to such events twice: before they are on disk, and again when they are."""
    answer_of, change_of = Manager._answer, Manager._change
    early: set[int] = set()

    def answer(manager: Manager, event: Event, effects: list[Effect]) -> Any:
        result = answer_of(manager, event, effects)
        if isinstance(event, kind):
            early.add(id(result))
        return result

    def change(manager: Manager, items: list[Item], batch: Batch, *, ticked: bool) -> Any:
        found = change_of(manager, items, batch, ticked=ticked)
        for reply, result in batch.answers:
            if id(result) in early:
                reply(result)
        early.clear()
        return found

    patch.setattr(Manager, "_answer", answer)
    patch.setattr(Manager, "_change", change)


def group_change_is_answered_before_it_is_durable(patch: Patch) -> None:
    """An administrator relies on a change that a crash loses."""
    _answered_early(patch, GroupSet)


def reuse_is_answered_before_it_is_durable(patch: Patch) -> None:
    """After a crash, a request whose work is done waits again."""
    _answered_early(patch, SlotsReuseRequested)


def limits_of_groups_are_forgotten_at_a_start(patch: Patch) -> None:
    """After a restart, groups have no limits."""
    real = group_books.in_order

    def in_order(groups: Any) -> list[Group]:
        return [replace(group, maximum={}) for group in real(groups)]

    patch.setattr(group_books, "in_order", in_order)


# -- limits ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _WithoutFreeing:
    """A group without the usage of slots that are being freed."""

    id: str
    used: dict[str, int]
    running: int
    maximum: Amounts


def maximum_forgets_what_is_being_freed(patch: Patch) -> None:
    """A slot that is being freed does not count any more, although its processes may still run."""
    real = QuotaChecks.limited

    def limited(quotas: QuotaChecks, job_id: str) -> list[Any]:
        return [_without_freeing(quotas, group) for group in real(quotas, job_id)]

    patch.setattr(QuotaChecks, "limited", limited)


def _without_freeing(quotas: QuotaChecks, group: Flow) -> _WithoutFreeing:
    used, running = dict(group.used), group.running
    for slot in quotas.slots.values():
        if slot.state is SlotState.FREEING and group in quotas.flows.jobs[slot.job_id].ancestors():
            for name, amount in counted(slot.booked).items():
                used[name] -= amount
            running -= 1
    return _WithoutFreeing(group.id, used, running, group.maximum)


def maximum_that_is_raised_wakes_nobody(patch: Patch) -> None:
    """Requests that the maximum had blocked wait beside free capacity."""
    real = FlowTree.put_group

    def put_group(tree: FlowTree, name: str, *args: Any, **limits: Any) -> Flow:
        flow = real(tree, name, *args, **limits)
        tree.freed_groups.pop(flow.id, None)
        return flow

    patch.setattr(FlowTree, "put_group", put_group)


def minimum_is_not_served_first(patch: Patch) -> None:
    """The minimum is stored, but has no effect."""
    patch.setattr(flows, "fulfilment", lambda _used, _running, _minimum: UNBOUNDED)


# -- reservations and reuse --------------------------------------------------------------------


def hosts_are_held_for_whoever_is_gone(patch: Patch) -> None:
    """The engine does not check whether the owner of a reservation still waits."""
    real = reservations._void

    def void(state: State, each: Reservation) -> str:
        return real(state, each) if each.owner.waits_in(state.queue) else ""

    patch.setattr(reservations, "_void", void)
    patch.setattr(reservations, "has_room", lambda *_: False)
    patch.setattr(reservations, "end_served", lambda _turn: False)
    patch.setattr("resource_manager.engine.scheduling.cycle.end_served", lambda _turn: False)


def slots_go_on_above_a_lowered_maximum(patch: Patch) -> None:
    """A group with much work never gets below its lowered maximum."""
    patch.setattr(NextInOrder, "_is_above_maximum", lambda _turns, _slot: False)


def work_that_was_handed_on_still_waits(patch: Patch) -> None:
    """The work of the request is done twice."""

    def note_reuse(state: State, request: Request, waiting: Request, _end: object) -> None:
        state.flows.note_reuse(request.job_id)

    patch.setattr(slot_reuse, "_take_over", note_reuse)


def member_is_placed_again_after_a_start(patch: Patch) -> None:
    """A member without a row counts as waiting, although it has a slot."""
    real = restoring._member_of

    def member_of(state: State, slot: Slot) -> Request | None:
        return real(state, slot) if slot.state is SlotState.FREEING else None

    patch.setattr(restoring, "_member_of", member_of)


FAIR: tuple[Callable[[Patch], None], ...] = (
    group_change_is_answered_before_it_is_durable,
    reuse_is_answered_before_it_is_durable,
    limits_of_groups_are_forgotten_at_a_start,
    maximum_forgets_what_is_being_freed,
    maximum_that_is_raised_wakes_nobody,
    minimum_is_not_served_first,
    hosts_are_held_for_whoever_is_gone,
    slots_go_on_above_a_lowered_maximum,
    work_that_was_handed_on_still_waits,
    member_is_placed_again_after_a_start,
)

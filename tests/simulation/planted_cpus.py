"""Planted bugs in cpu assignments, on either side, and across restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from finegrain.cpu_assignment import CpuAssignment
from resource_manager.engine import restoring
from resource_manager.engine.cpus.ledger import CpuLedger
from resource_manager.engine.executors import reports
from resource_manager.engine.hosts import cpu_allocator, host
from resource_manager.engine.invariants import hosts as host_checks
from resource_manager.engine.model.entities import Slot
from resource_manager.engine.state import State
from task_executor.engine.slot_table import SlotTable
from task_executor.engine.slots import Slot as ExecutorSlot

Patch = pytest.MonkeyPatch


def cpus_are_given_that_do_not_run(patch: Patch) -> None:
    """Offline cpus reduce the amounts of a host, but slots still get these cpus."""
    patch.setattr(CpuLedger, "set_unavailable", lambda _books, **_unavailable: None)


def cpus_of_a_slot_that_shrinks_are_given_before_it_has_shrunk(patch: Patch) -> None:
    """The engine assumes that an ordered resize is done."""

    def booked(slot: Slot) -> CpuAssignment | None:
        ordered = slot.ordered.assignment if slot.ordered is not None else None
        return ordered or slot.assignment

    for module in (cpu_allocator, host_checks, host):
        patch.setattr(module, "cpus_booked", booked)


def cpus_of_slots_are_forgotten_at_a_start(patch: Patch) -> None:
    """A new manager assumes that no slot has dedicated cpus."""
    real = restoring._restore_slot

    def restore_slot(state: State, slot: Slot) -> None:
        slot.assignment = None
        real(state, slot)

    patch.setattr(restoring, "_restore_slot", restore_slot)


def rules_about_neighbors_are_forgotten_at_a_start(patch: Patch) -> None:
    """A new manager assumes that no present slot has labels or rules about neighbors."""
    real = restoring._restore_slot

    def restore_slot(state: State, slot: Slot) -> None:
        real(state, slot)
        if slot.policy is not None:
            state.hosts.labeled.remove(slot.executor_id, slot.policy)
            slot.policy = None

    patch.setattr(restoring, "_restore_slot", restore_slot)


def executor_forgets_cpus_of_slots_when_it_starts(patch: Patch) -> None:
    """A new front assumes that no slot has dedicated cpus."""
    real = SlotTable.adopt

    def adopt(table: SlotTable, slot: ExecutorSlot) -> None:
        real(table, replace(slot, spec=replace(slot.spec, assignment=None)))

    patch.setattr(SlotTable, "adopt", adopt)


def settings_of_operators_are_not_told(patch: Patch) -> None:
    """Executors that are already registered get no new settings."""
    patch.setattr(reports, "policy_to_send", lambda _state, _host: (None, 0))


CPUS_MISHANDLED: tuple[Callable[[Patch], None], ...] = (
    cpus_are_given_that_do_not_run,
    cpus_of_a_slot_that_shrinks_are_given_before_it_has_shrunk,
    cpus_of_slots_are_forgotten_at_a_start,
    rules_about_neighbors_are_forgotten_at_a_start,
    executor_forgets_cpus_of_slots_when_it_starts,
    settings_of_operators_are_not_told,
)

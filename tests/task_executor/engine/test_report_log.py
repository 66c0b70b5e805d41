"""The numbers of states only rise, `unchanged` is never wrong, and ends are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from finegrain.cpuset import CpuSet
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED, Isolation
from task_executor.engine.report_log import DoneCommand, NumberedState, ReportLog
from task_executor.engine.slot_table import HostShare, SlotTable
from task_executor.engine.slots import EndedSlot, SlotKey, SlotSpec

KEY = SlotKey("a", 1)


class Host:
    """A table of one slot, and the log that numbers its states."""

    def __init__(self) -> None:
        total = {"cpu_milli": 1000, "memory_bytes": 64 * MIB}
        self.table = SlotTable(HostShare(total, CpuSet.parse("0")))
        self.log = ReportLog()

    def carve(self) -> None:
        profile = ResourceProfile(100, task_heap_memory_bytes=MIB)
        self.table.allocate([SlotSpec("a", 1, "job", profile, 100, 10)])
        self.table.carved(KEY, NOTHING_REPORTED, 1)

    def next(self) -> NumberedState:
        return self.log.next(self.table, rm_epoch=7, command_number=3)

    def full(self) -> NumberedState:
        return self.log.full(self.table, rm_epoch=7, command_number=3)


def test_numbers_rise_by_one_over_reports_and_answers_alike() -> None:
    host = Host()
    assert [s.report_number for s in (host.next(), host.full(), host.next())] == [1, 2, 3]


def test_the_first_state_is_full_and_names_epoch_and_command() -> None:
    state = Host().next()
    assert (state.unchanged, state.rm_epoch, state.command_number) == (False, 7, 3)
    assert state.available == {"cpu_milli": 1000, "memory_bytes": 64 * MIB}


def test_what_the_rm_has_taken_in_is_not_sent_again() -> None:
    host = Host()
    host.carve()
    host.log.acknowledge(host.next().report_number)
    state = host.next()
    assert (state.unchanged, state.base_report_number, state.slots) == (True, 1, ())
    host.log.acknowledge(state.report_number)
    assert host.next().base_report_number == 2


def test_a_change_since_the_acknowledged_state_is_sent_in_full() -> None:
    host = Host()
    sent = host.next()
    host.carve()
    host.log.acknowledge(sent.report_number)
    state = host.next()
    assert not state.unchanged
    assert [slot.key for slot in state.slots] == [KEY]


def test_an_unacknowledged_state_is_no_base() -> None:
    host = Host()
    host.next()
    assert not host.next().unchanged


def test_a_number_that_was_never_sent_is_no_base() -> None:
    host = Host()
    host.next()
    host.log.acknowledge(99)
    assert not host.next().unchanged


def test_after_distrust_everything_is_told_again() -> None:
    host = Host()
    host.log.acknowledge(host.next().report_number)
    host.log.require_full_report()
    assert not host.next().unchanged


def test_an_end_is_told_until_a_state_that_held_it_is_acknowledged() -> None:
    host = Host()
    before = host.next()
    host.log.ended(EndedSlot(KEY, "ORPHANED"))
    assert not host.log.acknowledge(before.report_number)
    telling = host.next()
    assert telling.unchanged
    assert [end.reason for end in telling.ended] == ["ORPHANED"]
    assert host.log.acknowledge(telling.report_number)
    assert host.next().ended == ()


def test_slots_that_are_being_carved_are_not_told_and_not_missing() -> None:
    host = Host()
    profile = ResourceProfile(100, task_heap_memory_bytes=MIB)
    host.table.allocate([SlotSpec("a", 1, "job", profile, 100, 10)])
    state = host.full()
    assert state.slots == ()
    assert state.available["cpu_milli"] == 1000


def test_no_life_of_an_executor_counts_where_an_earlier_one_did() -> None:
    first, second, third = Host(), Host(), Host()
    first.log.start_numbering(1)
    second.log.start_numbering(2)
    assert first.full().report_number < second.full().report_number
    third.log.continue_after(second.log.report_number)
    assert third.full().report_number > second.full().report_number


def test_a_state_in_an_answer_is_no_news_until_it_changes() -> None:
    host = Host()
    assert host.log.has_news(host.table)
    host.carve()
    host.log.answer(host.table, rm_epoch=7, command_number=3)
    assert not host.log.has_news(host.table)
    host.table.begin_free(KEY)
    assert host.log.has_news(host.table)


def test_an_end_is_news_until_it_is_acknowledged() -> None:
    host = Host()
    host.log.ended(EndedSlot(KEY, "SLOT_BROKEN"))
    state = host.log.answer(host.table, rm_epoch=7, command_number=3)
    assert host.log.has_news(host.table)
    host.log.acknowledge(state.report_number)
    assert not host.log.has_news(host.table)


def spec(name: str, **changes: Any) -> SlotSpec:
    profile = ResourceProfile(100, task_heap_memory_bytes=MIB)
    return replace(SlotSpec(name, 1, "job", profile, 100, 10), **changes)


def allocated(host: Host, *specs: SlotSpec, known: int) -> NumberedState:
    """Carves slots as one command; returns the report in its answer."""
    host.table.allocate(specs)
    for each in specs:
        host.table.carved(each.key, NOTHING_REPORTED, 1)
    return answered(host, specs, known=known, allocates=True)


def answered(
    host: Host, specs: Sequence[SlotSpec], *, known: int, allocates: bool
) -> NumberedState:
    done = DoneCommand(known, [each.key for each in specs], allocates)
    return host.log.answer(host.table, rm_epoch=7, command_number=4, done=done)


def test_an_answer_does_not_repeat_what_was_ordered() -> None:
    host = Host()
    first = allocated(host, spec("a"), spec("b"), known=host.full().report_number)
    assert (first.as_ordered, first.slots, first.base_report_number) == (True, (), 1)
    assert first.slot_isolation == NOTHING_REPORTED
    assert first.available["cpu_milli"] == 800
    host.table.begin_free(KEY)
    host.table.freed(KEY)
    second = answered(host, [spec("a")], known=first.report_number, allocates=False)
    assert (second.as_ordered, second.base_report_number) == (True, 2)
    assert (second.slot_isolation, second.available["cpu_milli"]) == (None, 900)


def test_after_an_unchanged_state_an_answer_is_short_too() -> None:
    host = Host()
    host.log.acknowledge(host.next().report_number)
    assert host.next().unchanged
    assert allocated(host, spec("a"), known=2).as_ordered


@pytest.mark.parametrize("known", [0, 1, 3], ids=["none", "an older one", "a later one"])
def test_an_answer_is_complete_unless_the_rm_knows_the_last_state(known: int) -> None:
    host = Host()
    host.full()
    host.full()
    state = allocated(host, spec("a"), known=known)
    assert (state.as_ordered, [slot.key for slot in state.slots]) == (False, [KEY])


def test_an_answer_is_complete_if_another_slot_has_changed() -> None:
    host = Host()
    host.carve()
    known = host.full().report_number
    host.table.begin_free(KEY)
    assert not allocated(host, spec("b"), known=known).as_ordered
    known = host.full().report_number
    host.table.freed(KEY)
    assert not allocated(host, spec("c"), known=known).as_ordered


def test_an_answer_is_complete_while_a_slot_is_being_freed() -> None:
    host = Host()
    host.carve()
    known = host.full().report_number
    host.table.begin_free(KEY)
    state = answered(host, [spec("a")], known=known, allocates=False)
    assert (state.as_ordered, [slot.key for slot in state.slots]) == (False, [KEY])


def test_an_answer_is_complete_for_a_slot_with_cpus() -> None:
    host = Host()
    known = host.full().report_number
    assert not allocated(host, spec("a", cpus="0"), known=known).as_ordered


def test_an_answer_is_complete_if_isolations_differ() -> None:
    host = Host()
    known = host.full().report_number
    specs = [spec("a"), spec("b")]
    host.table.allocate(specs)
    host.table.carved(KEY, NOTHING_REPORTED, 1)
    host.table.carved(SlotKey("b", 1), Isolation(driver="other"), 1)
    assert not answered(host, specs, known=known, allocates=True).as_ordered

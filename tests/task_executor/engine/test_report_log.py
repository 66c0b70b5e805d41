"""The numbers of states only rise, `unchanged` is never wrong, and ends are reported."""

from __future__ import annotations

from finegrain.cpuset import CpuSet
from finegrain.resources import MIB, ResourceProfile
from finegrain.values.isolation import NOTHING_REPORTED
from task_executor.engine.report_log import NumberedState, ReportLog
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

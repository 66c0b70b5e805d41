"""The measurements of executors: what is kept, for how long, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from finegrain.errors import InvalidArgument
from finegrain.resources import MIB
from finegrain.v1 import cluster_pb2, slots_pb2
from resource_manager.service.measured_use import (
    HOST_STEP_MS,
    SLOT_STEP_MS,
    WINDOW_MS,
    MeasuredUse,
    check_usage,
)

START_MS = 1_800_000_000_000


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


def report(*slots: slots_pb2.SlotUsage, host_cpu_milli: int = 0) -> slots_pb2.UsageReport:
    return slots_pb2.UsageReport(
        cpu_milli=sum(each.cpu_milli for each in slots),
        memory_bytes=sum(each.memory_bytes for each in slots),
        tasks=len(slots),
        host=slots_pb2.HostUsage(cpu_milli=host_cpu_milli),
        slots=slots,
    )


def slot(name: str, cpu_milli: int, memory_bytes: int = MIB) -> slots_pb2.SlotUsage:
    return slots_pb2.SlotUsage(
        allocation_id=name, generation=1, cpu_milli=cpu_milli, memory_bytes=memory_bytes, pids=2
    )


def status(name: str, generation: int = 1) -> slots_pb2.SlotStatus:
    return slots_pb2.SlotStatus(allocation_id=name, generation=generation, executor_id="host-a")


def cpu_milli(samples: list[cluster_pb2.UsageSample]) -> list[int]:
    return [each.cpu_milli for each in samples]


def test_each_slot_shows_what_its_executor_measured_last() -> None:
    measured = MeasuredUse(Clock())
    measured.reported("host-a", report(slot("busy", 900), slot("idle", 0)))
    measured.reported("host-a", report(slot("busy", 700), slot("idle", 5)))
    slots = [status("busy"), status("idle"), status("new"), status("busy", generation=2)]

    measured.add_to_slots(slots)

    assert [each.HasField("used") for each in slots] == [True, True, False, False]
    assert slots[0].used == slots_pb2.SlotUsage(cpu_milli=700, memory_bytes=MIB, pids=2)
    assert slots[1].used.cpu_milli == 5


def test_a_list_of_executors_has_sums_and_the_host_but_no_slots() -> None:
    measured = MeasuredUse(Clock())
    measured.reported("host-a", report(slot("one", 900), host_cpu_milli=1_500))
    measured.reported("host-b", report(slot("two", 100)))

    shown = measured.of_executor("host-a")
    total = measured.sum_of(["host-a", "host-b", "never reported"])

    assert (shown.cpu_milli, shown.host.cpu_milli, len(shown.slots)) == (900, 1_500, 0)
    assert (total.cpu_milli, total.memory_bytes, total.tasks) == (1_000, 2 * MIB, 2)
    assert measured.of_executor("never reported") == slots_pb2.UsageReport()


def test_samples_of_the_last_hour_are_kept_and_older_ones_dropped() -> None:
    clock = Clock()
    measured = MeasuredUse(clock)
    for minute in range(90):
        clock.now_ms = START_MS + minute * 60_000
        measured.reported("host-a", report(slot("one", minute)))
        clock.now_ms += 5_000  # too soon after the last sample
        measured.reported("host-a", report(slot("one", 9_999)))

    of_host = cpu_milli(measured.samples_of_executor("host-a"))
    of_slot = cpu_milli(measured.samples_of_slot("host-a", "one", 1))

    assert of_host == list(range(30, 90))
    assert of_slot == list(range(30, 90))


def test_a_slot_that_began_later_has_samples_since_then_only() -> None:
    clock = Clock()
    measured = MeasuredUse(clock)
    measured.reported("host-a", report(slot("early", 1)))
    clock.now_ms += SLOT_STEP_MS
    measured.reported("host-a", report(slot("early", 2), slot("late", 7)))

    (sample,) = measured.samples_of_slot("host-a", "late", 1)

    assert sample.cpu_milli == 7
    assert sample.sample_time.ToMilliseconds() == clock.now_ms
    clock.now_ms += SLOT_STEP_MS
    measured.reported("host-a", report(slot("late", 8)))
    assert cpu_milli(measured.samples_of_slot("host-a", "early", 1)) == []
    assert cpu_milli(measured.samples_of_slot("host-a", "late", 1)) == [7, 8]


def test_an_executor_that_no_longer_reports_is_dropped_after_an_hour() -> None:
    clock = Clock()
    measured = MeasuredUse(clock)
    measured.reported("gone", report(slot("one", 1)))
    clock.now_ms += WINDOW_MS
    measured.reported("host-a", report())
    assert measured.samples_of_executor("gone") == []
    assert measured.of_executor("gone") == slots_pb2.UsageReport()


@given(
    st.lists(
        st.tuples(
            st.integers(-2 * WINDOW_MS, 2 * WINDOW_MS),
            st.sets(st.sampled_from("abc")),
        ),
        max_size=30,
    )
)
def test_times_rise_and_fit_their_numbers_even_if_the_clock_is_set(
    steps: list[tuple[int, set[str]]],
) -> None:
    clock = Clock()
    measured = MeasuredUse(clock)
    for step_ms, names in steps:
        clock.now_ms = max(START_MS + step_ms, clock.now_ms - HOST_STEP_MS // 2)
        measured.reported("host-a", report(*(slot(name, 1) for name in names)))
        for samples in (
            measured.samples_of_executor("host-a"),
            *(measured.samples_of_slot("host-a", name, 1) for name in "abc"),
        ):
            times = [each.sample_time.ToMilliseconds() for each in samples]
            assert times == sorted(set(times))
            assert all(clock.now_ms - time_ms < WINDOW_MS for time_ms in times)


@pytest.mark.parametrize(
    ("usage", "field"),
    [
        (slots_pb2.UsageReport(cpu_milli=-1), "usage.cpu_milli"),
        (
            slots_pb2.UsageReport(host=slots_pb2.HostUsage(memory_used_bytes=2**62)),
            "usage.host.memory_used_bytes",
        ),
        (slots_pb2.UsageReport(host=slots_pb2.HostUsage(cpus="0\n1")), "usage.host.cpus"),
        (
            slots_pb2.UsageReport(
                host=slots_pb2.HostUsage(temperatures=[slots_pb2.Temperature()] * 65)
            ),
            "usage.host.temperatures",
        ),
    ],
)
def test_what_no_host_can_measure_is_refused(usage: slots_pb2.UsageReport, field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        check_usage(usage, "usage")


def test_a_slot_with_absurd_numbers_cannot_break_the_samples() -> None:
    measured = MeasuredUse(Clock())
    measured.reported("host-a", report(slot("one", 2**40, 2**60), slot("two", -5, -5)))
    (one,) = measured.samples_of_slot("host-a", "one", 1)
    (two,) = measured.samples_of_slot("host-a", "two", 1)
    assert one.cpu_milli == 2**32 - 1
    assert (two.cpu_milli, two.memory_bytes) == (0, 0)
